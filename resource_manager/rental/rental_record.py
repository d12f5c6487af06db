"""`rental.json` of a run folder: what was rented for a run, written before it is, and whether it is gone."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tools_utilities.file_locks import HeldFile
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared
from tools_utilities.private_files import read_plain

RENTAL_FILE, LOCK_FILE = "rental.json", ".rental.lock"
RENTING, RUNNING, GONE, UNPROVEN = "renting", "running", "gone", "unproven"
"""Being made · the run is on it · destroyed, as read back · nobody could prove it."""


@prepared
class RentalRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One launch on a rented machine."""

    version: int = 1
    label: str
    """What the provider calls it, or what it is found by there."""
    where: str = "vast"
    """As the command says it."""
    offer_id: int = 0
    price_hour: float
    began_at: float
    """Unix seconds, just before the creation was asked for."""
    cap_seconds: float
    """From then on; when they are over the machine ends itself, and whoever watches ends it."""
    spent_before: float = 0.0
    """Dollars that the run's earlier machines have cost."""
    max_cost: float | None = None
    """Dollars that were said for the whole run."""
    state: str = RENTING
    instances: tuple[int, ...] = ()
    """Every number that was ever seen under the label."""
    made: bool = False
    """There is, or was, something under the label, where things have no numbers (SkyPilot)."""
    managed: bool = False
    """It is a managed job of SkyPilot's, not a cluster."""
    log_base: int = 0
    """Bytes that the run's log had before this launch, where it is brought anew each time."""
    ended_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is billed any more, as read back."""
        return self.state == GONE

    def spent(self, now: float) -> float:
        """Return about the dollars so far: hours by the price of an hour, of all machines of the run."""
        if not (self.instances or self.made):
            return self.spent_before
        end = min(now if self.ended_at is None else self.ended_at, self.began_at + self.cap_seconds)
        return self.spent_before + max(0.0, end - self.began_at) / 3600 * self.price_hour

    @property
    def cap(self) -> float:
        """The most that the whole run may cost: as said, else what its time limit comes to."""
        if self.max_cost is not None:
            return self.max_cost
        return self.spent_before + self.cap_seconds / 3600 * self.price_hour

    def cost_text(self, now: float) -> str:
        """Return about the dollars so far, and the cap: `$0.42 of $15`."""
        return f"${self.spent(now):.2f} of ${f'{self.cap:.2f}'.removesuffix('.00')}"


def read_rental(run_dir: Path) -> RentalRecord | None:
    """Return what was rented for a run; None: nothing."""
    try:
        return decode_json(read_plain(run_dir / RENTAL_FILE), type=RentalRecord)
    except (OSError, msgspec.DecodeError):
        return None


def write_rental(run_dir: Path, record: RentalRecord) -> RentalRecord:
    """Write it, atomically and for good before anything is rented; returns what was written."""
    temporary = run_dir / f".{RENTAL_FILE}.tmp"
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(record), indent=2))
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(run_dir / RENTAL_FILE)
    return record


def note_gone(run_dir: Path) -> None:
    """Note that it was read back: nothing of it is there any more."""
    record = read_rental(run_dir)
    if record is not None and not record.is_over:
        write_rental(run_dir, msgspec.structs.replace(record, state=GONE, ended_at=time.time()))


def try_rental_lock(run_dir: Path) -> HeldFile | None:
    """Return the lock of who watches over a run's machine; None when another process does."""
    held = HeldFile(run_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    if held.try_lock(exclusive=True):
        return held
    held.close()
    return None


def forget_rental(run_dir: Path) -> None:
    """The run goes on where nothing is rented; what is not known to be gone stays noted."""
    record = read_rental(run_dir)
    if record is None or record.is_over:
        (run_dir / RENTAL_FILE).unlink(missing_ok=True)


def spent_on(run_dir: Path, now: float) -> float:
    """Return about the dollars that a run's machines have cost so far."""
    record = read_rental(run_dir)
    return 0.0 if record is None else record.spent(now)


def cost_reader(run_dir: Path, clock: Callable[[], float] = time.time) -> Callable[[], str]:
    """Return what tells the cost of a run so far, as often as it is asked; empty: nothing is rented.

    `clock`: Unix seconds.
    """

    def told() -> str:
        record = read_rental(run_dir)
        return record.cost_text(clock()) if record is not None and record.price_hour else ""

    return told


def rented_where(run_dir: Path, now: float) -> str | None:
    """Return where a rented run is or was, with what it has cost; None: nothing was rented for it."""
    record = read_rental(run_dir)
    if record is None:
        return None
    cost = f" (${record.spent(now):.2f})" if record.price_hour else ""
    return f"{record.where}{cost}"
