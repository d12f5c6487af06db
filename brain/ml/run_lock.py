"""One start of a run at a time: rank 0 holds a lock in the run's folder for as long as it lives.

Two starts beside each other would sweep each other's half-written checkpoints. The system lets go of
the lock when its process ends, however it ends. Imports no torch.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from brain.ml.process_group import host_name
from tools_utilities.errors import UsageError

LOCK_FILE = ".lock"
FIRST_SECONDS = 3.0
"""What a start that a person asked for waits for one that is just ending."""
AGAIN_SECONDS = 60.0
"""What a start by an agent waits: ranks of a machine whose agent was killed may still be saving."""
LOOK_SECONDS = 0.1


@contextmanager
def only_start(
    run_dir: Path, wait_seconds: float, *, sleep: Callable[[float], None] = time.sleep
) -> Iterator[None]:
    """Hold a run's lock.

    Raises:
        UsageError: another start of the run holds it for longer than `wait_seconds`.
    """
    descriptor = os.open(run_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + wait_seconds
        while not _taken(descriptor):
            if time.monotonic() >= deadline:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                raise UsageError(
                    f"run {run_dir.name} is being trained already ({holder or 'just begun'})",
                    hint="`quark show` says how it is; stop it first to start it anew.",
                )
            sleep(LOOK_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {host_name()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
