"""What sees to a run on SkyPilot: launches it, reads back where it is, and ends what costs money with proof."""

import contextlib
import secrets
import time
from pathlib import Path

import msgspec

from brain.ml.run_files import LOG_FILE
from resource_manager.launch_target import RunHandle
from resource_manager.rental.rental_record import (
    RENTING,
    RUNNING,
    UNPROVEN,
    RentalRecord,
    note_gone,
    read_rental,
    spent_on,
    try_rental_lock,
    write_rental,
)
from resource_manager.rental.rented_run import COLLECT_SECONDS, RentedRun
from resource_manager.sky.sky_life import SkyLife, SkyTimes, destroyed, life_of, still_billed
from resource_manager.sky.sky_mirror import SkyMirror
from resource_manager.sky.sky_offer import SkyOffer
from resource_manager.sky.sky_packing import Packed, keep_task, stop_file_in, write_folder
from resource_manager.sky.sky_program import Sky
from resource_manager.sky.sky_run import SkyRun, Watched
from tools_utilities.errors import MachineError, StillBilledError, UsageError
from tools_utilities.file_locks import HeldFile  # noqa: TC001 - the style here: plain imports
from tools_utilities.private_files import write_private
from tools_utilities.run_words import said_run

FOLDER, SAID_FILE = "sky", "sky.log"
"""In the run's folder here: what is sent, and what SkyPilot said of its launch."""
_LONGEST_NAME = 24


class SkyKeeper:
    """Launches one run and ends it; a Keeper of `rented_run`."""

    def __init__(
        self,
        packed: Packed,
        offer: SkyOffer,
        cap_seconds: float,
        sky: Sky,
        times: SkyTimes,
    ) -> None:
        self._packed, self._offer, self._sky, self._times = packed, offer, sky, times
        self._job = packed.job
        self._run_dir = Path(self._job.run_dir)
        self._record = RentalRecord(
            where=packed.where,
            label=name_of(self._job.name, secrets.token_hex(3)),
            price_hour=packed.held.price_hour or 0.0,
            began_at=time.time(),
            cap_seconds=cap_seconds,
            spent_before=spent_on(self._run_dir, time.time()),
            max_cost=packed.terms.max_cost,
            managed=packed.held.managed,
            log_base=_length(self._run_dir / LOG_FILE),
        )
        self.life = life_of(sky, self._record.label, times, managed=packed.held.managed)
        self._lock: HeldFile | None = None
        self._ending = False
        self._handle: SkyRun | None = None

    def begin(self, run: RentedRun) -> RunHandle:
        """As of Keeper."""
        self._lock = try_rental_lock(self._run_dir)
        if self._lock is None:
            raise UsageError(f"{self._job.name}: another process watches over it")
        run.check_asked()
        held = msgspec.structs.replace(
            self._packed.held, deadline=self._record.began_at + self._own_seconds()
        )
        folder = self._run_dir / FOLDER
        write_folder(folder, self._packed, held)
        self._note(RENTING)  # before anything costs anything
        run.tell(f"sky launches {self.life.machine} on {self._offer.place}")
        try:
            said = self.life.launch(folder, self._packed.sent.variables)
        finally:
            keep_task(folder)
        write_private(self._run_dir / SAID_FILE, said.encode())
        self.life.check_place(self._offer.place)
        self._note(RUNNING)
        run.tell(f"{self.life.machine} has the run")
        ends_at = held.deadline or 0.0
        self._handle = watched_run(self._sky, self.life, self._run_dir, self._record, ends_at)
        return self._handle

    def leave(self) -> None:
        """End what reads the run's output; the run goes on."""
        if self._handle is not None:
            self._handle.leave()

    def is_gone(self) -> bool:
        """As of Keeper: the run itself asks SkyPilot when its output ends."""
        return False

    def again(self, _run: RentedRun) -> RunHandle:
        """As of Keeper; SkyPilot looks for other machines itself, where it is a managed job."""
        hint = f"Its checkpoints are kept: quark resume {said_run(self._job.name)}"
        raise MachineError(f"{self.life.machine} was lost", hint=hint)

    def cancel(self) -> None:
        """As of Keeper; not while things are being ended."""
        if not self._ending:
            self._sky.break_off()

    def seconds_left(self) -> float:
        """As of Keeper."""
        return self._record.began_at + self._record.cap_seconds - time.time()

    def unproven(self) -> StillBilledError:
        """As of Keeper."""
        return still_billed(self.life, "its end was not seen in time")

    def end(self) -> str:
        """As of Keeper."""
        try:
            if self._lock is None or _record_of(self._run_dir, self._record.label) is None:
                return ""  # nothing was begun
            self._ending = True
            self._sky.go_on()
            return ended(self.life, self._run_dir, self._times)
        finally:
            if self._lock is not None:
                self._lock.close()

    def _own_seconds(self) -> float:
        """Seconds from the command until the run ends itself, before its cap."""
        return max(1.0, self._record.cap_seconds - COLLECT_SECONDS)

    def _note(self, state: str) -> None:
        self._record = msgspec.structs.replace(self._record, state=state, made=True)
        write_rental(self._run_dir, self._record)


def watched_run(
    sky: Sky, life: SkyLife, run_dir: Path, record: RentalRecord, ends_at: float
) -> SkyRun:
    """Return a handle on a run that was launched; it ends itself at `ends_at` (seconds of the epoch)."""
    watched = Watched(
        run_dir=run_dir,
        stop_file=stop_file_in(run_dir),
        began_at=record.began_at,
        ends_at=ends_at,
    )
    return SkyRun(sky, life, SkyMirror(run_dir, log_base=record.log_base), watched)


def ended(life: SkyLife, run_dir: Path, times: SkyTimes) -> str:
    """Destroy what a run has, note it, and return what to say.

    Raises:
        StillBilledError: there is no proof.
    """
    try:
        destroyed(life, times)
    except StillBilledError:
        with contextlib.suppress(OSError):
            record = read_rental(run_dir)
            if record is not None:
                write_rental(run_dir, msgspec.structs.replace(record, state=UNPROVEN))
        raise
    note_gone(run_dir)
    record = read_rental(run_dir)
    cost = (
        ""
        if record is None or not record.price_hour
        else f"; about ${record.spent(time.time()):.2f}"
    )
    return f"{life.machine} is gone, as read back{cost}"


def name_of(run: str, token: str = "") -> str:
    """Return SkyPilot's name for a launch: of the run, and with a token of no other launch."""
    kept = "".join(one if one.isascii() and one.isalnum() else "-" for one in run.lower())
    name = f"quark-{kept[:_LONGEST_NAME].strip('-') or 'run'}"
    return f"{name}-{token}" if token else name


def _record_of(run_dir: Path, label: str) -> RentalRecord | None:
    record = read_rental(run_dir)
    return record if record is not None and record.label == label else None


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
