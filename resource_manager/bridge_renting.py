"""`quark-bridge run --use-vast`: a machine rented for a pipeline, watched, and destroyed with it.

The renting is that of training (`rental/`); here are the pre-flight, the plan and the end of a pipeline.
A machine that an earlier command left running is watched again by the same command.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.run_files import LOG_FILE
from resource_manager.bridge_boarding import ORDER_FILE, PipelineCargo, pipeline_wheel
from resource_manager.bridge_order import RentedPipeline, rented_pipeline
from resource_manager.bridge_preflight import begun
from resource_manager.bridge_session import session_grant, with_session
from resource_manager.bridge_watch import PipelineWatch
from resource_manager.launch_target import Price, RunHandle
from resource_manager.remote_credentials import expiry_warning
from resource_manager.remote_record import REMOTE_FILE, read_record
from resource_manager.rental.launch_keeper import LaunchKeeper
from resource_manager.rental.machine_keeper import MOST_LOSSES, MachineKeeper, destroyed
from resource_manager.rental.offers import Offer
from resource_manager.rental.offers_command import open_api
from resource_manager.rental.rental_api import OfferTakenError, RentalApi
from resource_manager.rental.rental_http import KEY_VARIABLE, account_from
from resource_manager.rental.rental_record import (
    RENTAL_FILE,
    RUNNING,
    RentalRecord,
    read_rental,
    spent_on,
    try_rental_lock,
)
from resource_manager.rental.rental_terms import price_lines, price_of, wish_of_terms
from resource_manager.rental.rented_run import Keeper, RentedRun
from resource_manager.rental.renting import Rental, Times
from resource_manager.runs import last_events
from tools_utilities.bridge.bridge_settings import BridgeSettings
from tools_utilities.bridge.pipelines import PipelineError
from tools_utilities.bridge.program import plan_lines
from tools_utilities.console import Console
from tools_utilities.errors import MachineError, RunStoppedError, UsageError
from tools_utilities.process_environment import environment_now
from tools_utilities.terminal_text import human_bytes

AGAIN = "Run the same command again: it goes on where it stopped."
STOPPED = (130, 143)
SESSION = "session"
Begins = Callable[[RentedPipeline, Mapping[str, str]], dict[str, Any] | None]


class VastRenter:
    """As of `tools_utilities.bridge.program.Renter`."""

    def __init__(
        self,
        console: Console,
        *,
        times: Times | None = None,
        here: Callable[[], Mapping[str, str]] = environment_now,
        begins: Begins = begun,
    ) -> None:
        """`times`: limits of the phases; `here`: this environment; `begins`: the pre-flight."""
        self._console, self._times, self._here = console, times or Times(), here
        self._begins = begins

    def plan_lines(self, settings: BridgeSettings, prefix: str | None) -> list[str]:
        """Return what a run would do, with the offer that it would rent; rents and writes nothing."""
        rented = self._rented(settings, prefix)
        facts, warnings = self._facts(rented, *self._offer(self._api(settings), rented))
        own = [line for line in plan_lines(settings, prefix) if not line.startswith("offer ")]
        return [*own, *_lines(facts), *(f"warning: {text}" for text in warnings)]

    def run(self, settings: BridgeSettings, prefix: str | None) -> dict[str, Any] | None:
        """Run a pipeline on a rented machine; returns what it made, None: it was left running.

        Raises:
            QuarkError: it did not end well; its machine is gone.
            StillBilledError: that could not be shown.
        """
        rented, api = self._rented(settings, prefix), self._api(settings)
        rented.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        keeper = self._left_running(rented, api)
        if keeper is None:
            if rented.remote.credentials == SESSION:
                rented = with_session(rented, self._here())
            self._console.note(
                "reading from the source and writing to the output with what is sent"
            )
            done = self._begins(rented, self._here())
            if done is not None:
                self._console.note("everything is made already; nothing was rented")
                return done
            keeper = self._new(rented, api)
        return self._watched(rented, RentedRun(keeper))

    def _rented(self, settings: BridgeSettings, prefix: str | None) -> RentedPipeline:
        rented = rented_pipeline(settings, prefix, self._here(), Path.home())
        if rented.remote.credentials == SESSION:
            session_grant(rented.order.settings)  # refused before anybody is asked
        return rented

    def _api(self, settings: BridgeSettings) -> RentalApi:
        """Return the account of `vast.api_key`, else of the environment, which alone says the address."""
        here = self._here()
        key = settings.vast.api_key if settings.vast is not None else ""
        return open_api(account_from({**here, KEY_VARIABLE: key or here.get(KEY_VARIABLE, "")}))

    def _left_running(self, rented: RentedPipeline, api: RentalApi) -> Keeper | None:
        """Return what watches a machine again that was left with this order; another is ended first."""
        folder, record = rented.folder, read_rental(rented.folder)
        if record is None or record.is_over:
            return None
        order = folder / ORDER_FILE
        same = order.is_file() and order.read_text() == rented.identity
        there = any(one.label == record.label for one in api.instances())
        if there and same and record.state == RUNNING and read_record(folder) is not None:
            self._console.note(f"{rented.name} was left running; this command watches it again")
            return _FoundKeeper(PipelineCargo(rented), record, api, self._times)
        lock = try_rental_lock(folder)
        if lock is None:
            raise UsageError(f"{rented.name}: another process watches over its machine")
        with lock:
            said = destroyed(Rental(api, record.label, times=self._times), folder)
            self._console.note(f"of an earlier command: {said}")
        return None

    def _new(self, rented: RentedPipeline, api: RentalApi) -> Keeper:
        offer, offers = self._offer(api, rented)
        facts, warnings = self._facts(rented, offer, offers)
        self._console.note(*_lines((("source", _source(rented)), ("into", rented.output), *facts)))
        for text in warnings:
            self._console.warn(text)
        return LaunchKeeper(PipelineCargo(rented), offer, api, self._times)

    def _offer(self, api: RentalApi, rented: RentedPipeline) -> tuple[Offer, int]:
        """Return the offer that is rented, and how many there are.

        Raises:
            OfferTakenError: there is none, or the one that was named is not there.
            UsageError: that one costs more than was said.
        """
        wish = wish_of_terms(rented.terms)
        limit = rented.max_price_hour
        if rented.offer_id is None:
            found = api.search(wish).offers
            if not found:
                raise OfferTakenError(
                    f"vast offers nothing with {rented.terms.disk_gb:g} GB of disk for ${limit:g} an hour",
                    hint='`quark "offers on vast"` lists what there is; vast.max_price_usd_hour.',
                )
            return found[0], len(found)
        wider = msgspec.structs.replace(wish, max_price_hour=None)
        named = [one for one in api.search(wider).offers if one.id == rented.offer_id]
        if not named:
            raise OfferTakenError(
                f"offer {rented.offer_id} (vast.offer_id) is not to be had with"
                f" {rented.terms.disk_gb:g} GB of disk; nothing was rented",
                hint='Leave it out to take the cheapest; `quark "offers on vast"` lists them.',
            )
        if named[0].price_hour > limit:
            raise UsageError(
                f"offer {rented.offer_id} costs ${named[0].price_hour:.3f} an hour with its disk,"
                f" vast.max_price_usd_hour is ${limit:g}; nothing was rented",
                hint="Name another offer, or leave vast.offer_id out to take the cheapest.",
            )
        return named[0], 1

    def _facts(
        self, rented: RentedPipeline, offer: Offer, offers: int
    ) -> tuple[tuple[tuple[str, str], ...], list[str]]:
        spent = spent_on(rented.folder, time.time())
        limits = PipelineCargo(rented)
        price: Price = price_of(limits, rented.terms, offer, spent)
        lines = price_lines(price, offer, time.strftime("%H:%M:%S"), offers, spent)
        if rented.offer_id is not None:
            lines = tuple(
                (name, text.replace("the cheapest of 1", "named by vast.offer_id"))
                for name, text in lines
            )
        order, sent = rented.order, rented.sent
        size = human_bytes(len(pipeline_wheel(rented).data))
        names = [f"Quark ({size}) and the settings", *sorted(sent.variables)]
        long_lived = sent.long_lived
        if rented.remote.credentials == SESSION:
            names.append("a session for its folders alone, made when it is rented")
            long_lived = tuple(name for name in long_lived if not name.startswith("AWS_"))
        names += [f"long-lived: {', '.join(long_lived)}"] if long_lived else []
        code = f"{order.repo_url} at {order.repo_ref or 'its usual branch'}, cloned over there"
        warning = expiry_warning(sent, price.max_seconds)
        warnings = [warning] if warning else []
        if offer.hours is not None and offer.hours * 3600 < (price.max_seconds or 0.0):
            warnings.append(f"offer {offer.id} ends in {offer.hours:.0f} h, before the cap")
        return (
            *lines,
            ("sends", " · ".join(names)),
            *((("code", code),) if order.repo_url is not None else ()),
            ("if lost", _lost_line(rented)),
            ("at the end", "the shards are in the store, and the machine is destroyed"),
        ), warnings

    def _watched(self, rented: RentedPipeline, run: RentedRun) -> dict[str, Any] | None:
        watch = PipelineWatch(rented.name, rented.folder, self._console)
        try:
            code = watch.follow(run.start)
        finally:
            run.leave()
        if watch.left:
            self._console.note(
                f"{rented.name} goes on, and is billed until its cap; the same command watches it"
                " again and destroys its machine"
            )
            return None
        return _outcome(rented, code)


class _FoundKeeper(MachineKeeper):
    """Watches over a machine that an earlier command has left with its pipeline on it."""

    def __init__(
        self, cargo: PipelineCargo, record: RentalRecord, api: RentalApi, times: Times
    ) -> None:
        super().__init__(cargo, record, api, times)
        self._pipeline = cargo

    def begin(self, run: RentedRun) -> RunHandle:
        """As of Keeper."""
        self._take_lock()
        record = read_record(self._folder)
        self._number = self._record.instances[-1] if self._record.instances else 0
        if record is None:
            raise UsageError(f"{self._cargo.name}: nothing was launched on its machine")
        self._boarding = boarding = self._pipeline.again(record.remote, run.tell)
        return boarding.attach()

    def again(self, run: RentedRun) -> RunHandle:
        """As of Keeper: not by this command, which confirmed no offer."""
        run.tell(destroyed(self._rental, self._folder))
        raise MachineError(f"instance {self._number} was lost", hint=AGAIN)


def _outcome(rented: RentedPipeline, code: int) -> dict[str, Any]:
    """Return what a pipeline made that has ended.

    Raises:
        QuarkError: as it ended.
    """
    told = next(iter(last_events(rented.folder)[-1:]), {})
    if code == 0 and isinstance(told.get("made"), dict):
        for name in (RENTAL_FILE, REMOTE_FILE, ORDER_FILE):
            (rented.folder / name).unlink(missing_ok=True)  # another run of it owes nothing
        return dict(told["made"])
    if code in STOPPED:
        stopped = RunStoppedError("stopped before its end", hint=AGAIN)
        stopped.exit_code = code  # type: ignore[misc] # 143 when terminated
        raise stopped
    if told.get("event") == "error":
        error = PipelineError(str(told.get("message")), hint=str(told.get("hint") or AGAIN))
        error.exit_code = code  # type: ignore[misc] # as the error over there
        raise error
    raise PipelineError(
        f"{rented.name} ended with exit code {code} and did not say why",
        hint=f"Its log: {rented.folder / LOG_FILE}. {AGAIN}",
    )


def _lines(facts: tuple[tuple[str, str], ...]) -> list[str]:
    return [f"{name:<11} {text}" for name, text in facts]


def _lost_line(rented: RentedPipeline) -> str:
    goes_on = "the same command goes on where it stopped"
    if rented.offer_id is not None:
        return f"{goes_on}: no other offer was named"
    return (
        f"it goes on on the next offer, at most ${rented.max_price_hour:g} an hour and within"
        f" the same cap, up to {MOST_LOSSES} times; then {goes_on}"
    )


def _source(rented: RentedPipeline) -> str:
    return rented.order.settings.pipeline.input_uri
