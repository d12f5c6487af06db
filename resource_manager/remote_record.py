"""`remote.json` of a run folder: where the run is when it is on another machine, and what is known of it.

Written before anything is made there, so that a launch that is cut off can be found and ended.
"""

import os
import time
from pathlib import Path

import msgspec

from brain.ml.training_job import Remote
from tools_utilities.file_locks import HeldFile
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared
from tools_utilities.private_files import read_plain

REMOTE_FILE, LOCK_FILE = "remote.json", ".remote.lock"
ENDED = ("ended", "lost")


@prepared
class RemoteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of a run on another machine."""

    version: int = 1
    remote: Remote
    run: str
    """Its folder there, below Quark's."""
    metrics_base: int
    log_base: int
    """Bytes that metrics and log here had before this launch; what comes is appended, never more."""
    state: str = "starting"
    """As of `RunStatus`, when last asked."""
    exit_code: int | None = None
    collected: bool = False
    """Its checkpoints are here too: the other machine is needed no more."""
    seen_at: float = 0.0
    """Unix seconds of the last answer."""

    @property
    def ended(self) -> bool:
        """Whether the run is over there, and its metrics and log are here."""
        return self.state in ENDED


def read_record(run_dir: Path) -> RemoteRecord | None:
    """Return where a run is; None: on this machine."""
    try:
        return decode_json(read_plain(run_dir / REMOTE_FILE), type=RemoteRecord)
    except (OSError, msgspec.DecodeError):
        return None


def write_record(run_dir: Path, record: RemoteRecord) -> RemoteRecord:
    """Write it, atomically, as of now; returns what was written."""
    record = msgspec.structs.replace(record, seen_at=time.time())
    temporary = run_dir / f".{REMOTE_FILE}.tmp"
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=2))
    temporary.replace(run_dir / REMOTE_FILE)
    return record


def try_mirror_lock(run_dir: Path) -> HeldFile | None:
    """Return the lock of whoever fills a run's folder; None when another process does."""
    held = HeldFile(run_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT)
    if held.try_lock(exclusive=True):
        return held
    held.close()
    return None


def forget_record(run_dir: Path) -> None:
    """The run goes on on this machine."""
    (run_dir / REMOTE_FILE).unlink(missing_ok=True)
