"""Which process a pid means: a number is used again, so its start time goes with it.

Reads /proc where there is one; elsewhere only whether a process of that number lives.
"""

import os
from pathlib import Path

import msgspec

_START_FIELD = 19
_STATE_FIELD = 0


class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process of one machine."""

    pid: int
    start: int = 0
    """Clock ticks after boot when it started; 0 where the system does not tell."""

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (one that only waits to be collected does not)."""
        fields = _stat(self.pid)
        if fields is not None:
            same = self.start in (0, int(fields[_START_FIELD]))
            return same and fields[_STATE_FIELD] not in {"Z", "X"}
        if Path("/proc/self/stat").exists():
            return False
        return _answers(self.pid)


def identify(pid: int) -> ProcessIdentity:
    """Return the identity of a process that lives now."""
    fields = _stat(pid)
    return ProcessIdentity(pid=pid, start=int(fields[_START_FIELD]) if fields else 0)


def descendants(pid: int) -> list[int]:
    """Return every living process below `pid`, children after their parents; [] without /proc."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(entry.name))
        if fields is not None:
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, from the state on."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may hold any character.
    return text.rpartition(")")[2].split()


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
