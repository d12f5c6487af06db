"""The one count of a cache folder's bytes, shared by all processes under one lock.

The count may be too high after a crash, never too low: bytes are added before they are written and
taken off after they are gone. `recount` sets it right by looking.
"""

import logging
import os
import re
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tools_utilities.cache_folder import SharedModes
from tools_utilities.eviction import Evictable
from tools_utilities.file_locks import HeldFile

_LOGGER = logging.getLogger(__name__)
_LAYOUT = "quark-cache-1"
LOCK_SECONDS = 30.0
_COUNT_BYTES = 8
_FANS = "0123456789abcdef"
_SPARE = "-spare"
_ENTRY = re.compile(r"([0-9a-f]{40})-(\d+)-([0-9a-f]{8})(?:-spare)?")
WORKING = re.compile(r"[0-9a-f]{40}(\.lock|-[0-9a-f-]+\.tmp)")
ANNOUNCEMENT = re.compile(r"\d+-[0-9a-f]{32}")
_SPOILED = re.compile(r"[0-9a-f]{40}-\d+-[0-9a-f]{8}(?:-spare)?\.[0-9a-f]{32}")


class CacheLayout:
    """Where things lie in a cache folder, and which names are the cache's own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / _LAYOUT
        self.objects = self.root / "objects"
        self.working = self.root / "working"
        self.quarantine = self.root / "quarantine"
        self.order = self.root / "order"
        self.ledger = self.root / "ledger"

    def create(self, modes: SharedModes) -> None:
        """Make the folders that are missing."""
        for path in (self.root, self.objects, self.working, self.quarantine, self.order):
            modes.make_folder(path)
        for fan in _FANS:
            modes.make_folder(self.objects / fan)

    def fan(self, digest: str) -> Path:
        """Return the folder of an object's entry."""
        return self.objects / digest[0]

    def entry(self, digest: str, num_bytes: int, crc32c: int, *, spare: bool = False) -> Path:
        """Return the path of an entry; its name says what its content must be, and whether it is spare."""
        return self.fan(digest) / f"{digest}-{num_bytes}-{crc32c:08x}{_SPARE if spare else ''}"

    def lock(self, digest: str) -> Path:
        """Return the lock file of whoever downloads an object."""
        return self.working / f"{digest}.lock"

    def new_temporary(self, digest: str) -> Path:
        """Return an unused name for a download."""
        return self.working / f"{digest}-{os.getpid():x}-{uuid.uuid4().hex}.tmp"

    def new_quarantine(self, entry: Path) -> Path:
        """Return an unused name for a bad entry."""
        return self.quarantine / f"{entry.name}.{uuid.uuid4().hex}"


class CacheFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of the cache, as a walk finds it."""

    path: Path
    evictable: Evictable
    spoiled: bool = False
    spare: bool = False
    """It can be made again from another entry."""


def own_files(folder: Path, names: re.Pattern[str]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the regular files of a folder that carry one of the cache's names, and no others."""
    with os.scandir(folder) as found:
        for entry in found:
            if names.fullmatch(entry.name):
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISREG(status.st_mode):
                    yield Path(entry.path), status


def parse_entry(name: str) -> tuple[str, int, int] | None:
    """Return (digest, bytes, crc32c) from the name of an entry."""
    found = _ENTRY.fullmatch(name)
    return (found[1], int(found[2]), int(found[3], 16)) if found else None


def is_spare(name: str) -> bool:
    """Tell whether an entry can be made again from another one, by its name."""
    return name.endswith(_SPARE)


class Ledger:
    """The count, for whoever has locked it."""

    def __init__(self, layout: CacheLayout, file: HeldFile) -> None:
        self._layout = layout
        self._file = file
        count = os.pread(file.fd, _COUNT_BYTES, 0)
        self.used_bytes = int.from_bytes(count, "little")
        self.is_new = len(count) < _COUNT_BYTES

    def add(self, num_bytes: int) -> None:
        """Change the count."""
        self._set(self.used_bytes + num_bytes)

    def _set(self, used_bytes: int) -> None:
        self.used_bytes = max(used_bytes, 0)
        os.pwrite(self._file.fd, self.used_bytes.to_bytes(_COUNT_BYTES, "little"), 0)

    def recount(self) -> list[CacheFile]:
        """Delete what dead downloads left, count what there is, and return what could be evicted."""
        self._sweep()
        kept = ((self._layout.working, WORKING), (self._layout.order, ANNOUNCEMENT))
        total = sum(
            status.st_size for folder, names in kept for _, status in own_files(folder, names)
        )
        files = cached_files(self._layout)
        self._set(total + _COUNT_BYTES + sum(file.evictable.num_bytes for file in files))
        return files

    def _sweep(self) -> None:
        kept = ((self._layout.working, WORKING), (self._layout.order, ANNOUNCEMENT))
        for path in [path for folder, names in kept for path, _ in own_files(folder, names)]:
            try:
                with HeldFile(path, os.O_RDONLY) as file:
                    if file.try_lock(exclusive=True) and file.is_at(path):
                        path.unlink()
            except (FileNotFoundError, PermissionError):
                continue  # finished meanwhile, or another user's


def cached_files(layout: CacheLayout) -> list[CacheFile]:
    """Return every entry, and every one set aside, that a cache's folders hold."""
    files = [
        _cache_file(path, status, spoiled=True)
        for path, status in own_files(layout.quarantine, _SPOILED)
    ]
    for fan in _FANS:
        files += [
            _cache_file(path, status, spoiled=False)
            for path, status in own_files(layout.objects / fan, _ENTRY)
        ]
    return files


def _cache_file(path: Path, status: os.stat_result, *, spoiled: bool) -> CacheFile:
    evictable = Evictable(
        name=path.name,
        digest=path.name[:40],
        num_bytes=status.st_size,
        used_ns=status.st_atime_ns,
    )
    spare = not spoiled and is_spare(path.name)
    return CacheFile(path=path, evictable=evictable, spoiled=spoiled, spare=spare)


def evict_file(file: CacheFile) -> bool:
    """Delete an entry that nobody has open."""
    try:
        with HeldFile(file.path, os.O_RDONLY) as held:
            if not held.try_lock(exclusive=True) or not held.is_at(file.path):
                return False
            file.path.unlink()
    except OSError as error:
        _LOGGER.debug("cannot evict %s: %s", file.path, error)
        return False
    return True


@contextmanager
def locked_ledger(
    layout: CacheLayout, modes: SharedModes, wait_seconds: float = LOCK_SECONDS
) -> Iterator[Ledger]:
    """Lock the count for a moment; every change of the folder's files happens inside.

    Raises:
        TimeoutError: another process kept it locked.
    """
    with HeldFile(layout.ledger, os.O_RDWR | os.O_CREAT) as file:
        modes.apply(file.fd)
        file.lock(wait_seconds)
        ledger = Ledger(layout, file)
        if ledger.is_new:
            ledger.recount()
        yield ledger
