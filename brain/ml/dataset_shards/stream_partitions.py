"""The partitions of one stream: pinned at the first launch or by a loaded state, made when needed."""

from dataclasses import replace

from brain.ml.dataset_shards.epoch_plan import EpochPlan, EpochStart
from brain.ml.dataset_shards.epoch_reader import first_objects
from brain.ml.dataset_shards.partition_counting import find_labels, know_counts
from brain.ml.dataset_shards.partition_deal import Deal
from brain.ml.dataset_shards.partition_reader import PartitionReader
from brain.ml.dataset_shards.partition_strategies.stratified import label_key
from brain.ml.dataset_shards.partition_strategy import World, find_strategy
from brain.ml.dataset_shards.partitioning import (
    Partitioning,
    PartitionPin,
    keys_of,
    make_partitioning,
    pin_partitions,
)
from brain.ml.dataset_shards.place import Place
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.split_source import SplitSource
from brain.ml.dataset_shards.stream_config import StreamConfig
from brain.ml.dataset_shards.stream_index import StreamIndex
from tools_utilities.object_store import ObjectInfo


class StreamPartitions:
    """Nothing at all under a strategy that deals positions by turns."""

    def __init__(self, config: StreamConfig) -> None:
        self.made: Partitioning | None = None
        self._config = config
        self._by_position = find_strategy(config.partition).by_position
        self._pin: PartitionPin | None = None

    def pin(self, index: StreamIndex, world_size: int) -> PartitionPin | None:
        """Return what is fixed, from now on if it was not yet."""
        if self._pin is None and not self._by_position:
            config = self._config
            self._pin = pin_partitions(
                config.partition, config.partition_options, index, world_size
            )
        return self._pin

    def adopt(self, pin: PartitionPin | None) -> None:
        """Take over what a loaded state has fixed."""
        if not self._by_position and pin is not None:
            self._pin, self.made = pin, None

    def prepare(self, index: StreamIndex, source: SplitSource, place: Place) -> None:
        """Assign the splits, once; a collective where ranks are joined.

        Raises:
            UsageError: the strategy cannot deal this data.
            QuarkError: something that must be counted cannot be read.
        """
        pin, config = self.pin(index, place.world_size), self._config
        if pin is None or self.made is not None:
            return
        # First without counts and labels: what cannot be dealt at all is refused before reading.
        made = make_partitioning(config.partition, config.partition_options, index, pin, {})
        know_counts(index, source, config.tolerance)
        if config.partition == "stratified":
            key = label_key(World(world_size=1, options=config.partition_options))
            labels = find_labels(index, source, key, place)
            made = make_partitioning(config.partition, config.partition_options, index, pin, labels)
        self.made = replace(made, totals=made.count(index.counts))

    def deal(self, start: EpochStart, share: Share) -> Deal | None:
        """Return who takes what of the rest of an epoch, once partitions are made.

        Raises:
            UsageError: more than `max_drop` would be lost.
        """
        if self.made is None:
            return None
        deal = self.made.deal(start.partitions, share)
        deal.check(self._config.max_drop)
        return deal

    def keys(self, index: StreamIndex, place: Place) -> list[str]:
        """Return the keys of the objects that a rank reads from, in key order."""
        if self.made is None:
            return [info.key for info in index.table.objects]
        own = self.made.splits[place.rank :: place.world_size]
        return keys_of(index, sorted(number for part in own for number in part.tolist()))


def objects_first_needed(plan: EpochPlan, counts: Indices, count: int) -> list[ObjectInfo]:
    """Return the first objects that an epoch needs, about in order of use."""
    if plan.partitioning is None:
        return first_objects(plan, count)
    reader = PartitionReader(plan, plan.partitioning, counts)
    numbers = dict.fromkeys(plan.table.object_of[reader.first_splits()].tolist())
    reader.close()
    return [plan.table.objects[number] for number in list(numbers)[:count]]
