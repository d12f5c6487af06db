"""Which samples were in step N: the order looked up without reading a sample."""

from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from brain.ml.dataset_shards.epoch_plan import EpochPlan, EpochStart
from brain.ml.dataset_shards.epoch_reader import EpochReader
from brain.ml.dataset_shards.partition_reader import PartitionReader
from brain.ml.dataset_shards.partitioning import Partitioning
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.stream_index import StreamIndex
from tools_utilities.errors import UsageError

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
    stream: "StreamDataset", step: int, epoch: int, batch_size: int, *, drop_last: bool = False
) -> list[SampleRef]:
    """Return the samples of a global batch, in the order of the stream; none behind the epoch's end.

    What `equalize` or `drop_last` leaves out of the last batch is left out, what pads it is there.
    Where counts are not known, what lies before the step is counted first.

    Raises:
        UsageError: a step or an epoch below 0.
    """
    if step < 0 or epoch < 0:
        raise UsageError(
            f"step {step} of epoch {epoch}: there is none", hint="Both are counted from 0."
        )
    index, ranks = stream.prepare(), stream.place.world_size
    first = step * batch_size * ranks
    plan = stream.plan_for(Share(), EpochStart(epoch=epoch, position=first))
    if plan.partitioning is not None:
        made = plan.partitioning
        return _by_partition(stream, made, step, epoch, batch_size, drop_last=drop_last)
    places = range(first, first + batch_size * ranks)
    found, total = _located(plan, index, len(places))
    if total is None or found.shape[1] == len(places):
        return _refs(index, found)
    share = Share(world_size=ranks, batch_size=batch_size, equalize=stream.config.equalize)
    ends = [share.rank_samples(total, rank) for rank in range(ranks)]
    if drop_last:
        ends = [end - end % batch_size for end in ends]
    taken = [place for place in places if place // ranks < ends[place % ranks]]
    own = [place - first for place in taken if place < total]
    again = [(place - total) % total for place in taken if place >= total]
    if not again:
        return _refs(index, found[:, own])
    begin = replace(plan, start=EpochStart(epoch=epoch))
    head, _ = _located(begin, index, max(again) + 1)
    return _refs(index, np.concatenate([found[:, own], head[:, again]], axis=1))


def _located(plan: EpochPlan, index: StreamIndex, count: int) -> tuple[Indices, int | None]:
    """Return where the positions from a plan's start on lie, and how many the epoch has if they end.

    The first has shape (2, positions): split numbers, and indices into the splits.
    """
    reader = EpochReader(plan, index.counts)
    try:
        return np.stack(reader.codes(count)), reader.total
    finally:
        reader.close()


def _by_partition(
    stream: "StreamDataset",
    made: Partitioning,
    step: int,
    epoch: int,
    batch_size: int,
    *,
    drop_last: bool,
) -> list[SampleRef]:
    """Return the samples of a global batch under a strategy that has partitions: ranks by turns."""
    place, index, parts = stream.place, stream.index, []
    for rank in range(place.world_size):
        share = Share(rank=rank, world_size=place.world_size, equalize=stream.config.equalize)
        plan = stream.plan_for(share, EpochStart(epoch=epoch))
        reader = PartitionReader(replace(plan, prefetch=0), made, index.counts)
        try:
            found = np.stack(reader.codes(step * batch_size, batch_size))
        finally:
            reader.close()
        whole = found.shape[1] == batch_size or not drop_last
        parts.append(_refs(index, found) if whole else [])
    turns = zip_longest(*parts)
    return [sample for turn in turns for sample in turn if sample is not None]


def _refs(index: StreamIndex, located: Indices) -> list[SampleRef]:
    numbers, indices = located.tolist()
    return [
        SampleRef(
            key=index.table.info(number).key, start=int(index.table.starts[number]), index=place
        )
        for number, place in zip(numbers, indices, strict=True)
    ]
