"""Records of files and objects: any store, any shard format, one file or all of a prefix.

Read split by split in key order, so memory is one split whatever the size; nothing is cached.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tools_utilities.data_objects import junk_reason
from tools_utilities.errors import DataNotFoundError
from tools_utilities.litdata_index import with_litdata_index
from tools_utilities.object_store import ObjectInfo, ObjectStore, StoreSpec, open_store
from tools_utilities.sample_source import SampleSource, Source, SourceBlock, SourceOptions
from tools_utilities.shard_bytes import FileShardBytes
from tools_utilities.shard_format import OpenSplit, Split, require_format
from tools_utilities.whole_object import open_whole_object

SPLIT_BYTES = 8 << 20
BLOCK_RECORDS = 4096


class StoredSource:
    """The data objects of a prefix, or one object."""

    name = "stored"

    def takes(self, uri: str) -> bool:
        """Everything that is not a Hugging Face dataset."""
        return not uri.startswith("hf://")

    def open(self, uri: str, options: SourceOptions) -> Source:
        """List the objects; DataNotFoundError when there is none."""
        spec, prefix = _locate(uri, options)
        store = open_store(spec)
        infos = [info for info in _list(store, prefix) if info.size_bytes]
        return StoredRecords(uri, store, infos, options)


def _locate(uri: str, options: SourceOptions) -> tuple[StoreSpec, str]:
    if "://" not in uri or uri.startswith("file://"):
        path = Path(uri.removeprefix("file://")).expanduser().resolve()
        if path.is_dir():
            return StoreSpec(uri=f"file://{path}"), ""
        return StoreSpec(uri=f"file://{path.parent}"), path.name
    scheme, _, rest = uri.partition("://")
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
    ) -> None:
        self.uri = uri
        self._store = store
        self._infos = infos
        self._options = options
        lines = (f"{info.key}\0{info.size_bytes}\0{info.etag}\n" for info in infos)
        self.fingerprint = hashlib.sha256("".join(lines).encode()).hexdigest()

    def blocks(self, start: int, position: Mapping[str, int] | None) -> Iterator[SourceBlock]:
        """Yield blocks of at most 4,096 records and one split."""
        where = position or {"object": 0, "split": 0, "index": 0}
        number = start
        for object_index in range(where["object"], len(self._infos)):
            same_object = object_index == where["object"]
            for block in self._object_blocks(
                object_index,
                where["split"] if same_object else 0,
                where["index"] if same_object else 0,
                number,
            ):
                number = block.first + len(block.records)
                yield block

    def _object_blocks(
        self, object_index: int, split_index: int, index: int, number: int
    ) -> Iterator[SourceBlock]:
        info = self._infos[object_index]
        shard_format = require_format(info.key)
        read = with_litdata_index(self._store, [info], self._options.read)
        shard = open_whole_object(self._store, info)
        try:
            splits = shard_format.plan_splits(
                info, lambda begin, end: bytes(shard.read(begin, end)), SPLIT_BYTES, read
            )
            for current in range(split_index, len(splits)):
                opened = shard_format.open_split(shard, splits[current], read)
                first = index if current == split_index else 0
                try:
                    for begin in range(first, opened.num_samples, BLOCK_RECORDS):
                        place = {"object": object_index, "split": current, "index": begin}
                        block = self._block(opened, splits[current], number, place)
                        number += len(block.records)
                        yield block
                finally:
                    opened.close()
                if isinstance(shard, FileShardBytes):
                    shard.forget_pages()
        finally:
            shard.close()

    def _block(
        self, opened: OpenSplit, split: Split, number: int, place: Mapping[str, int]
    ) -> SourceBlock:
        indices = range(place["index"], min(place["index"] + BLOCK_RECORDS, opened.num_samples))
        samples = opened.read(
            indices
        )  # decodes, so that a bad record is found here, with its place
        if self._options.json_bytes and require_format(split.key).name == "jsonl":
            lines = opened.read_raw(indices)
            return SourceBlock(
                first=number, records=lines, sizes=[len(line) + 1 for line in lines], position=place
            )
        share = max(1, split.num_bytes // max(1, opened.num_samples))
        return SourceBlock(
            first=number, records=samples, sizes=[share] * len(samples), position=place
        )


SAMPLE_SOURCE: SampleSource = StoredSource()
