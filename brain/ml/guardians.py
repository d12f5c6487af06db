"""The processes without which a run must not go on, and how one of them lets it go. Imports no torch.

Whoever launched a run and watches it is such a process: when it dies, the run saves and ends, so that no
run is left behind that nobody knows of. One who leaves it running on purpose says so first, in the run's
folder, under its own identity: a later start of the run has another launcher, and its own bond.
"""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tools_utilities.json_text import decode_json
from tools_utilities.process_identity import ProcessIdentity, identify

LET_GO_FILE = ".let-go"


def let_go(run_dir: Path, own: ProcessIdentity | None = None) -> None:
    """Say that a run goes on when this process ends (or `own` does), atomically."""
    temporary = run_dir / f"{LET_GO_FILE}.tmp"
    temporary.write_bytes(msgspec.json.encode(own or identify(os.getpid())))
    temporary.replace(run_dir / LET_GO_FILE)


def hold(run_dir: Path) -> None:
    """Take back what an earlier start was told, before the next: a session may launch both."""
    (run_dir / LET_GO_FILE).unlink(missing_ok=True)


class Guardians:
    """The guardians of one process of a run."""

    def __init__(self, run_dir: Path, processes: Iterable[ProcessIdentity]) -> None:
        self._run_dir, self._processes = run_dir, tuple(processes)

    @property
    def missed(self) -> bool:
        """Whether one of them has died without having let the run go."""
        dead = [process for process in self._processes if not process.alive]
        return any(not _has_let_go(self._run_dir, process) for process in dead)


def _has_let_go(run_dir: Path, guardian: ProcessIdentity) -> bool:
    try:
        who = decode_json((run_dir / LET_GO_FILE).read_bytes(), type=ProcessIdentity)
    except (OSError, msgspec.DecodeError):
        return False
    # One that had died already when it was looked up has no start time any more.
    return who.pid == guardian.pid and guardian.start in (0, who.start)
