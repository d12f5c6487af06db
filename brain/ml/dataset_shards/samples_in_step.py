"""Which samples were in step N: the order looked up without reading a sample."""

from typing import TYPE_CHECKING

import msgspec

from brain.ml.dataset_shards.epoch_plan import EpochStart
from brain.ml.dataset_shards.epoch_reader import EpochReader
from brain.ml.dataset_shards.share import Share

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
    reader = EpochReader(plan, index.counts)
    try:
        numbers, indices = reader.codes(size)
    finally:
        reader.close()
    return [
        SampleRef(
            key=index.table.info(number).key, start=int(index.table.starts[number]), index=place
        )
        for number, place in zip(numbers.tolist(), indices.tolist(), strict=True)
    ]
