"""Arrow IPC: `.arrow`, `.ipc` and `.feather` (version 2), as files or as streams.

A file is cut into groups of record batches by its footer; a stream (what Hugging Face datasets
write) has none and is one split. Where the bytes are a mapped file or in memory, batches are used
where they lie: nothing is copied, and a batch is checked when it is first read. Values are those of
the Parquet reader. A stream must end with its end mark, or it is truncated.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, BinaryIO

from tools_utilities.arrow_claims import refuse_bombs
from tools_utilities.arrow_files import as_record_error, chosen_columns, described
from tools_utilities.arrow_messages import (
    Read,
    file_messages,
    file_tail,
    messages_as_stream,
    num_rows_at,
    stream_messages,
)
from tools_utilities.arrow_plain import has_dictionary, plain_batches, plain_schema
from tools_utilities.arrow_rows import ArrowRows
from tools_utilities.arrow_tables import write_tables
from tools_utilities.errors import RecordError, UsageError
from tools_utilities.line_index import whole_object
from tools_utilities.object_store import ObjectInfo
from tools_utilities.parquet_pages import check_rows, no_bomb
from tools_utilities.shard_format import (
    Columns,
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
)
from tools_utilities.shard_formats.parquet import ParquetSplit

if TYPE_CHECKING:
    import pyarrow as pa

_WHAT = "Arrow IPC"
_FILE_MAGIC = b"ARROW1"
_FEATHER_1_MAGIC = b"FEA1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_OLD_END_OF_STREAM = b"\0\0\0\0"
_CONTINUATION = b"\xff\xff\xff\xff"


class ArrowIpc:
    """The format `arrow`."""

    name = "arrow"
    suffixes: tuple[str, ...] = (".arrow", ".ipc", ".feather")
    names = None
    compressible = False

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],
        target_bytes: int,
        options: ReadOptions,
    ) -> list[Split]:
        """Cut a file at record batches, from its footer; a stream is one split.

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
        """Return the splits and the columns; those of a stream are known when it is opened.

        Raises:
            RecordError: the footer cannot be read.
        """
        if not info.size_bytes or not _is_file(info.key, read):
            return [whole_object(info)], None
        with as_record_error(info.key, _WHAT):
            reader = _footer(read, info.size_bytes)
            num_batches = reader.num_record_batches
            columns = described(reader.schema, options)
        pieces = max(1, min(num_batches, round(info.size_bytes / max(1, target_bytes))))
        bounds = [num_batches * i // pieces for i in range(pieces + 1)]
        shares = [info.size_bytes * i // pieces for i in range(pieces + 1)]
        splits = [
            Split(
                key=info.key,
                start=bounds[i],
                end=bounds[i + 1],
                num_bytes=shares[i + 1] - shares[i],
            )
            for i in range(pieces)
        ]
        return splits, columns

    def open_split(self, shard: ShardBytes, split: Split, options: ReadOptions) -> "ArrowIpcSplit":
        """Open record batches; in place where the bytes are mapped or in memory.

        Raises:
            RecordError: the object is cut or damaged, or lacks a column asked for.
        """
        return ArrowIpcSplit(shard, split, options)

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write a file of batches of about 4 MiB; the first samples settle the columns and types.

        Raises:
            RecordError: a later sample does not fit them.
        """
        import pyarrow as pa

        return write_tables(
            samples,
            _WHAT,
            lambda first: pa.ipc.new_file(file, first.schema),  # type: ignore[arg-type]  # any file will do
            lambda writer, table: writer.write_table(table.combine_chunks()),
        )


class ArrowIpcSplit(ParquetSplit):
    """The rows of some record batches, by index."""

    def __init__(self, shard: ShardBytes, split: Split, options: ReadOptions) -> None:
        super().__init__(shard, Split(key=split.key, start=0, end=0, num_bytes=0), options)
        self.columns: Columns | None = None
        """Of a stream, which does not say them before it is opened."""
        self._sound: set[int] | None = None  # batches that were checked; None: all were
        self._read_range: Read | None = None  # of a file
        self._start = self._size_bytes = 0
        size = shard.info.size_bytes
        if size:
            self._start, self._size_bytes = split.start, size
            with as_record_error(split.key, _WHAT):
                self.rows = self._load(shard, split, options)
        self.num_samples = self.rows.num_rows
        self.num_bytes = self.rows.held_bytes or (0 if shard.path is not None else split.num_bytes)

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return the rows at `indices`; only they are turned into Python values."""
        if self._sound is not None:
            self._check({batch for batch, _ in self.rows.locate(indices)} - self._sound)
        with as_record_error(self.key, _WHAT):
            return super().read(indices)

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Refuse: an Arrow row has no bytes of its own."""
        raise UsageError(
            f"{self.key}: an Arrow row has no bytes of its own ({len(indices)} asked for)",
            hint="Leave out deserialize=; samples are dicts already.",
        )

    def check_rows(self) -> None:
        """Check every batch, for whoever reads its buffers."""
        if self._sound is not None:
            self._check(set(range(len(self.rows.batches))) - self._sound)

    def bad_row(self, index: int, reason: str, **detail: Any) -> RecordError:
        """Return the error of one row; rows count from 1 in the file."""
        if self._read_range is not None:
            _, places = file_messages(self._read_range, self._size_bytes)
            before = places[: self._start]
            self.first_row = sum(num_rows_at(self._read_range, place) for place in before)
        return super().bad_row(index, reason, **detail)

    def close(self) -> None:
        """Let go of the batches."""
        self._read_range = None
        super().close()

    def _load(self, shard: ShardBytes, split: Split, options: ReadOptions) -> ArrowRows:
        import pyarrow as pa

        size = shard.info.size_bytes
        is_file = _is_file(split.key, shard.read)
        whole = None
        if shard.path is not None or not is_file:
            whole = pa.py_buffer(shard.read(0, size))
        found: Iterator[Any]
        if is_file:
            read = shard.read if whole is None else _reads(shard.read(0, size))
            schema, found = self._of_file(read, size, split, whole)
        else:
            refuse_bombs(split.key, shard.read, stream_messages(shard.read, size))
            reader = _open_stream(whole)
            self._check_end(shard)
            schema, found = reader.schema, iter(reader)
            self.columns = described(schema, options)
        columns = chosen_columns(split.key, schema.names, options)
        if columns is not None:
            schema = pa.schema([schema.field(name) for name in columns])
            found = (batch.select(columns) for batch in found)
        found = _counted(split.key, found, size)
        lying: list[Any] = []
        for batch in found:
            if whole is None or not _lies_in(whole, batch):
                # One at a time from here on: decoded, they are larger than what is stored.
                found = chain(lying, [batch], found)
                plain = chain.from_iterable(plain_batches(split.key, each, size) for each in found)
                return ArrowRows(plain_schema(schema), no_bomb(split.key, plain, size))
            lying.append(batch)
        self._sound = set()
        return ArrowRows(schema, lying, in_place=True)

    def _of_file(
        self, read: Read, size: int, split: Split, whole: Any
    ) -> tuple["pa.Schema", Iterator[Any]]:
        """Return the schema and the batches of `split`; `whole`: the file, where it is mapped.

        Raises:
            ValueError: the messages are not what the footer says.
        """
        self._read_range = read
        dictionaries, batches = file_messages(read, size)
        chosen = batches[split.start : split.end]
        if len(chosen) < split.end - split.start:
            raise self._cut(size)
        refuse_bombs(split.key, read, (*dictionaries, *chosen))
        if whole is not None:
            file = _open_file(whole)
            return file.schema, map(file.get_batch, range(split.start, split.end))
        reader = _open_stream(messages_as_stream(read, size, (*dictionaries, *chosen)))
        if not reader.schema.equals(_footer(read, size).schema):
            raise ValueError("its beginning and its end name other columns")
        return reader.schema, _exactly(len(chosen), reader)

    def _check_end(self, shard: ShardBytes) -> None:
        """Refuse a stream without its end mark: it may lack any number of batches."""
        size = shard.info.size_bytes
        head = bytes(shard.read(0, 4))
        end = _END_OF_STREAM if head == _CONTINUATION else _OLD_END_OF_STREAM
        if bytes(shard.read(max(0, size - len(end)), size)) != end:
            raise self._cut(size)

    def _cut(self, size: int) -> RecordError:
        return RecordError(
            f"{self.key}: truncated: the object ends without the end mark of an Arrow stream",
            hint="Write it again, and close the writer.",
            key=self.key, reason="truncated", offset=size,
        )  # fmt: skip

    def _check(self, numbers: set[int]) -> None:
        """Look at every offset and byte of text of some batches, once."""
        import pyarrow as pa

        for number in sorted(numbers):
            try:
                self.rows.batches[number].validate(full=True)
            except pa.ArrowException as error:
                raise RecordError(
                    f"{self.key}: batch {self._start + number + 1} is damaged: {error}",
                    key=self.key,
                    reason="damaged",
                ) from error
            if self._sound is not None:
                self._sound.add(number)


def _is_file(key: str, read: Callable[[int, int], bytes | memoryview]) -> bool:
    head = bytes(read(0, len(_FILE_MAGIC)))
    if head.startswith(_FEATHER_1_MAGIC):
        raise RecordError(
            f"{key}: Feather version 1 is not read",
            hint="Write it again with pyarrow.feather.write_feather (version 2).",
            key=key,
            reason="version",
        )
    return head == _FILE_MAGIC


def _open_file(source: Any, footer_offset: int | None = None) -> Any:
    import pyarrow as pa

    return pa.ipc.open_file(source, footer_offset=footer_offset)


def _footer(read: Read, size_bytes: int) -> Any:
    """Return a file's reader that knows its schema and how many batches there are, but has none."""
    tail = file_tail(read, size_bytes)
    return _open_file(tail, footer_offset=len(tail))


def _open_stream(source: Any) -> Any:
    import pyarrow as pa

    return pa.ipc.open_stream(source)


def _exactly(num_batches: int, reader: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches of a reader; fewer than its messages are an error."""
    found = 0
    for batch in reader:
        found += 1
        yield batch
    if found != num_batches:
        raise ValueError(f"{found} record batches where its end names {num_batches}")


def _reads(view: memoryview) -> Read:
    return lambda start, end: view[start:end]


def _counted(
    key: str, batches: Iterable["pa.RecordBatch"], size_bytes: int
) -> Iterator["pa.RecordBatch"]:
    """Yield the batches that have rows; columns without values could claim any number of them."""
    num_rows = 0
    for batch in batches:
        num_rows += batch.num_rows
        check_rows(key, num_rows, size_bytes)
        if batch.num_rows:
            yield batch


def _lies_in(whole: "pa.Buffer", batch: "pa.RecordBatch") -> bool:
    """Tell whether all that a batch holds lies in `whole`: it is not compressed and has no dictionaries."""
    low, high = whole.address, whole.address + whole.size
    if any(map(has_dictionary, batch.schema.types)):
        return False
    buffers = [buffer for column in batch.columns for buffer in column.buffers()]
    return all(buffer is None or low <= buffer.address <= high - buffer.size for buffer in buffers)


SHARD_FORMAT: ShardFormat = ArrowIpc()
