"""Where splits come from: a prefix of a store, or a sequence in memory.

Both pickle; neither holds an open client.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.split_table import SplitTable
from tools_utilities.errors import DataNotFoundError, QuarkError, RecordError, said_by
from tools_utilities.folder_columns import open_table_split
from tools_utilities.object_options import with_folder_words
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.open_files import check_open_files
from tools_utilities.schema_drift import SchemaCensus, SchemaDrift, tell_drift
from tools_utilities.shard_format import (
    Columns,
    OpenSplit,
    ReadOptions,
    RecordRows,
    RecordSpans,
    ShardBytes,
    Split,
)

Deserialize = Callable[[bytes], Any]


class SplitView(Protocol):
    """Another way to see a split's samples, such as packed token sequences; must pickle."""

    @property
    def identity(self) -> str:
        """Everything that changes the samples, in words; part of the order fingerprint."""
        ...

    def open(self, split: OpenSplit) -> OpenSplit:
        """Return the split as it is to be seen; closing it closes what it was given."""
        ...


class ShardReader(Protocol):
    """What a stream asks of a manager (`StreamingManager` is one)."""

    @property
    def store(self) -> ObjectStore:
        """The store, made once a process."""
        ...

    def open_shard(self, info: ObjectInfo) -> ShardBytes:
        """Return an object's verified bytes."""
        ...

    def read_range(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Return some of its bytes, for footers."""
        ...

    def prefetch_shards(self, infos: Sequence[ObjectInfo]) -> None:
        """Say what comes next, in order of use; never blocks."""
        ...

    def settle(self) -> None:
        """Wait until what was read ahead is durable."""
        ...

    def get_stats(self) -> dict[str, Any]:
        """Return statistics by name."""
        ...


class OpenedSplit:
    """A split that is open, with the samples as the user asked for them."""

    def __init__(
        self,
        split: Split,
        opened: OpenSplit,
        *,
        deserialize: Deserialize | None = None,
        shard: ShardBytes | None = None,
        store: str = "",
    ) -> None:
        self.split = split
        self.num_samples = opened.num_samples
        self.skipped = dict(opened.skipped)
        self.spans: RecordSpans | None = (
            None if deserialize is not None else getattr(opened, "record_spans", None)
        )
        """Where its records lie, if they can be decoded together with those of other splits."""
        self.rows: RecordRows | None = (
            None if deserialize is not None else getattr(opened, "record_rows", None)
        )
        """Its records as one array, if they are that."""
        self._opened = opened
        self._deserialize = deserialize
        self._shard = shard
        self._store = store

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples at `indices`, in that order.

        Raises:
            RecordError: one cannot be read; detail: store, key, record, offset, index.
        """
        try:
            if self._deserialize is None:
                return list(self._opened.read(indices))
            raw = self._opened.read_raw(indices)
        except RecordError as error:
            raise named(error, self._store) from error
        return [self._decode(piece, index) for piece, index in zip(raw, indices, strict=True)]

    def close(self) -> None:
        """Free it; safe to call twice."""
        self.spans = self.rows = None
        self._opened.close()
        if self._shard is not None:
            self._shard.close()
            self._shard = None

    def _decode(self, piece: bytes, index: int) -> Any:
        if self._deserialize is None:
            return piece
        try:
            return self._deserialize(piece)
        except QuarkError:
            raise
        except Exception as error:
            detail = self._locate(index)
            record = detail.get("record", index + 1)
            where = "record" if "record" in detail else f"byte {self.split.start}, record"
            reason = f"deserialize() failed: {said_by(error)}"
            raise named(
                RecordError(f"{self.split.key}: {where} {record}: {reason}", **detail), self._store
            ) from error

    def _locate(self, index: int) -> dict[str, Any]:
        """Return where a record is; the format knows it exactly when it cannot read it either."""
        try:
            self._opened.read([index])
        except RecordError as error:
            return error.detail
        return {"key": self.split.key, "index": index, "offset": self.split.start}


class SplitSource(Protocol):
    """Opens splits by number."""

    def open_split(self, table: SplitTable, number: int) -> OpenedSplit:
        """Return split `number`, open; may be called from several threads."""
        ...

    def read_ahead(self, infos: Sequence[ObjectInfo]) -> None:
        """Say which objects come next, in order of use."""
        ...

    def settle(self) -> None:
        """Wait until what was read ahead is durable."""
        ...

    def plan_uses(
        self, objects: Sequence[ObjectInfo], uses: Callable[[], tuple[Indices, ...]]
    ) -> None:
        """Say how to find out when each object is read; see `object_uses`."""
        ...

    def records(self, field: str) -> "SplitSource":
        """Return the source of the plain records, for one of their fields; without a view."""
        ...


class StoreSource:
    """The splits of a store's objects, through a manager."""

    def __init__(
        self,
        manager: ShardReader,
        *,
        options: ReadOptions,
        deserialize: Deserialize | None,
        view: SplitView | None,
    ) -> None:
        self._manager = manager
        self._options = options
        self._deserialize = deserialize
        self._view = view
        self._census = SchemaCensus()

    def open_split(self, table: SplitTable, number: int) -> OpenedSplit:
        """Open a split; blocks until its object is there."""
        info, split = table.info(number), table.split(number)
        options = self._options = with_folder_words(self._manager.store, [info], self._options)
        if table.folder_columns:
            options = msgspec.structs.replace(options, folder_columns=table.folder_columns)
        shard = self._manager.open_shard(info)
        try:
            opened = open_table_split(shard, split, options)
            self._compare(info.key, opened)
            opened = opened if self._view is None else self._view.open(opened)
        except RecordError as error:
            shard.close()
            raise named(error, self._manager.store.endpoint_id) from error
        except BaseException as error:
            shard.close()
            if isinstance(error, OSError):
                check_open_files(error)
            raise
        store = self._manager.store.endpoint_id
        return OpenedSplit(split, opened, deserialize=self._deserialize, shard=shard, store=store)

    def _compare(self, key: str, opened: OpenSplit) -> None:
        """Tell the first time that columns differ from other shards', where no footer said so before.

        Raises:
            DataError: they do, under `strict`.
        """
        columns: Columns | None = getattr(opened, "columns", None)
        if columns is not None and self._census.add_once(key, columns):
            tell_drift(self._census, strict=self._options.strict)

    @property
    def drift(self) -> SchemaDrift | None:
        """How the columns of the shards differ, as far as they have been opened here."""
        return self._census.drift()

    def read_ahead(self, infos: Sequence[ObjectInfo]) -> None:
        """Pass the order of use on to the manager."""
        self._manager.prefetch_shards(infos)

    def settle(self) -> None:
        """Wait until what was read ahead is durable in the manager's cache."""
        self._manager.settle()

    def plan_uses(
        self, objects: Sequence[ObjectInfo], uses: Callable[[], tuple[Indices, ...]]
    ) -> None:
        """Tell the manager, if it wants to know."""
        tell = getattr(self._manager, "plan_uses", None)
        if tell is not None:
            tell(objects, uses)

    def records(self, field: str) -> "StoreSource":
        """Return the source of the records' field; formats that cannot choose read all."""
        options = msgspec.structs.replace(self._options, columns=(field,), first_of=())
        return StoreSource(self._manager, options=options, deserialize=None, view=None)


class SequenceSource:
    """The splits of a sequence in memory: ranges of its indices."""

    def __init__(self, samples: Sequence[Any]) -> None:
        self._samples = samples

    def open_split(self, table: SplitTable, number: int) -> OpenedSplit:
        """Open a range."""
        split = table.split(number)
        return OpenedSplit(split, _SequenceSplit(self._samples, split))

    def read_ahead(self, infos: Sequence[ObjectInfo]) -> None:
        """Nothing to fetch."""

    def settle(self) -> None:
        """Nothing to wait for."""

    def plan_uses(
        self, objects: Sequence[ObjectInfo], uses: Callable[[], tuple[Indices, ...]]
    ) -> None:
        """Nothing to evict."""

    def records(self, field: str) -> "SequenceSource":  # noqa: ARG002 - all fields are there
        """Return this source."""
        return self


class _SequenceSplit:
    """A range of a sequence."""

    def __init__(self, samples: Sequence[Any], split: Split) -> None:
        self._samples = samples
        self._start = split.start
        self.num_samples = split.end - split.start
        self.num_bytes = 0
        self.skipped: dict[str, int] = {}

    def read(self, indices: Sequence[int]) -> list[Any]:
        """Return the samples themselves."""
        return [self._samples[self._start + index] for index in indices]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return them too: there is nothing to decode."""
        return self.read(indices)

    def close(self) -> None:
        """Nothing is held."""


def no_data(
    manager: ShardReader | None, prefix: str, format_name: str | None = None
) -> DataNotFoundError:
    """Return the error of a prefix without data objects (of a format, where one is asked for)."""
    where = "memory" if manager is None else manager.store.endpoint_id
    what = "data" if format_name is None else f"{format_name} file"
    return DataNotFoundError(
        f"{where}: no {what} at prefix {prefix!r}",
        hint="Check the prefix; a folder ends in `/`.",
        prefix=prefix,
    )


def named(error: RecordError, store: str) -> RecordError:
    """Return a record's error with the store it came from in message and detail."""
    if not store or error.detail.get("store"):
        return error
    return RecordError(f"{store}: {error}", hint=error.hint, **{**error.detail, "store": store})
