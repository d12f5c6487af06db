"""What a stream knows of its data before it reads any: objects, splits, fingerprints, counts.

Built by one listing (and the footers of formats that have them); pickled to loader workers, so that
all readers of an iteration agree. Counts that are learned are kept in a file beside the cache.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from brain.ml.dataset_shards.count_file import CountFile
from brain.ml.dataset_shards.shuffle_order import (
    ORDER_VERSION,
    SPLIT_BYTES,
    Indices,
    LaneShape,
    choose_shape,
)
from brain.ml.dataset_shards.split_table import SplitTable
from tools_utilities.errors import (
    DataError,
    DataNotFoundError,
    IntegrityError,
    ObjectNotFoundError,
    RecordError,
)
from tools_utilities.folder_columns import find_folder_columns
from tools_utilities.group_listing import pack_members
from tools_utilities.manifest import Chunk, load_manifest
from tools_utilities.object_options import with_folder_words
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.packed_objects import PackedObjects
from tools_utilities.patient_store import PatientStore
from tools_utilities.schema_drift import SchemaCensus, SchemaDrift, tell_drift
from tools_utilities.shard_format import Columns, ReadOptions, Split, plan_described
from tools_utilities.token_width import width_of

_FOOTER_THREADS = 8
_PLANNED_TOGETHER = 1024
"""A bound on what waits for its splits, whatever the number of objects."""

RangeReader = Callable[[ObjectInfo, int, int], bytes]


@dataclass(frozen=True, kw_only=True)
class IndexRequest:
    """What is to be indexed."""

    prefix: str
    stem: str | None = None
    format_name: str | None = None
    options: ReadOptions
    shuffle: bool = True
    view_identity: str | None = None
    """Counts of the formats do not hold for a view's samples."""
    partition: dict[str, Any] | None = None
    """What a partition strategy adds to the order; None for round_robin."""
    skip_missing: bool = False
    skip_bad: bool = False
    """An object whose footer cannot be read is one split, which then cannot be opened."""
    open_bytes: int | None = None
    """Budget over the open splits, where one was set."""

    @property
    def folder(self) -> str:
        """The folder that keys are relative to."""
        return self.prefix[: self.prefix.rfind("/") + 1]


@dataclass(frozen=True, kw_only=True)
class StreamIndex:
    """The data as it was listed, and what makes its order."""

    table: SplitTable
    shape: LaneShape
    settings: dict[str, Any]
    """Everything but the data that the order depends on, by name."""
    order_fingerprint: str
    change_fingerprint: str
    counts: Indices
    """Samples of every split, -1 where not known; grows while reading."""
    expected: dict[int, int]
    """Samples of whole objects (by number) as a manifest says."""
    folder: str = ""
    count_file: CountFile | None = None
    in_memory: bool = False
    drift: SchemaDrift | None = None
    """How the columns of the shards differ, where footers say them."""

    @property
    def total(self) -> int | None:
        """Samples in all, when every count is known."""
        return int(self.counts.sum()) if bool((self.counts >= 0).all()) else None

    def check_manifest(self) -> None:
        """Refuse counts that differ from the manifest's.

        Raises:
            DataError: an object has more or fewer samples than promised.
        """
        if not self.expected:
            return
        objects, owner = len(self.table.objects), self.table.object_of
        found, known = np.zeros(objects, np.int64), np.ones(objects, np.bool_)
        np.add.at(found, owner, self.counts)
        known[owner[self.counts < 0]] = False
        numbers = np.fromiter(self.expected, np.int64)
        wanted = np.fromiter(self.expected.values(), np.int64)
        wrong = (known[numbers] & (found[numbers] != wanted)).nonzero()[0]
        if len(wrong):
            number, expected = int(numbers[wrong[0]]), int(wanted[wrong[0]])
            key, samples = self.table.objects[number].key, int(found[number])
            raise DataError(
                f"{key}: {samples} samples read, {expected} in the manifest",
                hint="The shard or its manifest is damaged; write it again.",
                key=key,
                expected=expected,
                found=samples,
            )

    def save_counts(self) -> None:
        """Keep what has been learned for the next process; quietly does nothing without a folder."""
        if self.count_file is not None:
            self.count_file.save(self.counts)


def index_store(
    store: ObjectStore, read: RangeReader, request: IndexRequest, folder: Path | None
) -> StreamIndex:
    """List a prefix and plan its splits.

    Args:
        store: Where to list.
        read: Fetches a byte range of an object, for footers.
        request: What to index.
        folder: Where counts are kept, or None.

    Raises:
        QuarkError: the listing failed, a footer cannot be read, or no format reads a key.
    """
    store = PatientStore(store)
    infos = pack_members(store, request.prefix, request.stem, request.format_name)
    options = with_folder_words(store, infos, request.options)
    request = replace(request, options=options)
    chunks = _manifest_chunks(store, infos, request)
    if chunks:
        infos = PackedObjects(_with_checksum(info, chunks.get(info.key)) for info in infos)
    census = SchemaCensus()
    table = SplitTable(infos, _plan_all(infos, read, request, census))
    table.folder_columns = find_folder_columns((info.key for info in infos), request.folder)
    shape = choose_shape(table.num_bytes, shuffle=request.shuffle, open_bytes=request.open_bytes)
    settings: dict[str, Any] = {
        "order_version": ORDER_VERSION,
        "shuffle": request.shuffle,
        "lanes": shape.num_lanes,
        "window_splits": shape.num_window_splits,
        "split_bytes": SPLIT_BYTES,
        "seq_len": request.options.seq_len,
        "token_dtype": _token_dtype(infos, request.options),
        "view": request.view_identity,
        "partition": request.partition or {"name": "round_robin"},
    }
    if options.litdata_indexes:
        start = len(request.folder)
        settings["litdata"] = [[folder[start:], text] for folder, text in options.litdata_indexes]
    order, change = table.fingerprints(request.folder, settings)
    index = StreamIndex(
        table=table,
        shape=shape,
        settings=settings,
        order_fingerprint=order,
        change_fingerprint=change,
        counts=_known_counts(table, request),
        expected=_expected(table, chunks, request),
        folder=request.folder,
        count_file=CountFile(folder, order, change) if folder is not None and len(table) else None,
        drift=tell_drift(census, strict=options.strict),
    )
    _fill_counts(index)
    return index


def _token_dtype(infos: Sequence[ObjectInfo], options: ReadOptions) -> str | list[str]:
    """Return how wide the numbers of token files are; of folders of several widths, all of them."""
    if not options.token_widths:  # no token files: as it was always written
        return options.token_dtype or options.likely_token_dtype
    folders = {info.key.rpartition("/")[0]: info.key for info in infos}
    found = sorted({width_of(key, options) for key in folders.values()})
    return found[0] if len(found) == 1 else found


def index_sequence(
    num_samples: int, *, shuffle: bool, partition: dict[str, Any] | None = None
) -> StreamIndex:
    """Index a sequence in memory: ranges of it stand for splits, single samples under a strategy."""
    size = 1 if partition else max(1, min(4096, -(-num_samples // 96)))
    splits = [
        Split(
            key="memory",
            start=start,
            end=min(start + size, num_samples),
            num_bytes=0,
            num_samples=min(size, num_samples - start),
        )
        for start in range(0, num_samples, size)
    ]
    table = SplitTable([ObjectInfo(key="memory", size_bytes=num_samples)], [splits])
    shape = choose_shape(table.num_bytes, shuffle=shuffle)
    settings: dict[str, Any] = {
        "order_version": ORDER_VERSION,
        "shuffle": shuffle,
        "samples": num_samples,
    }
    if partition:
        settings["partition"] = partition
    order, change = table.fingerprints("", settings)
    return StreamIndex(
        table=table,
        shape=shape,
        settings=settings,
        order_fingerprint=order,
        change_fingerprint=change,
        counts=table.num_samples.copy(),
        expected={},
        in_memory=True,
    )


def _plan_all(
    infos: Sequence[ObjectInfo], read: RangeReader, request: IndexRequest, census: SchemaCensus
) -> Iterator[list[Split]]:
    """Yield the splits of each object; those of formats with footers are planned on threads."""
    touched = False

    def plan(info: ObjectInfo) -> tuple[list[Split], Columns | None]:
        def read_own(start: int, end: int) -> bytes:
            nonlocal touched
            touched = True
            return read(info, start, end)

        try:
            splits, columns = plan_described(info, read_own, SPLIT_BYTES, request.options)
        except (ObjectNotFoundError, RecordError) as error:
            is_bad = isinstance(error, RecordError)
            if not (request.skip_bad if is_bad else request.skip_missing):
                raise
            size = info.size_bytes
            return [Split(key=info.key, start=0, end=size, num_bytes=size)], None
        _check_cover(info, splits)
        return splits, columns

    def planned() -> Iterator[tuple[list[Split], Columns | None]]:
        yield from map(plan, infos[:1])  # which shows whether the format has footers
        for start in range(1, len(infos), _PLANNED_TOGETHER):
            group = infos[start : start + _PLANNED_TOGETHER]
            yield from threads.map(plan, group) if touched else map(plan, group)

    with ThreadPoolExecutor(_FOOTER_THREADS, thread_name_prefix="quark-footers") as threads:
        for info, (splits, columns) in zip(infos, planned(), strict=True):
            if columns is not None:
                census.add(info.key.removeprefix(request.folder), columns)
            yield splits


def _check_cover(info: ObjectInfo, splits: Sequence[Split]) -> None:
    """Make sure that byte ranges leave nothing of an object out and count nothing twice."""
    ranges = all(split.num_bytes == split.end - split.start for split in splits)
    bounds = [(split.start, split.end) for split in splits]
    joined = all(left[1] == right[0] for left, right in pairwise(bounds))
    whole = bool(bounds) and bounds[0][0] == 0 and (not ranges or bounds[-1][1] == info.size_bytes)
    if not (joined and whole):
        raise DataError(
            f"{info.key}: its splits do not cover its {info.size_bytes} bytes exactly once",
            hint="This is a fault of the shard format's plan_splits.",
            key=info.key,
        )


def _known_counts(table: SplitTable, request: IndexRequest) -> Indices:
    if request.view_identity is not None:
        return np.full(len(table), -1, np.int64)
    return table.num_samples.copy()


def _manifest_chunks(
    store: ObjectStore, infos: Sequence[ObjectInfo], request: IndexRequest
) -> dict[str, Chunk]:
    """Return what a manifest in the folder says of the objects, by key.

    Raises:
        DataNotFoundError: it names an object that was asked for and is not there.
    """
    manifest = load_manifest(store, request.folder) if infos else None
    if manifest is None:
        return {}
    chunks = {
        manifest.prefix + chunk.key: chunk for shard in manifest.shards for chunk in shard.chunks
    }
    if request.stem is None and request.format_name is None and not request.skip_missing:
        listed = {info.key for info in infos}
        for key in chunks:
            if key.startswith(request.prefix) and key not in listed:
                raise DataNotFoundError(
                    f"{key}: named in the manifest of {request.folder} but not there",
                    hint="Upload it again, or go without it with on_missing=skip.",
                    key=key,
                )
    return chunks


def _with_checksum(info: ObjectInfo, chunk: Chunk | None) -> ObjectInfo:
    """Return the object with the manifest's checksum, which the cache then verifies.

    Raises:
        IntegrityError: it is not as long as the manifest says.
    """
    if chunk is None:
        return info
    if chunk.num_bytes is not None and chunk.num_bytes != info.size_bytes:
        raise IntegrityError(
            f"{info.key}: {info.size_bytes} bytes, {chunk.num_bytes} in the manifest",
            hint="The shard or its manifest is damaged; write it again.",
            key=info.key,
        )
    return msgspec.structs.replace(info, crc32c=chunk.crc32c or info.crc32c)


def _expected(
    table: SplitTable, chunks: Mapping[str, Chunk], request: IndexRequest
) -> dict[int, int]:
    if request.view_identity is not None:
        return {}
    return {
        number: chunks[info.key].num_samples
        for number, info in enumerate(table.objects)
        if info.key in chunks
    }


def _fill_counts(index: StreamIndex) -> None:
    """Take counts from the file of an earlier run, and from the manifest for uncut objects."""
    counts = index.counts
    if index.count_file is not None and bool((counts < 0).any()):
        saved = index.count_file.load(len(counts))
        if saved is not None:
            counts[counts < 0] = saved[counts < 0]
    first = np.searchsorted(index.table.object_of, np.arange(len(index.table.objects) + 1))
    for number, expected in index.expected.items():
        start, end = int(first[number]), int(first[number + 1])
        if end - start == 1 and counts[start] < 0:
            counts[start] = expected
