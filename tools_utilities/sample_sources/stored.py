"""Records of files and objects: any store, any shard format, one file or all of a prefix.

Read split by split in key order, so memory is one split whatever the size; nothing is cached.
"""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tools_utilities.data_objects import junk_reason
from tools_utilities.errors import DataNotFoundError
from tools_utilities.folder_columns import (
    FolderColumns,
    find_folder_columns,
    open_table_split,
    values_of,
)
from tools_utilities.indexed_objects import named_objects
from tools_utilities.object_options import with_folder_words
from tools_utilities.object_store import ObjectInfo, ObjectStore, StoreSpec, open_store
from tools_utilities.sample_source import (
    SampleSource,
    Source,
    SourceBlock,
    SourceOptions,
    is_hub,
    refuse_hub_options,
)
from tools_utilities.shard_format import (
    OpenSplit,
    ReadOptions,
    ShardBytes,
    ShardFormat,
    Split,
    format_of,
    require_format,
)
from tools_utilities.shard_formats.tokens import refuse_wide
from tools_utilities.split_content import forget_pages
from tools_utilities.token_width import FORMAT as TOKENS
from tools_utilities.token_width import is_said
from tools_utilities.whole_object import open_whole_object

SPLIT_BYTES = 8 << 20
BLOCK_RECORDS = 4096
BLOCK_BYTES = 2 << 20
_MOST_NAMED = 1000
"""Objects whose versions are kept, to say which changed."""
_FORGET_BYTES = 4 << 20
_FIRST_RECORDS = 16
_LOOKED_AT = 16
_MOST_TOLD = 5

_LOGGER = logging.getLogger(__name__)


class StoredSource:
    """The data objects of a prefix, or one object."""

    name = "stored"

    def takes(self, uri: str) -> bool:
        """Everything that is not a Hugging Face dataset."""
        return not is_hub(uri)

    def open(self, uri: str, options: SourceOptions) -> Source:
        """List the objects; DataNotFoundError when there is none, UsageError for words of the hub."""
        refuse_hub_options(uri, options.split, options.config, options.load_kwargs)
        spec, prefix = _locate(uri, options)
        store = open_store(spec)
        if uri.startswith(("http://", "https://")):
            uri = store.endpoint_id  # a query may be a signature: it is neither shown nor kept
        listed = _of_format(_list(store, prefix), options.format_name, uri)
        infos = [info for info in listed if info.size_bytes]
        for info in infos:
            require_format(info.key)  # before anything is read or written
        columns = find_folder_columns((info.key for info in infos), prefix)
        return StoredRecords(uri, store, infos, options, columns)


def _locate(uri: str, options: SourceOptions) -> tuple[StoreSpec, str]:
    if "://" not in uri or uri.startswith("file://"):
        typed = Path(uri.removeprefix("file://")).expanduser()
        path = typed.resolve()
        if path.is_dir():
            return StoreSpec(uri=f"file://{path}"), ""
        named = typed.parent.resolve() / typed.name
        if typed.is_symlink() and path.exists() and named != path:
            # A link's own name says the format: caches of hubs keep files under their hashes.
            root = os.path.commonpath([named.parent, path.parent])
            return StoreSpec(uri=f"file://{root}"), str(named.relative_to(root))
        return StoreSpec(uri=f"file://{path.parent}"), path.name
    scheme, _, rest = uri.partition("://")
    if scheme in {"http", "https"}:
        return StoreSpec(uri=uri), ""  # encoded as typed; a query goes with it
    bucket, _, prefix = rest.partition("/")
    spec = StoreSpec(
        uri=f"{scheme}://{bucket}",
        endpoint_url=options.endpoint_url,
        profile=options.profile,
        region=options.region,
    )
    return spec, prefix


def _list(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    found = list(store.list(prefix))
    exact = [info for info in found if info.key == prefix]
    below = f"{prefix}/" if prefix and not prefix.endswith("/") else prefix
    inside = [info for info in found if info.key.startswith(below) and _is_data(info.key, below)]
    chosen = (
        exact or inside or [info for info in found if _is_data(info.key, prefix.rpartition("/")[0])]
    )
    if not chosen:
        raise DataNotFoundError(
            f"{store.spec.uri}/{prefix}: no data files here",
            hint="Check the path; files beginning with `.` or `_` are not data.",
            key=prefix,
        )
    if exact:
        return chosen
    return named_objects(store, found, chosen, below if inside else prefix[: prefix.rfind("/") + 1])


def _of_format(infos: list[ObjectInfo], name: str | None, uri: str) -> list[ObjectInfo]:
    if name is None:
        return infos
    named = {info.key: format_of(info.key) for info in infos}
    chosen = [info for info in infos if getattr(named[info.key], "name", None) == name]
    if not chosen:
        found = sorted({one.name for one in named.values() if one is not None})
        raise DataNotFoundError(
            f"{uri}: no files of the format {name}",
            hint=f"Found: {', '.join(found) or 'none that is known'}.",
        )
    return chosen


def _is_data(key: str, folder: str) -> bool:
    return junk_reason(key[len(folder) :].lstrip("/")) is None


class StoredRecords:
    """Numbered records of a list of objects."""

    def __init__(
        self,
        uri: str,
        store: ObjectStore,
        infos: Sequence[ObjectInfo],
        options: SourceOptions,
        folder_columns: FolderColumns = (),
    ) -> None:
        self.uri = uri
        self._folder_columns = folder_columns
        self._store = store
        self._infos = infos
        self._options = options
        lines = (f"{info.key}\0{info.size_bytes}\0{info.etag}\n" for info in infos)
        self.fingerprint = hashlib.sha256("".join(lines).encode()).hexdigest()
        self.objects: Mapping[str, str] = {
            info.key: f"{info.size_bytes} bytes, {info.etag}" for info in infos[:_MOST_NAMED]
        }
        self.num_bytes: int | None = sum(info.size_bytes for info in infos)
        self._num_told = 0

    def blocks(self, start: int, position: Mapping[str, int] | None) -> Iterator[SourceBlock]:
        """Yield blocks of at most one split, 4,096 records and about 2 MB."""
        where = position or {"object": 0, "split": 0, "index": 0}
        number = start
        done_bytes = sum(info.size_bytes for info in self._infos[: where["object"]])
        for object_index in range(where["object"], len(self._infos)):
            same_object = object_index == where["object"]
            first = (where["split"], where["index"]) if same_object else (0, 0)
            for block in self._object_blocks(object_index, first, number, done_bytes):
                number = block.first + len(block.records)
                yield block
            done_bytes += self._infos[object_index].size_bytes

    def _object_blocks(
        self, object_index: int, first: tuple[int, int], number: int, done_bytes: int
    ) -> Iterator[SourceBlock]:
        info = self._infos[object_index]
        shard_format = require_format(info.key)
        read = with_folder_words(self._store, [info], self._options.read)
        read = msgspec.structs.replace(read, folder_columns=self._folder_columns)
        shard = open_whole_object(self._store, info)
        read_bytes = 0
        try:
            splits = shard_format.plan_splits(
                info, lambda begin, end: bytes(shard.read(begin, end)), SPLIT_BYTES, read
            )
            done_bytes += sum(split.num_bytes for split in splits[: first[0]])
            for current in range(first[0], len(splits)):
                index = first[1] if current == first[0] else 0
                for piece in self._pieces(shard, splits[current], read, index):
                    yield SourceBlock(
                        first=number,
                        records=piece.records,
                        position={"object": object_index, "split": current, "index": piece.index},
                        done_bytes=done_bytes + int(splits[current].num_bytes * piece.done),
                    )
                    number += len(piece.records)
                    read_bytes += piece.read_bytes
                    if read_bytes >= _FORGET_BYTES:
                        read_bytes = 0
                        forget_pages(shard)
                done_bytes += splits[current].num_bytes
                forget_pages(shard)
        finally:
            shard.close()

    def _pieces(
        self, shard: ShardBytes, split: Split, read: ReadOptions, index: int
    ) -> Iterator["_Piece"]:
        """Yield the records of a split from `index` on, in bounded pieces."""
        found = require_format(split.key)
        folder_values = values_of(split.key, self._folder_columns)
        if self._options.json_bytes and found.name == "jsonl" and not folder_values:
            for batch in found.lines_in_order(shard, split, read, index):  # type: ignore[attr-defined] # JSON lines have it
                yield _Piece(
                    index=batch.first,
                    records=batch.lines,
                    read_bytes=sum(map(len, batch.lines)) + len(batch.lines),
                    done=batch.start_byte / batch.range_bytes,
                )
            return
        opened = open_table_split(shard, split, read)
        try:
            self._tell_skipped(split.key, opened.skipped)
            each = max(1, split.num_bytes // max(1, opened.num_samples))
            for indices, records in self._batches(opened, index):
                if indices.start == split.start == 0 and split.key == self._infos[0].key:
                    _refuse_guesses(found, records, split.key, read)
                yield _Piece(
                    index=indices.start,
                    records=records,
                    read_bytes=each * len(records),
                    done=indices.start / opened.num_samples,
                )
        finally:
            opened.close()

    def _tell_skipped(self, key: str, skipped: Mapping[str, int]) -> None:
        """Say what of an object is no sample by its format's rules; of the first few objects."""
        if not skipped or self._num_told > _MOST_TOLD:
            return
        self._num_told += 1
        if self._num_told > _MOST_TOLD:
            _LOGGER.warning("%s: members that are no samples too; further ones are not told", key)
            return
        counts = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        _LOGGER.warning("%s: left out, as they are no samples: %s", key, counts)

    def _batches(self, opened: OpenSplit, index: int) -> Iterator[tuple[range, list[Any]]]:
        """Yield the records from `index` on, in batches that grow up to the limits of a block."""
        count = _FIRST_RECORDS
        while index < opened.num_samples:
            indices = range(index, min(index + count, opened.num_samples))
            records = opened.read(indices)
            yield indices, records
            index = indices.stop
            each = max(1, _weight(records) // len(records))
            count = max(1, min(BLOCK_RECORDS, 8 * count, BLOCK_BYTES // each))


class _Piece(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive records of a split."""

    index: int
    records: list[Any]
    read_bytes: int
    """Of the object, as it is stored."""
    done: float
    """What part of the split lies before them."""


def _refuse_guesses(
    found: ShardFormat, records: Sequence[Any], key: str, read: ReadOptions
) -> None:
    """Refuse token files of which nobody says how wide they are, and which seem to be wider.

    Raises:
        UsageError: so it is.
    """
    if found.name == TOKENS and not is_said(key, read):
        refuse_wide(records[0], key)


def _weight(value: Any) -> int:
    """Return about how many bytes of memory records take."""
    if isinstance(value, str | bytes):
        return len(value) + 50
    if isinstance(value, np.ndarray):
        return int(value.nbytes) + 100
    if isinstance(value, dict):
        return 200 + sum(map(_weight, value.values()))
    if isinstance(value, list):
        shown = value[:_LOOKED_AT]
        return 60 + sum(map(_weight, shown)) * len(value) // max(1, len(shown))
    return 32


SAMPLE_SOURCE: SampleSource = StoredSource()
