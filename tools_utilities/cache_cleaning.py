"""What a cache folder holds, and its removal: only files that Quark made, known by their names.

What was learned of datasets (counts, listings) goes with it: losing it costs a recount. A file that somebody reads stays; so does everything whose name is not one of the cache's own, the
folders and the count.
"""

import contextlib
import os
import re
from pathlib import Path

import msgspec

from tools_utilities.cache_folder import COUNTS_FOLDER, SharedModes
from tools_utilities.cache_ledger import (
    WORKING,
    CacheFile,
    CacheLayout,
    cached_files,
    locked_ledger,
    own_files,
)
from tools_utilities.file_locks import HeldFile

_ID = "[0-9a-f]{32}"
_LEARNED = re.compile(
    rf"({_ID}-{_ID}(\.counts|-[0-9a-f]{{16}}\.labels)|{_ID}\.listing)"
    rf"|\.{_ID}(-{_ID})?(-[0-9a-f]{{16}})?\.(counts|labels|listing)\.\d+\.tmp"
)


class CacheContents(msgspec.Struct, frozen=True, kw_only=True):
    """What there is to remove."""

    folder: str
    """The one that holds the cache's files, absolute."""
    num_files: int
    num_bytes: int
    num_learned: int = 0
    """Files of counts and listings."""


class Cleaned(msgspec.Struct, frozen=True, kw_only=True):
    """What was removed."""

    num_files: int
    num_bytes: int
    num_in_use: int
    """Files that a process reads; they stay."""
    num_learned: int = 0
    """Files of counts and listings."""


def cache_contents(folder: Path) -> CacheContents:
    """Return what `clean_cache` would remove; changes nothing."""
    layout = CacheLayout(folder)
    files = cached_files(layout) if layout.objects.is_dir() else []
    return CacheContents(
        folder=str(layout.root),
        num_files=len(files),
        num_bytes=sum(file.evictable.num_bytes for file in files),
        num_learned=len(_learned(folder)),
    )


def leftovers(folder: Path) -> list[tuple[Path, int]]:
    """Return the working files (and their bytes) of downloads that died; changes nothing."""
    layout = CacheLayout(folder)
    if not layout.working.is_dir():
        return []
    found = []
    for path, status in own_files(layout.working, WORKING):
        with contextlib.suppress(OSError), HeldFile(path, os.O_RDONLY) as held:
            # Whoever is alive holds the lock of what it writes.
            if held.try_lock(exclusive=True):
                found.append((path, status.st_size))
    return found


def clean_cache(folder: Path) -> Cleaned:
    """Remove every cached object that nobody reads, what dead downloads left, and what was learned.

    Raises:
        TimeoutError: another process kept the cache's count locked.
        OSError: the folder may not be changed.
    """
    layout = CacheLayout(folder)
    learned = _learned(folder)
    for path in learned:
        path.unlink(missing_ok=True)
    if not layout.objects.is_dir():
        return Cleaned(num_files=0, num_bytes=0, num_in_use=0, num_learned=len(learned))
    num_files = num_bytes = num_in_use = 0
    with locked_ledger(layout, SharedModes(folder)) as ledger:
        for file in ledger.recount():
            if not _remove(file):
                num_in_use += 1
                continue
            num_files += 1
            num_bytes += file.evictable.num_bytes
            ledger.add(-file.evictable.num_bytes)
    return Cleaned(
        num_files=num_files,
        num_bytes=num_bytes,
        num_in_use=num_in_use,
        num_learned=len(learned),
    )


def _learned(folder: Path) -> list[Path]:
    """Return the files of counts, of classes and of listings."""
    place = folder / COUNTS_FOLDER
    if place.is_symlink() or not place.is_dir():
        return []
    return sorted(path for path, _ in own_files(place, _LEARNED))


def _remove(file: CacheFile) -> bool:
    """Remove a file that nobody holds; tell whether it is gone."""
    with contextlib.suppress(FileNotFoundError), HeldFile(file.path, os.O_RDONLY) as held:
        if not held.try_lock(exclusive=True):
            return False
        if held.is_at(file.path):
            file.path.unlink()
    return True
