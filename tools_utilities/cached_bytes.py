"""Any ShardBytes as a binary file."""

import io
from typing import Any

from tools_utilities.shard_format import ShardBytes


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
