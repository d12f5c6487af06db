"""Parquet: a split is one row group, or several small neighbours; samples are dicts of Python values.

Only the footer is read to cut a file. A row group is decoded in bounded batches and kept as Arrow
(`ArrowRows`), so a large one with nested columns costs little memory. Values are as pyarrow's
`to_pylist` gives them, except that time stamps never depend on pandas being installed.
Writing: a key that a sample lacks is stored, and read back, as null.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from tools_utilities.arrow_files import (
    KeptRanges,
    RangeFile,
    as_record_error,
    chosen_columns,
    described,
)
from tools_utilities.arrow_rows import ArrowRows, python_rows
from tools_utilities.arrow_tables import write_tables
from tools_utilities.errors import RecordError, UsageError
from tools_utilities.kept_rows import kept_rows
from tools_utilities.object_store import ObjectInfo
from tools_utilities.parquet_pages import Read, check_rows, most_rows, no_bomb
from tools_utilities.shard_format import (
    Columns,
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_BATCH_BYTES = 2 << 20
_PROBE_ROWS = 64
_FEW_ROWS = 1024
_BUFFER_BYTES = 1 << 20
_SHOWN_ROWS = 1024
_OFTEN = 2
_WRITER_BYTES = 12 << 20
"""A row group of 4 MiB, and what encoding it takes."""


class Parquet:
    """The format `parquet`."""

    name = "parquet"
    suffixes: tuple[str, ...] = (".parquet",)
    names = None
    compressible = False

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],
        target_bytes: int,
        options: ReadOptions,
    ) -> list[Split]:
        """Cut at row groups, from the footer; neighbours are joined up to `target_bytes`.

        Raises:
            RecordError: the footer cannot be read.
        """
        return self.plan_described(info, read, target_bytes, options)[0]

    def plan_described(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],
        target_bytes: int,
        options: ReadOptions,
    ) -> tuple[list[Split], Columns | None]:
        """Return the splits and the columns, both from the footer.

        Raises:
            RecordError: the footer cannot be read.
        """
        if info.size_bytes == 0:
            return [Split(key=info.key, start=0, end=0, num_bytes=0, num_samples=0)], None
        with as_record_error(info.key, "Parquet"):
            metadata = _footer(RangeFile(read, info.size_bytes))
            check_rows(info.key, metadata.num_rows, info.size_bytes)
            columns = described(metadata.schema.to_arrow_schema(), options)
        return _join_row_groups(info, metadata, target_bytes), columns

    def open_split(self, shard: ShardBytes, split: Split, options: ReadOptions) -> "ParquetSplit":
        """Decode the row groups of a split.

        Raises:
            RecordError: the file cannot be read, or lacks a column asked for.
        """
        return ParquetSplit(shard, split, options)

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write row groups of about 4 MiB; the first one settles the columns and their types.

        Raises:
            RecordError: a later sample does not fit them.
        """
        return self.write_within(samples, file, _WRITER_BYTES)

    def write_within(self, samples: Iterable[Sample], file: BinaryIO, memory_bytes: int) -> int:
        """Write smaller row groups where `memory_bytes` asks for it."""
        import pyarrow.parquet as pq

        return write_tables(
            samples,
            "Parquet",
            lambda first: pq.ParquetWriter(
                file,
                first.schema,
                compression="zstd",
                use_dictionary=dictionary_columns(first),  # type: ignore[arg-type]  # or their names
            ),
            lambda writer, table: writer.write_table(table, row_group_size=1 << 30),
            table_bytes=min(_WRITER_BYTES, memory_bytes) // 3,
        )


def dictionary_columns(first: "pa.Table") -> bool | list[str]:
    """Return the columns whose values come again often enough to be kept once; True: all may be.

    A fifth of the encoder's time goes into dictionaries of long texts, which are given up when full.
    """
    import pyarrow as pa

    if not first.num_rows or any(pa.types.is_nested(kind) for kind in first.schema.types):
        return True  # of what is nested the values are not to be told by its rows
    shown = first.slice(0, _SHOWN_ROWS)
    return [
        name
        for name in shown.schema.names
        if len(shown.column(name).unique()) * _OFTEN <= shown.num_rows
    ]


class ParquetSplit:
    """The rows of some row groups, by index. `first_row` counts from 0 in the file."""

    def __init__(self, shard: ShardBytes, split: Split, options: ReadOptions) -> None:
        self.key = split.key
        self.skipped: dict[str, int] = {}
        self.first_row = 0
        self.rows = _empty_rows()
        if split.end > split.start:
            with as_record_error(split.key, "Parquet"):
                self.rows, self.first_row = kept_rows(
                    shard, split, options, lambda: _load(shard, split, options)
                )
        self.num_samples = self.rows.num_rows
        self.num_bytes = self.rows.held_bytes

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return the rows at `indices`; only they are turned into Python values."""
        try:
            return python_rows(self.rows.take(indices))
        except ValueError:
            for index in indices:
                self._read_one(index)
            raise

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Refuse: a Parquet row has no bytes of its own."""
        raise UsageError(
            f"{self.key}: a Parquet row has no bytes of its own ({len(indices)} asked for)",
            hint="Leave out deserialize=; samples are dicts already.",
        )

    def bad_row(self, index: int, reason: str, **detail: Any) -> RecordError:
        """Return the error of one row; rows count from 1 in the file."""
        row = self.first_row + index + 1
        return RecordError(
            f"{self.key}: row {row}: {reason}",
            key=self.key, record=row, row=row, index=index, reason=reason, **detail,
        )  # fmt: skip

    def check_rows(self) -> None:
        """Make sure that the rows may be read without pyarrow's help; decoded ones are sound."""

    def close(self) -> None:
        """Free the decoded rows."""
        self.rows.close()

    def _read_one(self, index: int) -> None:
        try:
            python_rows(self.rows.take([index]))
        except ValueError as error:
            raise self.bad_row(index, f"a value cannot be read: {error}") from error


def _footer(file: Any) -> "pq.FileMetaData":
    import pyarrow.parquet as pq

    return pq.read_metadata(file)


def _join_row_groups(
    info: ObjectInfo, metadata: "pq.FileMetaData", target_bytes: int
) -> list[Split]:
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    if not groups:
        return [_split_of(info, 0, 0, info.size_bytes, 0)]
    sizes = [group.total_byte_size for group in groups]
    # Sizes in the footer are before compression; the object's own size says how much that saves.
    stored = info.size_bytes / max(1, sum(sizes))
    splits: list[Split] = []
    start = rows = 0
    num_bytes = 0.0
    for index, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        if index > start and num_bytes + size * stored > target_bytes:
            splits.append(_split_of(info, start, index, num_bytes, rows))
            start, rows, num_bytes = index, 0, 0.0
        rows += group.num_rows
        num_bytes += size * stored
    splits.append(_split_of(info, start, len(groups), num_bytes, rows))
    return splits


def _split_of(info: ObjectInfo, start: int, end: int, num_bytes: float, rows: int) -> Split:
    return Split(key=info.key, start=start, end=end, num_bytes=round(num_bytes), num_samples=rows)


def _empty_rows() -> ArrowRows:
    import pyarrow as pa

    return ArrowRows(pa.schema([]), [])


def _load(shard: ShardBytes, split: Split, options: ReadOptions) -> tuple[ArrowRows, int]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    # Page headers are looked at before anything is decoded; a shard that is not here is read once.
    read = shard.read if shard.path is not None else KeptRanges(shard.read).read
    source = _open_source(shard, read)
    with pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
        columns = chosen_columns(split.key, file.schema_arrow.names, options)
        schema = file.schema_arrow
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
        first_row = _num_rows(file, range(split.start))
        groups = range(split.start, split.end)
        key, size = split.key, shard.info.size_bytes
        check_rows(key, _num_rows(file, groups), size)
        most = most_rows(key, file.metadata, groups, read, size, columns)
        rows = ArrowRows(schema, no_bomb(key, _batches(file, split, columns, most), size))
    source.close()
    return rows, first_row


def _open_source(shard: ShardBytes, read: Read) -> Any:
    """Return a file for pyarrow: what is on disk is read there, since mapped pages count as memory."""
    import pyarrow as pa

    if shard.path is not None:
        with contextlib.suppress(FileNotFoundError):
            return pa.OSFile(str(shard.path), "rb")
        # An entry gets its own name in the cache while it is in use; what is mapped stays what it is.
    return RangeFile(read, shard.info.size_bytes)


def _num_rows(file: "pq.ParquetFile", groups: Iterable[int]) -> int:
    return sum(file.metadata.row_group(i).num_rows for i in groups)


def _batches(
    file: "pq.ParquetFile", split: Split, columns: list[str] | None, most: int
) -> Iterator["pa.RecordBatch"]:
    """Yield bounded batches, of `most` rows: how wide rows are once decoded is seen on the first few."""
    wanted: dict[str, Any] = {
        "row_groups": list(range(split.start, split.end)),
        "columns": columns,
        "use_threads": False,
    }
    batch_rows = min(most, _FEW_ROWS)
    if _num_rows(file, wanted["row_groups"]) > _FEW_ROWS:
        probe = next(iter(file.iter_batches(batch_size=min(most, _PROBE_ROWS), **wanted)))
        row_bytes = max(1, probe.nbytes // max(1, probe.num_rows))
        batch_rows = max(1, min(most, 1 << 16, _BATCH_BYTES // row_bytes))
    for batch in file.iter_batches(batch_size=batch_rows, **wanted):
        if batch.num_rows:
            yield batch


SHARD_FORMAT: ShardFormat = Parquet()
