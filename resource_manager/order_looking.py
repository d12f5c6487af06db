"""A look at how a group's samples lie in its shards: what the plan's shuffle figures are made from.

Reads only: the footers of a few shards (formats that have them) and their first and last records, by
ranges. Says *sorted* only of what was seen: a field with one value throughout the first records of
every shard looked at and throughout its last ones, and different values between them; or folders
named `field=value`. A label that changes within eight records, or a running number, is never taken
for an order.
"""

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from brain.ml.dataset_shards.shuffle_order import SPLIT_BYTES
from brain.ml.dataset_shards.shuffle_quality import (
    OrderSettings,
    SplitLayout,
    measure_shuffle,
    sample_objects,
)
from brain.ml.training_job import TrainingJob
from resource_manager.plan import PlannedData
from tools_utilities.decode_probe import RangeBytes, edge_records
from tools_utilities.errors import QuarkError
from tools_utilities.folder_columns import find_folder_columns, values_of
from tools_utilities.object_options import with_folder_words
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.schema_drift import SchemaCensus, SchemaDrift
from tools_utilities.shard_format import Columns, ReadOptions, Sample, plan_described

if TYPE_CHECKING:
    from resource_manager.data_finding import FoundData

LOOKED_AT = 4
"""Shards that are read from."""
_PLANNED_SPLITS = 50_000
_LEAST_RECORDS = 4
_LONGEST_LABEL = 64
_FOLDER = re.compile(r"([^/=]+)=([^/]*)/")


class OrderLook(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of one group."""

    layout: SplitLayout
    sorted_by: str = ""
    """Why its samples seem to be sorted, in words; empty: no sign of it."""
    folder_values: dict[str, Any] = {}
    """What the folder names of the first shard give its samples."""
    drift: SchemaDrift | None = None
    """How the columns of the shards looked at differ."""


def look_at_order(
    store: ObjectStore, infos: Sequence[ObjectInfo], folder: str, options: ReadOptions | None = None
) -> OrderLook | None:
    """Look at a group's objects (in key order); None where they cannot be cut into splits.

    What cannot be read here is left to the run: this only lacks a figure then.
    """
    filled = [info for info in infos if info.size_bytes]
    if not filled:
        return None
    numbers = sample_objects(len(filled))
    sampled = [filled[number] for number in numbers.tolist()]
    looked = sampled[:: max(1, len(sampled) // LOOKED_AT)][:LOOKED_AT]
    looked = [*looked[: LOOKED_AT - 1], sampled[-1]] if len(sampled) > 1 else looked
    census = SchemaCensus()
    try:
        options = with_folder_words(store, looked, options or ReadOptions())
        counts = _count_splits(store, sampled, looked, options, census, folder)
    except QuarkError:
        return None
    layout = SplitLayout(
        keys=tuple(info.key.removeprefix(folder) for info in sampled),
        object_bytes=np.array([info.size_bytes for info in sampled], np.int64),
        num_splits=np.array(counts, np.int64),
        num_objects=len(filled),
    )
    columns = find_folder_columns((info.key for info in filled), folder)
    return OrderLook(
        layout=layout,
        sorted_by=_sorted_by(store, sampled, looked, folder, options),
        folder_values=values_of(filled[0].key, columns),
        drift=census.drift(),
    )


def with_shuffle(job: TrainingJob, data: "FoundData") -> tuple[PlannedData, ...]:
    """Return the planned data with the shuffle figures of the training groups.

    Raises:
        UsageError: the partition strategy cannot deal this data.
    """
    settings = OrderSettings(
        shuffle=job.shuffle,
        seed=job.seed,
        partition=job.partition,
        partition_options=job.partition_options,
        world_size=max(1, job.processes * job.nodes // job.tensor_parallel),
        batch_size=job.batch_size,
        shuffle_bytes=job.shuffle_bytes,
    )
    planned = list(data.planned)
    for place, look in enumerate(data.looks):
        if look is not None:
            planned[place] = msgspec.structs.replace(
                planned[place],
                shuffle=measure_shuffle(look.layout, settings),
                sorted_by=look.sorted_by,
                schema_drift=told_drift(look.drift),
            )
    return tuple(planned)


def told_drift(drift: SchemaDrift | None) -> str:
    """Return what a plan says of columns that differ: nothing where only their widths do."""
    return "" if drift is None or drift.is_harmless else drift.text


def _count_splits(
    store: ObjectStore,
    sampled: Sequence[ObjectInfo],
    looked: Sequence[ObjectInfo],
    options: ReadOptions,
    census: SchemaCensus,
    folder: str,
) -> list[int]:
    """Return the splits of each object; estimated from a few where that takes reading."""
    touched = False

    def plan(info: ObjectInfo) -> tuple[int, Columns | None]:
        shard = RangeBytes(store, info)

        def read(start: int, end: int) -> bytes:
            nonlocal touched
            touched = True
            return bytes(shard.read(start, end))

        found, columns = plan_described(info, read, SPLIT_BYTES, options)
        return len(found), columns

    with ThreadPoolExecutor(LOOKED_AT, thread_name_prefix="quark-look") as threads:
        described = dict(zip(looked, threads.map(plan, looked), strict=True))
    for info, (_, columns) in described.items():
        if columns is not None:
            census.add(info.key.removeprefix(folder), columns)
    known = {info: count for info, (count, _) in described.items()}
    left = 0 if touched else _PLANNED_SPLITS
    per_byte = sum(known.values()) / sum(info.size_bytes for info in known)
    uncut = all(count == 1 for count in known.values())
    for info in sampled:
        if info in known:
            continue
        if left > 0:
            known[info] = plan(info)[0]
            left -= known[info]
        else:
            known[info] = 1 if uncut else max(1, round(info.size_bytes * per_byte))
    return [known[info] for info in sampled]


def _sorted_by(
    store: ObjectStore,
    sampled: Sequence[ObjectInfo],
    looked: Sequence[ObjectInfo],
    folder: str,
    options: ReadOptions,
) -> str:
    named = sorted_folders([info.key.removeprefix(folder) for info in sampled])
    if named:
        return f"its folders are named {named}=…"

    def edges(info: ObjectInfo) -> tuple[Sequence[Sample], Sequence[Sample]] | None:
        try:
            return edge_records(store, info, options)
        except QuarkError:
            return None

    with ThreadPoolExecutor(LOOKED_AT, thread_name_prefix="quark-look") as threads:
        found = [edge for edge in threads.map(edges, looked) if edge is not None]
    field = sorted_field(found)
    if field is None:
        return ""
    return f"field {field} has one value at each end of the {len(found)} shards looked at"


def sorted_folders(keys: Sequence[str]) -> str:
    """Return the names in `name=value/` folders that have several values; empty when none has."""
    values: dict[str, set[str]] = {}
    for key in keys:
        for name, value in _FOLDER.findall(key):
            values.setdefault(name, set()).add(value)
    return ", ".join(name for name, seen in values.items() if len(seen) > 1)


def sorted_field(edges: Sequence[tuple[Sequence[Sample], Sequence[Sample]]]) -> str | None:
    """Return a field that is constant at both ends of every shard and differs between them."""
    blocks = [block for edge in edges for block in edge if block]
    if len(edges) < 2 or any(len(first) < _LEAST_RECORDS for first, _ in edges):  # noqa: PLR2004 - to differ
        return None
    fields = [name for name, value in blocks[0][0].items() if _is_label(value)]
    for name in fields:
        values = [set(_labels(block, name)) for block in blocks]
        constant = all(len(seen) == 1 for seen in values)
        if constant and len(set.union(*values)) > 1:
            return name
    return None


def _labels(block: Sequence[Sample], name: str) -> Iterator[object]:
    for sample in block:
        value = sample.get(name)
        # What is no label differs from everything, itself too.
        yield value if _is_label(value) else object()


def _is_label(value: object) -> bool:
    if isinstance(value, str | bytes):
        return len(value) <= _LONGEST_LABEL
    return isinstance(value, int)
