"""What the formats made of Arrow data (Parquet, Arrow IPC) share: files, columns, errors."""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tools_utilities.errors import QuarkError, RecordError
from tools_utilities.shard_format import Columns, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa


def first_column(key: str, found: Sequence[str], wanted: Sequence[str]) -> str:
    """Return the first of `wanted` that is there.

    Raises:
        RecordError: none is; it names the file, the columns wanted and those found.
    """
    for name in wanted:
        if name in found:
            return name
    raise missing_columns(key, " or ".join(wanted), found, wanted)


def missing_columns(
    key: str, missing: str, found: Sequence[str], wanted: Sequence[str]
) -> RecordError:
    """Return the error of a file without the columns asked for."""
    return RecordError(
        f"{key}: no column {missing}; found {', '.join(found) or 'none'}",
        hint=f"Wanted: {', '.join(wanted)}.",
        key=key,
        reason="columns",
        wanted=list(wanted),
        found=list(found),
    )


class RangeFile(io.RawIOBase):
    """A read-only file over `read(start, end)`, for pyarrow; a short `read` is a short file."""

    def __init__(self, read: Callable[[int, int], bytes | memoryview], size_bytes: int) -> None:
        super().__init__()
        self._read_range = read
        self._size_bytes = size_bytes
        self._position = 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, and return the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as there are bytes, and return how many."""
        end = min(self._size_bytes, self._position + len(buffer))
        piece = self._read_range(self._position, end) if end > self._position else b""
        buffer[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)


class KeptRanges:
    """Reads ranges of an object once: what lies within one that was read is not asked for again."""

    def __init__(self, read: Callable[[int, int], bytes | memoryview]) -> None:
        self._read = read
        self._kept: list[tuple[int, int, memoryview]] = []

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), kept as long as this is."""
        for first, last, view in self._kept:
            if first <= start and end <= last:
                return view[start - first : end - first]
        view = memoryview(self._read(start, end))
        self._kept.append((start, start + len(view), view))
        return view


@contextmanager
def as_record_error(key: str, what: str) -> Iterator[None]:
    """Turn what pyarrow raises into a RecordError naming the file; our own errors pass."""
    import pyarrow as pa

    try:
        yield
    except QuarkError:
        raise  # a store's error is an OSError too
    except (pa.ArrowException, OSError, ValueError) as error:  # ValueError: a name is no UTF-8
        raise RecordError(
            f"{key}: not a readable {what} file: {error}",
            hint="Check that the file is complete (a cut one cannot be read at all).",
            key=key,
            reason="unreadable",
        ) from error


@contextmanager
def lean_memory() -> Iterator[None]:
    """While it lasts, Arrow gives memory back at once: its own pool keeps some for every thread.

    300 MB of records to 64 Parquet files: 486 MB at most, 965 MB with the pool.
    """
    import pyarrow as pa

    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def chosen_columns(key: str, found: list[str], options: ReadOptions) -> list[str] | None:
    """Return the columns to read, in the order of the file; None: all.

    Raises:
        RecordError: one asked for is missing, or a name is there twice.
    """
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise RecordError(f"{key}: columns named twice: {', '.join(twice)}", key=key)
    if options.first_of:
        return [first_column(key, found, options.first_of)]
    if options.columns is None:
        return None
    needed = [name for name in options.columns if name not in options.optional_columns]
    missing = [name for name in needed if name not in found]
    if missing:
        raise missing_columns(key, " and ".join(missing), found, options.columns)
    return [name for name in found if name in options.columns]


def described(schema: "pa.Schema", options: ReadOptions) -> Columns:
    """Return name and type of the columns that are read; one that is missing is told when it is opened."""
    names: Sequence[str] = schema.names
    if options.first_of:
        names = [name for name in options.first_of if name in names][:1]
    elif options.columns is not None:
        names = [name for name in options.columns if name in names]
    return tuple(
        (name, str(kind))
        for name, kind in zip(schema.names, schema.types, strict=True)
        if name in names
    )
