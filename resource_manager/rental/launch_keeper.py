"""Makes a machine of an offer, launches on it, follows a lost one by the next offer, and destroys it."""

import secrets
import time

import msgspec

from resource_manager.launch_target import RunHandle
from resource_manager.remote_host import OutOfReachError
from resource_manager.rental.cargo import Boarding, Cargo
from resource_manager.rental.machine_keeper import (
    KNOWN_HOSTS,
    MOST_LOSSES,
    MachineKeeper,
    destroyed,
)
from resource_manager.rental.offers import Offer
from resource_manager.rental.rental_api import Instance, OfferTakenError, RentalApi, Wanted
from resource_manager.rental.rental_record import (
    RENTING,
    RUNNING,
    RentalRecord,
    spent_on,
    write_rental,
)
from resource_manager.rental.rental_terms import cap_seconds, own_end, wish_of_terms
from resource_manager.rental.rented_run import COLLECT_SECONDS, RentedRun
from resource_manager.rental.renting import BootError, Rental, Times, Watch, label_of
from tools_utilities.errors import ChangedError, MachineError

USER = "root"


class LaunchKeeper(MachineKeeper):
    """Makes a machine, launches on it, and destroys it."""

    def __init__(self, cargo: Cargo, offer: Offer, api: RentalApi, times: Times) -> None:
        self._offer, self._terms = offer, cargo.terms
        spent = spent_on(cargo.folder, time.time())
        cap = cap_seconds(cargo, cargo.terms, offer.price_hour, spent)
        super().__init__(cargo, new_record(cargo, offer, cap, spent), api, times)
        self._ends_at = self._record.began_at + self._record.cap_seconds
        self._tried: list[Offer] = []

    def begin(self, run: RentedRun) -> RunHandle:
        """As of Keeper."""
        self._take_lock()
        self._check_offer()
        return self._made(run)

    def _made(self, run: RentedRun) -> RunHandle:
        """Rent the offer and launch on it."""
        self._tried.append(self._offer)
        self._number, self._missing = 0, 0
        self._note(RENTING)  # before anything costs anything
        watch = Watch(cancelled=lambda: run.is_asked, tell=run.tell, noted=self._seen)
        self._rental = Rental(self._api, self._record.label, times=self._times, watch=watch)
        run.tell(f"renting offer {self._offer.id} at ${self._offer.price_hour:.3f} an hour")
        kept = self._rental.rent(self._offer, self._wanted())
        instance = self._rental.wait_running(kept.id)
        self._number = instance.id
        run.tell(f"instance {instance.id} runs, waiting for its ssh server")
        return self._launched(run, instance)

    def again(self, run: RentedRun) -> RunHandle:
        """As of Keeper: the cheapest offer that was not tried, from what was saved last."""
        run.tell(f"instance {self._number} was lost; {destroyed(self._rental, self._folder)}")
        hint = self._cargo.goes_on
        if self._cargo.only_offer:
            raise MachineError(f"the machine of offer {self._offer.id} was lost", hint=hint)
        if len(self._tried) > MOST_LOSSES:
            raise MachineError(f"{len(self._tried)} machines were lost in a row", hint=hint)
        numbers = {one.id for one in self._tried}
        hosts = {one.machine_id for one in self._tried} - {None}
        found = self._api.search(wish_of_terms(self._terms)).offers
        left = [one for one in found if one.id not in numbers and one.machine_id not in hosts]
        if not left:
            raise MachineError("the machine was lost, and no other offer fits now", hint=hint)
        self._offer = left[0]
        self._cargo.lost()
        spent = spent_on(self._folder, time.time())
        self._record = new_record(self._cargo, self._offer, self._cap_left(spent), spent)
        return self._made(run)

    def _cap_left(self, spent: float) -> float:
        """Return what is left of both caps for the next machine, in seconds.

        Raises:
            UsageError: it is not enough for anything.
        """
        cap = cap_seconds(self._cargo, self._terms, self._offer.price_hour, spent)
        timed = self._cargo.max_seconds is not None
        return min(cap, self._ends_at - time.time()) if timed else cap

    def _check_offer(self) -> None:
        """Look at the offer once more: a plan may have waited long for its answer.

        Raises:
            OfferTakenError, ChangedError: it is gone, or dearer.
        """
        wish = msgspec.structs.replace(wish_of_terms(self._terms), max_price_hour=None)
        now = next((o for o in self._api.search(wish).offers if o.id == self._offer.id), None)
        if now is None:
            raise OfferTakenError(
                f"offer {self._offer.id} cannot be had any more; nothing was rented",
                hint="Run the same command again: it looks for the cheapest offer anew.",
            )
        if now.price_hour > self._offer.price_hour:
            raise ChangedError(
                f"offer {now.id} costs ${now.price_hour:.3f} an hour now, ${self._offer.price_hour:.3f}"
                " was confirmed; nothing was rented",
                hint="Run the same command again to see what there is now.",
            )

    def _wanted(self) -> Wanted:
        return Wanted(
            label=self._record.label,
            image=self._terms.image,
            disk_gb=self._terms.disk_gb,
            onstart=own_end(self._record.cap_seconds, self._api.url),
            bid_hour=self._offer.bid_hour,
        )

    def _launched(self, run: RentedRun, instance: Instance) -> RunHandle:
        host = f"[{instance.ssh_host}]" if ":" in instance.ssh_host else instance.ssh_host
        remote = msgspec.structs.replace(
            self._cargo.remote,
            where=f"ssh:{USER}@{host}:{instance.ssh_port}",
            terms=None,
            known_hosts=str(self._folder / KNOWN_HOSTS),
        )
        # Another machine may have had this address before.
        (self._folder / KNOWN_HOSTS).unlink(missing_ok=True)
        left = self.seconds_left() - COLLECT_SECONDS
        self._boarding = boarding = self._cargo.boarding(remote, run.tell, max(left, 1.0))
        self._await_ssh(run, boarding)
        handle = boarding.launch()
        self._note(RUNNING)
        return handle

    def _await_ssh(self, run: RentedRun, boarding: Boarding) -> None:
        """Wait for the ssh server, and look at the machine: reach of the stores, disk, Python.

        Raises:
            BootError: it does not answer in time.
            QuarkError: the run cannot work there.
        """
        deadline = time.monotonic() + self._times.answer
        while True:
            run.check_asked()
            try:
                boarding.look()
            except OutOfReachError as error:
                if time.monotonic() > deadline:
                    raise BootError(f"{error}; waited {self._times.answer:.0f} s") from error
                time.sleep(self._times.look)
            else:
                return

    def _seen(self, number: int) -> None:
        known = dict.fromkeys((*self._record.instances, number))
        self._record = msgspec.structs.replace(self._record, instances=tuple(known))
        self._note(self._record.state)

    def _note(self, state: str) -> None:
        self._record = msgspec.structs.replace(self._record, state=state)
        write_rental(self._folder, self._record)


def new_record(cargo: Cargo, offer: Offer, cap: float, spent: float) -> RentalRecord:
    """Return the record of a launch that begins now; `spent`: dollars of earlier ones."""
    return RentalRecord(
        label=label_of(cargo.name, secrets.token_hex(4)),
        offer_id=offer.id,
        price_hour=offer.price_hour,
        began_at=time.time(),
        cap_seconds=cap,
        spent_before=spent,
        max_cost=cargo.terms.max_cost,
    )
