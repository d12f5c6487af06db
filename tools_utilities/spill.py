"""Bytes written once and read at random: in memory while small, else in an unlinked mapped file.

Decoded data can be many times an object's stored size (a zstd file, a Parquet row group). Kept this
way it costs at most `memory_bytes` of memory; the rest is page cache the kernel may take back.
"""

import mmap
import tempfile
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Self

from tools_utilities.cached_file import TouchedBytes, forget_range
from tools_utilities.errors import StoreError

SPILL_BYTES = 8 << 20
"""What one decoded object may hold in memory before it goes to a temporary file."""


class Spill:
    """Append with `write`, then read through `view`. Not for two threads at once."""

    def __init__(self, *, memory_bytes: int = SPILL_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._pieces: list[bytes | memoryview] = []
        self._file: IO[bytes] | None = None
        self._map: mmap.mmap | None = None
        self._touched = TouchedBytes()
        self.size_bytes = 0

    def write(self, piece: bytes | memoryview) -> int:
        """Append a piece; it must not change afterwards."""
        self.size_bytes += len(piece)
        if self._file is None and self.size_bytes > self._memory_bytes:
            self._file = tempfile.TemporaryFile(prefix="quark-spill-", buffering=0)  # noqa: SIM115 - closed by `view` or `close`
            for held in self._pieces:
                _write_all(self._file, held)
            self._pieces = []
        if self._file is None:
            self._pieces.append(piece)
        else:
            _write_all(self._file, piece)
        return len(piece)

    def view(self) -> memoryview:
        """Return everything written, read only; nothing may be written afterwards."""
        if self._file is not None:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self._file.close()
            self._file = None
        if self._map is not None:
            return memoryview(self._map)
        self._pieces = [b"".join(self._pieces)]
        return memoryview(self._pieces[0])

    def pieces(self, num_bytes: int) -> Iterator[bytes | memoryview]:
        """Yield everything written in pieces of at most `num_bytes`, once, mapping nothing.

        Pages of a mapped file count as memory of the process; a copy of one piece does not grow.
        """
        if self._file is None:
            view = self.view()
            yield from (view[start : start + num_bytes] for start in range(0, len(view), num_bytes))
            return
        self._file.seek(0)
        while piece := self._file.read(num_bytes):
            yield piece

    def passing(self, num_bytes: int) -> Iterator[memoryview]:
        """Yield what `view` shows in pieces of at most `num_bytes`, in little memory; `close` may come before.

        The pages of each are let go behind it.
        """
        return _passing(self.view(), self._map, num_bytes)

    @property
    def held_bytes(self) -> int:
        """What it holds in memory: everything while small, nothing once it is in a file."""
        return 0 if self._map is not None or self._file is not None else self.size_bytes

    def touched(self, num_places: int, num_bytes: int, *, budget_bytes: int = 16 << 20) -> None:
        """Count what was just read; past the budget, unmap the pages (they stay in page cache).

        `num_places`: how many separate places were read; each maps pages around it.
        """
        if self._map is None:
            return
        if self._touched.pass_budget(num_places, num_bytes, budget_bytes=budget_bytes):
            forget_range(self._map, 0, len(self._map))

    def close(self) -> None:
        """Let go; views still held keep their pages. Safe to call twice."""
        self._pieces = []
        self._map = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _passing(view: memoryview, mapped: mmap.mmap | None, num_bytes: int) -> Iterator[memoryview]:
    for start in range(0, len(view), num_bytes):
        yield view[start : start + num_bytes]
        if mapped is not None:
            forget_range(mapped, start, start + num_bytes)


def _write_all(file: IO[bytes], piece: bytes | memoryview) -> None:
    rest = memoryview(piece)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        folder = tempfile.gettempdir()
        raise StoreError(
            f"{folder}: cannot keep decoded data there: {error.strerror or error}",
            hint="Set TMPDIR to a folder with room, or write smaller shards.",
            path=folder,
        ) from error
