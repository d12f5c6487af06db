"""Which samples were in step N: the order looked up without reading a sample."""

from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec

from brain.ml.dataset_shards.epoch_plan import EpochStart
from brain.ml.dataset_shards.epoch_reader import EpochReader
from brain.ml.dataset_shards.partition_reader import PartitionReader
from brain.ml.dataset_shards.partitioning import Partitioning
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.stream_index import StreamIndex

if TYPE_CHECKING:
    from brain.ml.dataset_shards.stream_dataset import StreamDataset


class SampleRef(msgspec.Struct, frozen=True, kw_only=True):
    """One sample by where it lies."""

    key: str
    start: int
    """The split it is in: first byte or row group."""
    index: int
    """Which of the split's samples it is, from 0."""


def find_samples(
    stream: "StreamDataset", step: int, epoch: int, batch_size: int
) -> list[SampleRef]:
    """Return the samples of a global batch, in the order of the stream.

    Where counts are not known, what lies before the step is counted first.
    """
    index, size = stream.prepare(), batch_size * stream.place.world_size
    plan = stream.plan_for(Share(), EpochStart(epoch=epoch, position=step * size))
    if plan.partitioning is not None:
        return _by_partition(stream, plan.partitioning, step, epoch, batch_size)
    reader = EpochReader(plan, index.counts)
    try:
        numbers, indices = reader.codes(size)
    finally:
        reader.close()
    return _refs(index, numbers, indices)


def _by_partition(
    stream: "StreamDataset", made: Partitioning, step: int, epoch: int, batch_size: int
) -> list[SampleRef]:
    """Return the samples of a global batch under a strategy that has partitions: ranks by turns."""
    place, index, parts = stream.place, stream.index, []
    for rank in range(place.world_size):
        share = Share(rank=rank, world_size=place.world_size, equalize=stream.config.equalize)
        plan = stream.plan_for(share, EpochStart(epoch=epoch))
        reader = PartitionReader(replace(plan, prefetch=0), made, index.counts)
        try:
            numbers, indices = reader.codes(step * batch_size, batch_size)
        finally:
            reader.close()
        parts.append(_refs(index, numbers, indices))
    turns = zip_longest(*parts)
    return [found for turn in turns for found in turn if found is not None]


def _refs(index: StreamIndex, numbers: Indices, indices: Indices) -> list[SampleRef]:
    return [
        SampleRef(
            key=index.table.info(number).key, start=int(index.table.starts[number]), index=place
        )
        for number, place in zip(numbers.tolist(), indices.tolist(), strict=True)
    ]
