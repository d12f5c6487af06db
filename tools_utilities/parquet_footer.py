"""Where the column chunks of a Parquet file lie, from its footer (apache/parquet-format, parquet.thrift).

pyarrow's own view of a column chunk (`RowGroupMetaData.column`) checks more than is asked for, and ends
the process where a damaged file fails that check.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from tools_utilities.errors import RecordError
from tools_utilities.thrift_compact import (
    I32,
    I64,
    LIST,
    STRUCT,
    ThriftError,
    fields,
    integer,
    struct,
    structs,
)

_TAIL_BYTES = 8
"""Size of the footer, and the magic."""
_CODECS = ("uncompressed", "snappy", "gzip", "lzo", "brotli", "lz4_raw", "zstd", "lz4_raw")
"""As `pyarrow.Codec` names them."""
_META = {
    **{(number, I64): integer(64) for number in (5, 7, 9, 11)},
    (4, I32): integer(32),
}
_COLUMN = {(3, STRUCT): struct(_META)}
_GROUP = {(1, LIST): structs(_COLUMN)}
_FILE = {(4, LIST): structs(_GROUP)}


class ColumnChunk(NamedTuple):
    """One column of one row group: `num_bytes` of pages from byte `start` of the file."""

    start: int
    num_bytes: int
    num_values: int
    codec: str


def column_chunks(
    key: str,
    read: Callable[[int, int], bytes | memoryview],
    size_bytes: int,
    num_columns: int,
) -> tuple[tuple[ColumnChunk, ...], ...]:
    """Return the chunks of each row group of a file, one for each of `num_columns`.

    Raises:
        RecordError: the footer is damaged.
    """
    end = size_bytes - _TAIL_BYTES
    length = int.from_bytes(bytes(read(max(0, end), max(0, end) + 4)), "little")
    try:
        return _chunks(bytes(read(max(0, end - length), max(0, end))), num_columns)
    except (ThriftError, IndexError, KeyError, ValueError) as error:
        raise RecordError(
            f"{key}: not a readable Parquet file: its footer is damaged",
            hint="Check that the file is complete (a cut one cannot be read at all).",
            key=key,
            reason="damaged",
        ) from error


@lru_cache(maxsize=4)  # every split of a file asks
def _chunks(footer: bytes, num_columns: int) -> tuple[tuple[ColumnChunk, ...], ...]:
    file, _ = fields(memoryview(footer), 0, _FILE)
    groups = [group.get(1, ()) for group in file[4]]
    if any(len(group) != num_columns for group in groups):
        raise ValueError(num_columns)
    return tuple(tuple(_chunk(column[3]) for column in group) for group in groups)


def _chunk(meta: dict[int, Any]) -> ColumnChunk:
    # Zero where there is no dictionary, and with some writers where there is one.
    start = min((place for place in (meta.get(11), meta[9]) if place), default=0)
    chunk = ColumnChunk(start, meta[7], meta[5], _CODECS[meta[4]])
    if min(start, chunk.num_bytes, chunk.num_values, meta[4]) < 0:
        raise ValueError(chunk)
    return chunk
