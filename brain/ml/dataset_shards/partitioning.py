"""The partitions of a dataset under a strategy that assigns splits: made once, fixed from then on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from brain.ml.dataset_shards.lane_walk import LaneWalk
from brain.ml.dataset_shards.partition_deal import Deal, deal_for
from brain.ml.dataset_shards.partition_strategy import Shard, World, find_strategy
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.shuffle_order import Indices, LaneShape, deal_order
from brain.ml.dataset_shards.split_table import relative_key
from brain.ml.dataset_shards.stream_index import StreamIndex
from tools_utilities.prepared_types import prepared

if TYPE_CHECKING:
    from brain.ml.dataset_shards.epoch_plan import EpochPlan
    from brain.ml.dataset_shards.window_reader import WindowReader

Labels = Mapping[int, Mapping[str, int]]
"""Samples by class, of each split number."""


@prepared
class PartitionPin(msgspec.Struct, frozen=True, kw_only=True):
    """What the first launch fixes; travels in every state."""

    count: int
    lanes: int
    """Of each partition, so that a rank of the first world has about as many open as elsewhere."""


@dataclass(frozen=True, kw_only=True)
class Partitioning:
    """Which splits are in which partition."""

    pin: PartitionPin
    splits: tuple[Indices, ...]
    totals: Indices
    """Samples of every partition."""
    num_window_splits: int

    def count(self, counts: Indices) -> Indices:
        """Return the samples of every partition; splits that cannot be read have none."""
        known = np.maximum(counts, 0)
        return np.array([int(known[part].sum()) for part in self.splits], np.int64)

    def deal(self, starts: tuple[int, ...], share: Share) -> Deal:
        """Return who takes what of the rest of an epoch."""
        return deal_for(self.totals, starts, share)

    def walk(self, number: int, plan: "EpochPlan", reader: "WindowReader") -> LaneWalk:
        """Return a partition's own order in the plan's epoch."""
        own, table = self.splits[number], plan.table
        if plan.shuffle and len(own):
            objects, local = np.unique(table.object_of[own], return_inverse=True)
            sizes = np.zeros(len(objects), np.int64)
            np.add.at(sizes, local, table.num_bytes[own])
            # Partitions of the same number of splits must not all be shuffled alike.
            seed, epoch = plan.seed + (number << 40), plan.start.epoch
            own = own[deal_order(local.astype(np.int64), sizes, seed, epoch)]
        return LaneWalk(own, self._shape(len(own)), reader.counts, reader.learn)

    def lane_base(self, number: int) -> int:
        """Return what is added to the lane numbers of a partition to tell them from others'."""
        return number * self.pin.lanes

    def _shape(self, num_splits: int) -> LaneShape:
        return LaneShape(
            num_lanes=max(1, min(self.pin.lanes, num_splits)),
            num_window_splits=self.num_window_splits,
        )


def pin_partitions(
    strategy: str, options: Mapping[str, Any], index: StreamIndex, world_size: int
) -> PartitionPin:
    """Return what a first launch in this world fixes."""
    world = World(world_size=world_size, options=options)
    count = find_strategy(strategy).num_partitions(world)
    per_rank = max(1, -(-count // world_size))
    return PartitionPin(count=count, lanes=max(1, -(-index.shape.num_lanes // per_rank)))


def make_partitioning(
    strategy: str,
    options: Mapping[str, Any],
    index: StreamIndex,
    pin: PartitionPin,
    labels: Labels,
) -> Partitioning:
    """Assign the splits of an index.

    Raises:
        UsageError: the strategy cannot deal this data.
    """
    found = find_strategy(strategy)
    units, shards = _files(index) if found.whole_files else _splits(index, labels)
    assigned = found.assign(shards, World(world_size=pin.count, options=options))
    splits = tuple(
        np.sort(np.concatenate([np.zeros(0, np.int64), *(units[unit] for unit in part)]))
        for part in assigned
    )
    return Partitioning(
        pin=pin,
        splits=splits,
        totals=np.zeros(len(splits), np.int64),
        num_window_splits=index.shape.num_window_splits,
    )


def _files(index: StreamIndex) -> tuple[list[Indices], list[Shard]]:
    table = index.table
    if index.in_memory:
        return _splits(index, {})  # its samples are what it has for files
    first = np.searchsorted(table.object_of, np.arange(len(table.objects) + 1))
    units = [np.arange(first[number], first[number + 1]) for number in range(len(table.objects))]
    shards = [
        Shard(key=relative_key(info.key, index.folder), size_bytes=info.size_bytes)
        for info in table.objects
    ]
    return units, shards


def _splits(index: StreamIndex, labels: Labels) -> tuple[list[Indices], list[Shard]]:
    table = index.table
    per_object = np.bincount(table.object_of, minlength=len(table.objects))
    shards = []
    for number, owner in enumerate(table.object_of.tolist()):
        key = relative_key(table.objects[owner].key, index.folder)
        if per_object[owner] > 1:
            # Sorts as (key, place): zero is the lowest character there is.
            key += f"\0{int(table.starts[number]):020}"
        own = labels.get(number, {})
        shards.append(
            Shard(
                key=key,
                size_bytes=int(table.num_bytes[number]),
                num_samples=sum(own.values()) if labels else None,
                labels=own,
            )
        )
    return [np.array([number]) for number in range(len(table))], shards


def keys_of(index: StreamIndex, splits: Sequence[int] | Indices) -> list[str]:
    """Return the keys of the objects that splits lie in, each once, in that order."""
    numbers = dict.fromkeys(index.table.object_of[splits].tolist())
    return [index.table.objects[number].key for number in numbers]
