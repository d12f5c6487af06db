"""What the formats made of Arrow data (Parquet, Arrow IPC) share: files, columns, errors, tables."""

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any

from tools_utilities.errors import QuarkError, RecordError
from tools_utilities.shard_format import Columns, ReadOptions, Sample

if TYPE_CHECKING:
    import pyarrow as pa

WRITE_ROWS = 256
_TABLE_BYTES = 4 << 20
_LOOKED_AT = 4
_SCALARS = frozenset({bool, float, int, type(None)})
_SCALAR_BYTES = 8
_DEEPEST = 100
"""Levels of a column: Arrow takes minutes for ten times as many."""
_TOO_DEEP = "nested too deeply"


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


def write_tables(
    samples: Iterable[Sample],
    what: str,
    open_writer: "Callable[[pa.Schema], Any]",
    write: "Callable[[Any, pa.Table], None]",
    *,
    table_bytes: int = _TABLE_BYTES,
) -> int:
    """Write samples as tables of about `table_bytes`; the first samples settle the columns and their types.

    Args:
        samples: What to write.
        what: The format, for errors.
        open_writer: Returns a writer for a schema, as a context.
        write: Writes one table with it.
        table_bytes: Of a table, in memory.

    Raises:
        RecordError: a later sample does not fit them.
    """
    import pyarrow as pa

    stream = iter(samples)
    count, pending, pending_bytes = 0, list[pa.Table](), 0
    try:
        chunk = _next_rows(stream, table_bytes)
        schema = _table(chunk, None, 0, what).schema
        with open_writer(schema) as writer:
            while chunk:
                pending.append(_table(chunk, schema, count, what))
                pending_bytes += pending[-1].nbytes
                count += len(chunk)
                chunk = _next_rows(stream, table_bytes)
                if pending_bytes >= table_bytes or not chunk:
                    write(writer, pa.concat_tables(pending))
                    pending, pending_bytes = [], 0
    except pa.ArrowException as error:
        raise _unwritable(0, count, str(error), what) from error
    except RecursionError as error:
        raise _unwritable(count, 1, _TOO_DEEP, what) from error
    return count


def _next_rows(stream: Iterator[Sample], num_bytes: int) -> list[Sample]:
    """Return the next samples, `WRITE_ROWS` at most and fewer where they hold about `num_bytes`."""
    rows, held = list[Sample](), 0
    for sample in stream:
        rows.append(sample)
        for value in sample.values():  # every value of a dataset passes here
            held += len(value) if type(value) is str else _about_bytes(value)
        if len(rows) >= WRITE_ROWS or held >= num_bytes:
            break
    return rows


def _about_bytes(value: Any) -> int:
    if type(value) in _SCALARS:
        return _SCALAR_BYTES
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, list | tuple) and value:
        shown = value[:_LOOKED_AT]
        return (8 + sum(map(_about_bytes, shown)) // len(shown)) * len(value)
    if isinstance(value, dict):
        return 64 + sum(map(_about_bytes, value.values()))
    return int(getattr(value, "nbytes", _SCALAR_BYTES))


def _table(samples: list[Sample], schema: "pa.Schema | None", first: int, what: str) -> "pa.Table":
    import pyarrow as pa

    shapes = dict.fromkeys(map(tuple, samples))  # few, so that not every name is looked at
    names = list(dict.fromkeys(chain.from_iterable(shapes)))
    try:
        if schema is None:
            if samples and not names:  # pyarrow would write a table without rows
                raise _unwritable(first, len(samples), "they have no fields", what)
            if _is_deep(samples):
                raise _unwritable(first, len(samples), _TOO_DEEP, what)
            return pa.table({name: [sample.get(name) for sample in samples] for name in names})
        if new := [name for name in names if name not in schema.names]:
            at = next(at for at, sample in enumerate(samples) if any(map(sample.__contains__, new)))
            raise _unwritable(first + at, 1, f"not in the first ones: {', '.join(new)}", what)
        table = pa.Table.from_pylist(samples, schema=schema)
        _refuse_lost_fields(samples, schema, first, what)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        first, count = _narrowed(samples, schema, first)
        raise _unwritable(first, count, str(error), what) from error
    return table


def _is_deep(samples: list[Sample]) -> bool:
    """Say whether a value is nested deeper than columns should be."""
    level: list[Any] = list(samples)
    for _ in range(_DEEPEST):
        if not level:
            return False
        level = [
            inner
            for one in level
            for inner in (one.values() if isinstance(one, dict) else one)
            if isinstance(inner, dict | list | tuple)
        ]
    return True


def _refuse_lost_fields(samples: list[Sample], schema: "pa.Schema", first: int, what: str) -> None:
    import pyarrow as pa

    for field in schema:
        if pa.types.is_nested(field.type):
            for at, sample in enumerate(samples):
                if lost := _lost_fields(sample.get(field.name), field.type, field.name):
                    raise _unwritable(first + at, 1, f"not in the first ones: {lost}", what)


def _lost_fields(value: Any, kind: "pa.DataType", path: str) -> str:
    """Return the first inner field that a type has no place for: pyarrow leaves it out in silence."""
    import pyarrow as pa

    if pa.types.is_struct(kind) and isinstance(value, dict):
        known = {field.name: field.type for field in kind}
        found = (
            _lost_fields(inner, known[name], f"{path}.{name}")
            if name in known
            else f"{path}.{name}"
            for name, inner in value.items()
        )
        return next(filter(None, found), "")
    inside = getattr(kind, "value_type", None)
    if inside is not None and pa.types.is_nested(inside) and isinstance(value, list | tuple):
        return next(filter(None, (_lost_fields(one, inside, f"{path}[]") for one in value)), "")
    return ""


def _narrowed(samples: list[Sample], schema: "pa.Schema | None", first: int) -> tuple[int, int]:
    """Return the first and the number of the samples that do not fit: the one, where it can be told."""
    import pyarrow as pa

    if schema is not None:
        for at, sample in enumerate(samples):
            try:
                pa.Table.from_pylist([sample], schema=schema)
            except (pa.ArrowException, TypeError, OverflowError):
                return first + at, 1
    return first, len(samples)


def _unwritable(first: int, num_samples: int, why: str, what: str) -> RecordError:
    last = first + max(0, num_samples - 1)
    which = f"sample {first}" if first == last else f"samples {first} to {last}"
    return RecordError(
        f"{which} cannot be written as {what}: {why}",
        hint="Give every sample the same columns and types, or write jsonl.",
        record=first + 1,
    )
