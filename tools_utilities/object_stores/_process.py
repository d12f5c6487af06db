"""What a fork changes for clients: obstore must not be used, and locks may be held by nobody."""

import os
import sys
from dataclasses import dataclass, field
from threading import Lock


@dataclass
class _Process:
    forked: bool = False
    lock: Lock = field(default_factory=Lock)


_PROCESS = _Process()


def _after_fork() -> None:
    # obstore's threads do not survive a fork, and its calls would wait for them forever. A parent
    # that never loaded it (a fork server) has none to lose.
    _PROCESS.forked = _PROCESS.forked or "obstore" in sys.modules
    _PROCESS.lock = Lock()


os.register_at_fork(after_in_child=_after_fork)


def is_forked() -> bool:
    """Say whether this process was forked from one that had obstore loaded."""
    return _PROCESS.forked


def clients_lock() -> Lock:
    """Return the lock under which this process makes clients."""
    return _PROCESS.lock


def process_id() -> int:
    """Return the process's id; clients are valid in the process that made them."""
    return os.getpid()
