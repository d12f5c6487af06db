"""One entry of the cache as a reader holds it: mapped, and leased against eviction."""

import contextlib
import errno
import mmap
import os
import sys
import time
from collections import OrderedDict
from pathlib import Path
from threading import Lock

from tools_utilities.checksum import file_crc32c
from tools_utilities.file_locks import HeldFile

_CHECKED_KEPT = 16_384
FAULT_BYTES = 64 << 10
"""One touch of a mapped file makes the kernel map about this much around it."""
_TOUCHED_BYTES = 16 << 20
_MADV_POPULATE_READ = 22
"""Of Linux; the module `mmap` does not name it yet."""


class CheckedFiles:
    """Which entries' contents this process has checked, by digest; a file that was changed is another.

    Of very many the last opened are known: to check one again is cheaper than to remember all.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, tuple[str, tuple[int, int, int]]] = OrderedDict()
        self._lock = Lock()

    def add(self, digest: str, name: str, status: os.stat_result) -> None:
        """Note an entry's file as it was when its content was right."""
        with self._lock:
            self._known[digest] = (name, _version(status))
            self._known.move_to_end(digest)
            if len(self._known) > _CHECKED_KEPT:
                self._known.popitem(last=False)

    def has(self, digest: str, name: str, status: os.stat_result) -> bool:
        """Tell whether it has been checked and is still the same."""
        return self._known.get(digest) == (name, _version(status))

    def name_of(self, digest: str) -> str | None:
        """Return the name under which an entry was last found: a folder of many is slow to look through."""
        known = self._known.get(digest)
        return known[0] if known is not None else None


def _version(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def why_wrong(fd: int, size_bytes: int, checksum: int) -> str | None:
    """Read an entry's file once and return why it is not to be used; None: its content is right.

    Raises:
        OSError: it could not be read for a reason that lies not in the file.
    """
    try:
        right = file_crc32c(fd, size_bytes) == checksum
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return "the disk cannot read it"
    return None if right else "its content has changed since it was written"


class LentFile:
    """A file that several users in this process have open; the last one closes it."""

    def __init__(self, file: HeldFile) -> None:
        self.fd = file.fd
        self._file = file
        self._users = 1
        self._lock = Lock()

    def hold(self) -> "LentFile":
        """Count one more user."""
        with self._lock:
            self._users += 1
        return self

    def close(self) -> None:
        """Count one user less."""
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._file.close()


class CachedFile:
    """One entry, open and leased: it is not evicted before `close`."""

    def __init__(self, file: HeldFile | LentFile, path: Path, size_bytes: int) -> None:
        self.path = path
        self._file: HeldFile | LentFile | None = file
        # The mapping outlives the file's name, so even a deleted entry stays readable.
        self._mapped = mmap.mmap(file.fd, size_bytes, prot=mmap.PROT_READ) if size_bytes else None
        self.view = memoryview(b"" if self._mapped is None else self._mapped)

    @property
    def fd(self) -> int:
        """The open file's number; -1: it is closed."""
        return -1 if self._file is None else self._file.fd

    def forget(self, start: int, end: int) -> None:
        """Take bytes [start, end) out of this process's memory until they are read again."""
        if self._mapped is not None:
            forget_range(self._mapped, start, end)

    def bring(self, start: int, end: int) -> None:
        """Map the pages of bytes [start, end) now."""
        if self._mapped is not None:
            bring_range(self._mapped, start, end)

    def touch(self) -> None:
        """Record that it was used until now: what is open is not evicted, what was long open is."""
        if self._file is not None:
            touch(self._file.fd, os.fstat(self._file.fd))

    def close(self) -> None:
        """Let the entry be evicted; slices of `view` stay valid. Safe to call twice."""
        self.view = memoryview(b"")
        self._mapped = None
        file, self._file = self._file, None
        if file is not None:
            file.close()


class TouchedBytes:
    """Counts what is read here and there of a mapping, whose pages count as this process's memory."""

    def __init__(self) -> None:
        self._num_bytes = 0

    def pass_budget(
        self, num_places: int, num_bytes: int, *, budget_bytes: int = _TOUCHED_BYTES
    ) -> bool:
        """Count bytes read in so many places, and say whether the pages are to be let go now."""
        self._num_bytes += num_bytes + num_places * FAULT_BYTES
        if self._num_bytes < budget_bytes:
            return False
        self._num_bytes = 0
        return True


class ReadPages:
    """An entry that is read here and there: past a budget the pages that were mapped are let go.

    They stay in the page cache; only this process's memory is kept small.
    """

    def __init__(self, file: CachedFile) -> None:
        self.view = file.view
        self._file = file
        self._touched = TouchedBytes()

    def touched(self, num_places: int, num_bytes: int) -> None:
        """Count what was just read; each of `num_places` maps pages around it."""
        if self._touched.pass_budget(num_places, num_bytes):
            self._file.forget(0, len(self.view))

    def close(self) -> None:
        """Let the entry be evicted; what was taken of it stays valid. Safe to call twice."""
        self.view = memoryview(b"")
        self._file.close()


def forget_range(mapped: mmap.mmap, start: int, end: int) -> None:
    """Let go of the pages that lie wholly within bytes [start, end) of a mapping, and of a last one."""
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = len(mapped) if end >= len(mapped) else end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, first, last - first)


def bring_range(mapped: mmap.mmap, start: int, end: int) -> None:
    """Map the pages of bytes [start, end) at once, where the kernel can (Linux from 5.14)."""
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    if first < min(end, len(mapped)) and sys.platform == "linux":
        with contextlib.suppress(
            OSError
        ):  # an older kernel, or a file that was cut: met where it is read
            mapped.madvise(_MADV_POPULATE_READ, first, min(end, len(mapped)) - first)


def touch(fd: int, status: os.stat_result) -> None:
    """Record a use; file systems may be mounted so that reading does not."""
    try:
        os.utime(fd, ns=(time.time_ns(), status.st_mtime_ns))
    except OSError:
        return  # another user's file, or a disk that is read-only by now: only its order of eviction suffers
