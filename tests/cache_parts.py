"""A cache with made-up objects, and a small disk for it."""

import hashlib
import os
from pathlib import Path

from tools_utilities.cache_entry import EntryId, entry_id
from tools_utilities.cached_file import CachedFile
from tools_utilities.checksum import crc32c
from tools_utilities.disk_cache import DiskCache
from tools_utilities.object_store import ObjectInfo

MB = 1_000_000


class SmallDisk:
    """A disk of a given size with something else on it; `full` refuses all allocation."""

    def __init__(self, total: int, folder: Path, others: int = 0, *, full: bool = False):
        self.total, self.folder, self.others, self.full = total, folder, others, full

    def free_and_total_bytes(self, folder: Path) -> tuple[int, int]:
        return self.total - self.others - folder_bytes(self.folder), self.total

    def allocate(self, fd: int, num_bytes: int) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        os.ftruncate(fd, num_bytes)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def folder_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def entries(folder: Path) -> list[Path]:
    return [path for path in files(folder) if path.parent.parent.name == "objects"]


def content(key: str, size: int) -> bytes:
    return (hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest() * (size // 32 + 1))[
        :size
    ]


def identity(key: str, size: int = MB, **changes: str) -> EntryId:
    info = ObjectInfo(key=key, size_bytes=size, etag=changes.pop("etag", "v1"), **changes)
    found = entry_id("s3://bucket", info)
    assert found is not None
    return found


def store(cache: DiskCache, key: str, size: int = MB) -> bool:
    reservation = cache.reserve(identity(key, size))
    if reservation is None:
        return False
    data = content(key, size)
    reservation.write(0, data)
    reservation.publish(crc32c(data)).close()
    return True


def lease(cache: DiskCache, key: str) -> CachedFile:
    found = cache.open(identity(key))
    assert found is not None
    return found


def has(cache: DiskCache, key: str, size: int = MB) -> bool:
    found = cache.open(identity(key, size))
    if found is None:
        return False
    assert bytes(found.view) == content(key, size)
    found.close()
    return True


def held(cache: DiskCache, keys: str) -> str:
    return "".join(key for key in keys if has(cache, key))
