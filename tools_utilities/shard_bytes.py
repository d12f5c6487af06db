"""ShardBytes for what is already at hand: bytes in memory, or a local file mapped in place."""

import mmap
from pathlib import Path

from tools_utilities.cached_file import bring_range, forget_range
from tools_utilities.errors import DataNotFoundError, IntegrityError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.open_files import check_open_files


class MemoryShardBytes:
    """An object whose bytes are in memory."""

    path: Path | None = None

    def __init__(
        self, key: str, data: bytes | memoryview, *, info: ObjectInfo | None = None
    ) -> None:
        self.info = info or ObjectInfo(key=key, size_bytes=len(data))
        self._view = memoryview(data)

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), clipped to the end; no copy."""
        return self._view[start:end]

    def close(self) -> None:
        """Let go of the bytes; views already given stay valid."""
        self._view = memoryview(b"")


class FileShardBytes:
    """A local file read where it lies: mapped, never copied, never changed or deleted."""

    def __init__(self, path: Path, *, info: ObjectInfo | None = None) -> None:
        """Map `path`; `info` defaults to the path as key and the size found.

        Raises:
            DataNotFoundError: there is no such file.
            IntegrityError: the file has another size than `info` promises.
        """
        self.path: Path | None = path
        try:
            with path.open("rb") as file:
                size_bytes = file.seek(0, 2)
                mapped = (
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size_bytes else None
                )
        except FileNotFoundError as error:
            raise DataNotFoundError(f"{path}: no such file", key=str(path)) from error
        except OSError as error:
            check_open_files(error)
            raise
        self.info = info or ObjectInfo(key=str(path), size_bytes=size_bytes)
        if self.info.size_bytes != size_bytes:
            raise IntegrityError(
                f"{self.info.key}: {size_bytes} bytes in {path}, {self.info.size_bytes} expected",
                key=self.info.key,
            )
        self._mapped = mapped
        self.view = memoryview(b"" if mapped is None else mapped)

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), clipped to the end; no copy."""
        return self.view[start:end]

    def forget(self, start: int, end: int) -> None:
        """Take bytes [start, end) out of this process's memory until they are read again."""
        if self._mapped is not None:
            forget_range(self._mapped, start, end)

    def bring(self, start: int, end: int) -> None:
        """Map the pages of bytes [start, end) now."""
        if self._mapped is not None:
            bring_range(self._mapped, start, end)

    def touch(self) -> None:
        """Nothing is recorded: the file is its owner's."""

    def forget_pages(self) -> None:
        """Take what was read out of this process's memory; it is read again when used again.

        For a single pass over a file larger than memory.
        """
        self.forget(0, self.info.size_bytes)

    def close(self) -> None:
        """Let go of the mapping; it goes when the last view given out does."""
        self._mapped = None
        self.view = memoryview(b"")
