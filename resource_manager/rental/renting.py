"""The life of one rented machine: made once, waited for by phase, and destroyed with proof.

Every machine of a run carries the run's label, so what there is can always be read back: a creation
whose answer was lost is looked up before it is repeated, of two that were made one is kept, and the end
is only believed when the provider's list is free of the label.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from resource_manager.rental.offers import Offer
from resource_manager.rental.rental_api import Instance, RentalApi, Wanted
from resource_manager.rental.rental_http import ReplyLostError
from tools_utilities.errors import ChangedError, MachineError, QuarkError, StillBilledError

LABEL_PREFIX = "quark:"
HURRY_SECONDS = 4.0
"""Of one request while machines are destroyed: the proof is due in seconds, and is asked for anew."""
PRICE_SLACK = 1.005
"""The provider rounds; what is more than that is another price."""
GONE_WORDS = frozenset({"exited", "offline", "stopped"})
"""States of `actual_status` from which a machine does not come back by itself."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """How long each phase may take, in seconds."""

    appear: float = 60.0
    """From a creation to its line in the list; also how long a lost one is looked for."""
    create: float = 300.0
    """With no status, or `created`: the host has not begun."""
    load: float = 1200.0
    """`loading`: the image is fetched and unpacked."""
    answer: float = 300.0
    """From `running` to an ssh server that answers."""
    destroy: float = 20.0
    """From the first word of destruction to the proof."""
    lost: float = 30.0
    """Between two looks at whether a machine with a run on it is still there."""
    look: float = 3.0
    """Between two looks."""


class Watch(msgspec.Struct, frozen=True, kw_only=True):
    """Who watches over a machine that is being made."""

    cancelled: Callable[[], bool] = lambda: False
    """Whether somebody wants it to end; asked between two looks."""
    tell: Callable[[str], None] = lambda _text: None
    """Is told what is being waited for."""
    noted: Callable[[int], None] = lambda _number: None
    """Is told a machine's number as soon as it is known."""


class BootError(MachineError):
    """A machine did not come up."""


class CancelledError(QuarkError):
    """Somebody asked for the end while the machine was being made."""

    exit_code = 130


def label_of(run: str, token: str) -> str:
    """Return the label of a launch: the run's name, and what tells it from others of that name."""
    return f"{LABEL_PREFIX}{run}:{token}"


class Rental:
    """The machine of one label; what it did not make it does not touch."""

    def __init__(
        self,
        api: RentalApi,
        label: str,
        *,
        times: Times | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        watch: Watch | None = None,
    ) -> None:
        """Watch over a label.

        Args:
            api: The provider.
            label: As of `label_of`.
            times: Limits of the phases.
            clock: Seconds that never go back.
            sleep: Waits.
            watch: Who wants to know, and may want it to end.
        """
        self._api, self.label = api, label
        self._times = times or Times()
        self._clock, self._sleep = clock, sleep
        watch = watch or Watch()
        self._cancelled, self._tell, self._noted = watch.cancelled, watch.tell, watch.noted
        self._known: set[int] = set()
        self._unsure = False
        """A creation was sent whose outcome nobody knows."""

    def rent(self, offer: Offer, wanted: Wanted) -> Instance:
        """Rent an offer; afterwards there is exactly one machine of the label.

        Raises:
            OfferTakenError: it cannot be had; nothing was rented.
            ChangedError: it became dearer than confirmed; nothing is kept.
            StillBilledError: one of two could not be shown to be gone.
            MachineError, CancelledError: something may have been rented: `destroy` next.
        """
        self._check_cancelled()
        there = self._mine()
        if not there:
            there = self._created(offer, wanted)
        kept = self._one_of(there)
        self._noted(kept.id)
        self._check_price(kept, offer)
        return kept

    def _created(self, offer: Offer, wanted: Wanted) -> list[Instance]:
        self._unsure = True
        try:
            number = self._api.create(offer.id, wanted)
        except ReplyLostError as error:
            self._tell(f"{error}; looking it up")
            found = self._appeared(None)
            if not found:
                raise MachineError(
                    f"{error}, and is not in the list after {self._times.appear:.0f} s",
                    hint="Run the same command again.",
                ) from error
            return found
        except QuarkError:
            self._unsure = False  # refused: nothing was made
            raise
        self._known.add(number)
        self._noted(number)
        self._unsure = False
        found = self._appeared(number)
        if not found:
            raise BootError(
                f"instance {number} is not in the list after {self._times.appear:.0f} s",
                hint="Run the same command again.",
            )
        return found

    def _appeared(self, number: int | None) -> list[Instance]:
        """Return the label's machines as soon as one (or the one) is listed; none after a while."""
        deadline = self._clock() + self._times.appear
        while True:
            found = self._mine()
            if found and (number is None or number in {one.id for one in found}):
                return found
            if self._clock() + self._times.look > deadline:
                return found
            self._check_cancelled()
            self._sleep(self._times.look)

    def _one_of(self, there: list[Instance]) -> Instance:
        """Keep the oldest of several machines of the label; the others are destroyed for certain."""
        kept, *others = sorted(there, key=lambda one: one.id)
        if others:
            self._tell(f"{len(there)} machines were made; {kept.id} is kept")
            with self._api.within(HURRY_SECONDS):
                self._end({one.id for one in others})
        return kept

    def _check_price(self, kept: Instance, offer: Offer) -> None:
        confirmed = offer.price_hour
        if kept.price_hour is not None and kept.price_hour > confirmed * PRICE_SLACK:
            self.destroy()
            raise ChangedError(
                f"offer {offer.id}: ${kept.price_hour:.3f} an hour, ${confirmed:.3f} was confirmed;"
                " the machine is destroyed",
                hint="Run the same command again to see what it costs now.",
            )

    def wait_running(self, number: int) -> Instance:
        """Wait until a machine is up.

        Raises:
            BootError: it ended, vanished, or took longer than a phase may.
            CancelledError: somebody asked for the end.
        """
        phase, began = "", self._clock()
        while True:
            one = self.look(number)
            if one is None:
                raise BootError(f"instance {number} is gone from the list", hint=_AGAIN)
            if one.status in GONE_WORDS:
                raise BootError(f"instance {number}: {one.status} {one.said}".rstrip(), hint=_AGAIN)
            if one.status == "running" and one.ssh_host and one.ssh_port:
                return one
            now = one.status or "being made"
            if now != phase:
                phase, began = now, self._clock()
                self._tell(f"instance {number}: {phase}")
            limit = self._times.load if phase == "loading" else self._times.create
            if self._clock() - began >= limit:
                raise BootError(
                    f"instance {number}: {phase} for more than {limit:.0f} s", hint=_AGAIN
                )
            self._check_cancelled()
            self._sleep(self._times.look)

    def look(self, number: int) -> Instance | None:
        """Return a machine as it is listed; None: it is not."""
        return next((one for one in self._mine() if one.id == number), None)

    def destroy(self) -> tuple[int, ...]:
        """Destroy every machine of the label, and prove it; returns the numbers that were there.

        Raises:
            StillBilledError: there is no proof; it names the numbers and what to type.
        """
        with self._api.within(HURRY_SECONDS):
            return self._end(None)

    def _end(self, only: set[int] | None) -> tuple[int, ...]:
        """Destroy machines of the label (all, or some of them) until the list is free of them.

        When a creation may be on its way, an empty list counts only after it had time to appear.
        """
        began, asked, problem = self._clock(), set(self._known if only is None else only), ""
        patient = self._times.appear if self._unsure and only is None else 0.0
        for number in sorted(asked):
            problem = self._destroyed(number) or problem
        while True:
            try:
                left = {one.id for one in self._mine()}
            except QuarkError as error:
                left, problem = None, str(error)
            if left is not None:
                left = left if only is None else left & only
                for number in sorted(left):
                    problem = self._destroyed(number) or problem
                asked |= left
                waited = self._clock() - began
                if not left and waited >= patient:
                    self._known -= asked
                    return tuple(sorted(asked))
            if self._clock() - began >= max(self._times.destroy, patient):
                raise still_billed(
                    asked if left is None else left, problem, self.label, self._api.host
                )
            self._sleep(min(self._times.look, 1.0))

    def _destroyed(self, number: int) -> str:
        """Ask for a machine's end; returns why it was refused, for the last word."""
        try:
            self._api.destroy(number)
        except QuarkError as error:
            return str(error)
        return ""

    def _mine(self) -> list[Instance]:
        found = [one for one in self._api.instances() if one.label == self.label]
        self._known |= {one.id for one in found}
        return found

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise CancelledError("stopped while the machine was being made")


_AGAIN = "Nothing of it is kept; run the same command again for another machine."


def still_billed(numbers: Iterable[int], problem: str, label: str, host: str) -> StillBilledError:
    """Return the error that names what may still be there, and what to type."""
    numbers = set(numbers)
    named = " ".join(str(number) for number in sorted(numbers))
    which = f"instances {named}" if numbers else f"whatever is labelled {label}"
    detail: dict[str, Any] = {"ids": sorted(numbers), "label": label}
    typed = " && ".join(f"vastai destroy instance {number}" for number in sorted(numbers))
    return StillBilledError(
        f"{host}: {which} may still be there, and cost money" + (f": {problem}" if problem else ""),
        hint=f"`{typed}` destroys it; `quark doctor` looks again."
        if typed
        else f"Look for {label} in the console of {host}; `quark doctor` looks again.",
        **detail,
    )
