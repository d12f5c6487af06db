"""ShardBytes over a cache entry, and any ShardBytes as a binary file."""

import io
from pathlib import Path
from typing import Any

from tools_utilities.cached_file import CachedFile
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import ShardBytes


class CachedShardBytes:
    """The mapped, leased entry of one object."""

    path: Path | None

    def __init__(self, info: ObjectInfo, file: CachedFile) -> None:
        self.info = info
        self.path = file.path
        self._file = file

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), clipped to the end; no copy."""
        return self._file.view[start:end]

    def close(self) -> None:
        """Let the entry be evicted; slices given out stay valid."""
        self._file.close()


class ShardFile(io.RawIOBase):
    """An object as a seekable binary file; closing it closes the object's bytes."""

    def __init__(self, shard: ShardBytes) -> None:
        super().__init__()
        self.name = shard.info.key
        self._shard = shard
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; beyond the end is allowed, before the start is not."""
        base = {
            io.SEEK_SET: 0,
            io.SEEK_CUR: self._position,
            io.SEEK_END: self._shard.info.size_bytes,
        }[whence]
        if base + offset < 0:
            raise ValueError(f"seek to {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the current position; 0 at the end."""
        target = memoryview(buffer).cast("B")
        piece = self._shard.read(self._position, self._position + len(target))
        target[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)

    def close(self) -> None:
        """Close file and object."""
        if not self.closed:
            self._shard.close()
        super().close()
