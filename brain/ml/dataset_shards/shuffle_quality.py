"""How well an order mixes: figures for the plan, taken from the order code itself.

Nothing is read. The order of an epoch is walked over simulated counts (samples in proportion to
stored bytes), on at most `MAX_SPLITS` splits: of more objects an even sample is taken, of longer
objects every n-th split. Pools, lanes and windows are those of the whole, so what is open together
is too. Under 50 ms for a million objects. Imports no torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from brain.ml.dataset_shards.epoch_plan import EpochPlan, EpochStart
from brain.ml.dataset_shards.epoch_reader import EpochReader
from brain.ml.dataset_shards.partition_reader import PartitionReader
from brain.ml.dataset_shards.partition_strategy import find_strategy
from brain.ml.dataset_shards.partitioning import make_partitioning, pin_partitions
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.shuffle_figures import ShuffleQuality
from brain.ml.dataset_shards.shuffle_order import SEQUENTIAL, Indices, LaneShape, shape_for
from brain.ml.dataset_shards.split_source import SequenceSource
from brain.ml.dataset_shards.split_table import SplitTable
from brain.ml.dataset_shards.stream_index import StreamIndex
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import Split

MAX_SPLITS = 256
MAX_SAMPLES = 8192
_MOST_PER_SPLIT = 1024
_LARGEST_BATCH = 64


@dataclass(frozen=True, kw_only=True)
class SplitLayout:
    """Objects and how they are cut, as far as a plan looks: sizes of all, splits of some."""

    keys: tuple[str, ...]
    """Of the objects that were sampled, in key order, relative to the dataset's folder."""
    object_bytes: Indices
    """Of the same objects."""
    num_splits: Indices
    """Of the same objects; estimated where an object was not planned."""
    num_objects: int
    """In all."""


@dataclass(frozen=True, kw_only=True)
class OrderSettings:
    """What an order depends on beside the data."""

    shuffle: bool = True
    seed: int = 42
    epoch: int = 0
    partition: str = "round_robin"
    partition_options: Mapping[str, Any] = field(default_factory=dict)
    world_size: int = 1
    batch_size: int = 32
    """Of all ranks."""
    shuffle_bytes: int | None = None


def sample_objects(num_objects: int) -> Indices:
    """Return the numbers of the objects that stand for all of them, evenly spread."""
    if num_objects <= MAX_SPLITS:
        return np.arange(num_objects)
    return np.unique(np.linspace(0, num_objects - 1, MAX_SPLITS).astype(np.int64))


def measure_shuffle(layout: SplitLayout, settings: OrderSettings) -> ShuffleQuality | None:
    """Return the figures of an order; None where there is nothing to order.

    Under a strategy that keeps splits to ranks they are those of rank 0's own order.

    Raises:
        UsageError: the strategy cannot deal this data.
    """
    if not len(layout.keys) or not int(layout.num_splits.sum()):
        return None
    shape = _shape(layout, settings)
    table = _simulated(layout)
    numbers, places = _order(table, shape, settings)
    if not len(numbers):
        return None
    objects = table.object_of[numbers]
    distances = np.abs(_ranked(table, numbers, places) - np.arange(len(numbers)))
    # Turns give a batch of all ranks a stretch of the order; partitions one to each rank.
    turns = find_strategy(settings.partition).by_position
    size = settings.batch_size if turns else settings.batch_size // settings.world_size
    batch = max(1, min(size, len(numbers), _LARGEST_BATCH))
    open_splits = min(int(_total_splits(layout)), shape.num_lanes * shape.num_window_splits)
    mean = float(layout.object_bytes.sum()) / float(layout.num_splits.sum())
    same = float((objects[1:] == objects[:-1]).mean()) if len(objects) > 1 else 0.0
    return ShuffleQuality(
        shuffled=settings.shuffle,
        lanes=shape.num_lanes,
        window_splits=shape.num_window_splits,
        open_splits=open_splits,
        open_bytes=round(open_splits * mean),
        same_shard=same,
        displacement=float(distances.mean()) / max(1.0, len(numbers) / 3),
        batch_size=batch,
        batch_shards=_shards_in_batch(objects, batch),
        full_batch_shards=_full_shards(objects, batch),
    )


def _total_splits(layout: SplitLayout) -> float:
    return float(layout.num_splits.sum()) * layout.num_objects / len(layout.keys)


def _shape(layout: SplitLayout, settings: OrderSettings) -> LaneShape:
    if not settings.shuffle:
        return SEQUENTIAL
    # The typical split is a percentile of all splits, so an object counts as often as it is cut.
    sizes = layout.object_bytes // np.maximum(1, layout.num_splits)
    ordered = np.argsort(sizes, kind="stable")
    reached = np.cumsum(layout.num_splits[ordered])
    place = int(np.searchsorted(reached, int(reached[-1]) * 3 // 4, side="right"))
    typical = int(sizes[ordered[min(place, len(ordered) - 1)]])
    return shape_for(typical, max(1, round(_total_splits(layout))), settings.shuffle_bytes)


def _thinning(num_splits: Indices) -> int:
    return max(1, -(-int(num_splits.sum()) // MAX_SPLITS))


def _simulated(layout: SplitLayout) -> SplitTable:
    """Return a table of fewer splits that is ordered as the whole is, with made-up counts."""
    thinning = _thinning(layout.num_splits)
    kept = np.maximum(1, layout.num_splits // thinning)
    sizes = layout.object_bytes / kept
    mean = float(layout.object_bytes.sum()) / max(1, int(kept.sum()))
    per_split = min(_MOST_PER_SPLIT, max(2, MAX_SAMPLES // int(kept.sum())))
    counts = np.clip(np.rint(per_split * sizes / max(1.0, mean)), 1, 4 * per_split)
    infos = [
        ObjectInfo(key=key, size_bytes=size)
        for key, size in zip(layout.keys, layout.object_bytes.tolist(), strict=True)
    ]
    splits = [
        [
            Split(key=key, start=n, end=n + 1, num_bytes=int(size), num_samples=count)
            for n in range(number)
        ]
        for key, number, size, count in zip(
            layout.keys, kept.tolist(), sizes.tolist(), counts.astype(int).tolist(), strict=True
        )
    ]
    return SplitTable(infos, splits)


def _order(table: SplitTable, shape: LaneShape, settings: OrderSettings) -> tuple[Indices, Indices]:
    """Return split numbers and indices of an epoch in its order, as the stream would deal them."""
    plan = EpochPlan(
        table=table,
        source=SequenceSource(()),
        shape=shape,
        shuffle=settings.shuffle,
        seed=settings.seed,
        start=EpochStart(epoch=settings.epoch),
        share=Share(world_size=settings.world_size, equalize="none"),
        prefetch=0,
    )
    if find_strategy(settings.partition).by_position:
        turns = EpochReader(plan, table.num_samples.copy())
        try:
            return turns.codes(int(table.num_samples.sum()))
        finally:
            turns.close()
    index = StreamIndex(
        table=table, shape=shape, settings={}, order_fingerprint="", change_fingerprint="",
        counts=table.num_samples, expected={},
    )  # fmt: skip
    options = settings.partition_options
    pin = pin_partitions(settings.partition, options, index, settings.world_size)
    made = make_partitioning(settings.partition, options, index, pin, {})
    made = replace(made, totals=made.count(table.num_samples))
    own = PartitionReader(plan, made, table.num_samples)
    try:
        return own.codes(0, own.deal.turns(0))
    finally:
        own.close()


def _ranked(table: SplitTable, numbers: Indices, places: Indices) -> Indices:
    """Return the place of each sample among those of the order, as they lie in the files."""
    first = np.cumsum(table.num_samples) - table.num_samples
    ranks = np.empty(len(numbers), np.int64)
    ranks[np.argsort(first[numbers] + places, kind="stable")] = np.arange(len(numbers))
    return ranks


def _shards_in_batch(objects: Indices, batch: int) -> float:
    whole = objects[: len(objects) // batch * batch].reshape(-1, batch)
    ordered = np.sort(whole, axis=1)
    return float(1 + (np.diff(ordered, axis=1) != 0).sum(axis=1).mean())


def _full_shards(objects: Indices, batch: int) -> float:
    """Return the different shards expected in a batch drawn from all samples."""
    shares = np.bincount(objects) / len(objects)
    return float((1 - (1 - shares) ** batch).sum())
