"""Which process a pid means: a number is used again, so its start time goes with it.

Reads /proc where there is one; elsewhere only whether a process of that number lives.
"""

import functools
import hashlib
import os
import socket
from contextlib import suppress
from pathlib import Path

import msgspec

from tools_utilities.prepared_types import prepared

_START_FIELD = 19
_STATE_FIELD = 0


@prepared
class ProcessIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process of one machine."""

    pid: int
    start: int = 0
    """Clock ticks after boot when it started; 0 where the system does not tell."""
    machine: int = 0
    """`this_machine()` where it runs; 0: unknown."""

    @property
    def here(self) -> bool:
        """Whether its number means anything in this process's namespace."""
        return self.machine == this_machine()

    @property
    def alive(self) -> bool:
        """Whether this very process still runs (one that only waits to be collected does not).

        Only to be asked of a process that is `here`: elsewhere the number is somebody else's.
        """
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
    start = int(fields[_START_FIELD]) if fields else 0
    return ProcessIdentity(pid=pid, start=start, machine=this_machine())


@functools.cache
def this_machine() -> int:
    """Return a number below 2**63 for this host, its boot and its process namespace.

    Equal in two processes only if a process number means the same to both: machines may share a
    name, containers a boot, and after a boot numbers are given out anew.
    """
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 1) or 1


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
