"""What sees to a machine that is rented for a run: whether it is there, and that it is gone at the end."""

import contextlib
import time
from pathlib import Path

import msgspec

from brain.ml.training_job import RentalTerms
from resource_manager.remote_record import read_record, write_record
from resource_manager.rental.cargo import Boarding, Cargo
from resource_manager.rental.rental_api import RentalApi
from resource_manager.rental.rental_record import (
    UNPROVEN,
    RentalRecord,
    note_gone,
    read_rental,
    spent_on,
    try_rental_lock,
    write_rental,
)
from resource_manager.rental.renting import GONE_WORDS, Rental, Times, still_billed
from tools_utilities.errors import QuarkError, StillBilledError, UsageError
from tools_utilities.file_locks import HeldFile  # noqa: TC001 - the style here: plain imports

MOST_LOSSES = 3
"""Machines that a run may lose before it is left to the person."""
LOST_LOOKS = 2
KNOWN_HOSTS = ".known_hosts"


def lost_line(terms: RentalTerms) -> str:
    """Return what becomes of a run whose machine is taken away, for the plan."""
    return (
        f"it goes on from its last checkpoint on the next offer, at most ${terms.max_price_hour:g} an"
        f" hour and within the same cap, up to {MOST_LOSSES} times"
    )


class MachineKeeper:
    """Sees to the machine of one label: whether it is there, when it must end, and that it is gone."""

    def __init__(self, cargo: Cargo, record: RentalRecord, api: RentalApi, times: Times) -> None:
        self._cargo, self._record, self._api, self._times = cargo, record, api, times
        self._folder = cargo.folder
        self._rental = Rental(api, record.label, times=times)
        self._boarding: Boarding | None = None
        self._lock: HeldFile | None = None
        self._number = 0
        self._looked_at = time.monotonic()
        self._missing = 0

    def is_gone(self) -> bool:
        """As of Keeper: twice in a row not listed, or in a state that it does not come back from."""
        if time.monotonic() - self._looked_at < self._times.lost:
            return False
        self._looked_at = time.monotonic()
        try:
            one = self._rental.look(self._number)
        except QuarkError:
            return False  # nobody says
        lost = one is None or one.status in GONE_WORDS
        self._missing = self._missing + 1 if lost else 0
        return self._missing >= LOST_LOOKS

    def cancel(self) -> None:
        """As of Keeper."""
        if self._boarding is not None:
            self._boarding.break_off()

    def seconds_left(self) -> float:
        """As of Keeper."""
        return self._record.began_at + self._record.cap_seconds - time.time()

    def unproven(self) -> StillBilledError:
        """As of Keeper."""
        record = self._record
        return still_billed(
            record.instances, "its end was not seen in time", record.label, self._api.host
        )

    def end(self) -> str:
        """As of Keeper."""
        try:
            if self._boarding is not None:
                self._boarding.close()
            if read_rental(self._folder) is None or self._lock is None:
                return ""  # nothing was begun
            return destroyed(self._rental, self._folder)
        finally:
            if self._lock is not None:
                self._lock.close()

    def _take_lock(self) -> None:
        self._lock = try_rental_lock(self._folder)
        if self._lock is None:
            raise UsageError(f"{self._cargo.name}: another process watches over its machine")


def destroyed(rental: Rental, run_dir: Path) -> str:
    """Destroy what a label has, note it, and return what to say.

    Raises:
        StillBilledError: there is no proof.
    """
    try:
        numbers = rental.destroy()
    except StillBilledError:
        with contextlib.suppress(OSError):
            record = rental_of(run_dir)
            write_rental(run_dir, msgspec.structs.replace(record, state=UNPROVEN))
        raise
    note_lost(run_dir)
    note_gone(run_dir)
    if not numbers:
        return "nothing is rented"
    spent = spent_on(run_dir, time.time())
    named = ", ".join(str(number) for number in numbers)
    return f"instance {named} is destroyed, as read back; it cost about ${spent:.2f}"


def note_lost(run_dir: Path) -> None:
    """A run that is not known to have ended has lost its machine."""
    record = read_record(run_dir)
    if record is not None and not record.ended:
        write_record(run_dir, msgspec.structs.replace(record, state="lost"))


def rental_of(run_dir: Path) -> RentalRecord:
    """Return what was rented for a run; UsageError: nothing."""
    record = read_rental(run_dir)
    if record is None:
        raise UsageError(f"nothing was rented for run {run_dir.name}")
    return record
