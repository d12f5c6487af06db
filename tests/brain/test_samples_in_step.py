"""Which samples a step holds, at the ends of an epoch: exactly those that the ranks are given."""

from collections.abc import Iterator

import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.brain.direct_manager import DirectManager
from tests.brain.stream_data import memory_manager
from tools_utilities.errors import UsageError

SIZES = [4, 3, 0, 5, 1, 4]
FIRST = {f"data/x/train-{at:05d}.jsonl": sum(SIZES[:at]) for at in range(len(SIZES))}


@pytest.fixture(scope="module")
def manager() -> DirectManager:
    return memory_manager(SIZES)


def told(loader: StreamLoader, step: int, epoch: int = 0) -> list[int]:
    return [FIRST[ref.key] + ref.index for ref in loader.samples_in_step(step, epoch=epoch)]


def delivered(loaders: list[StreamLoader]) -> Iterator[list[int]]:
    """Yield the samples of each step, all ranks' together."""
    epochs = [[batch["id"].tolist() for batch in loader] for loader in loaders]
    for step in range(max(map(len, epochs))):
        yield sorted(
            number for rank in epochs for batch in rank[step : step + 1] for number in batch
        )


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("equalize", ["drop", "pad", "none"])
@pytest.mark.parametrize("partition", ["round_robin", "contiguous", "files"])
def test_every_step_of_two_epochs_to_the_last(manager, partition, equalize, drop_last):
    ranks = 3
    streams = [
        StreamDataset(
            manager, "data/x/", partition=partition, equalize=equalize,
            max_drop=1, rank=rank, world_size=ranks,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    loaders = [StreamLoader(stream, 2, drop_last=drop_last) for stream in streams]
    for epoch in range(2):
        steps = list(delivered(loaders))
        assert steps[-1]
        fresh = StreamDataset(
            manager, "data/x/", partition=partition, equalize=equalize,
            max_drop=1, rank=1, world_size=ranks,
        )  # fmt: skip
        asked = StreamLoader(fresh, 2, drop_last=drop_last)
        assert [sorted(told(asked, step, epoch)) for step in range(len(steps))] == steps
        assert told(asked, len(steps), epoch) == told(asked, 10**6, epoch) == []


def test_there_is_no_step_and_no_epoch_below_0(manager):
    loader = StreamLoader(StreamDataset(manager, "data/x/"), 2)
    with pytest.raises(UsageError, match="step -1"):
        loader.samples_in_step(-1)
    with pytest.raises(UsageError, match="epoch -1"):
        loader.samples_in_step(0, epoch=-1)


def test_fewer_samples_than_ranks_are_told_as_they_are_given(manager):
    few = memory_manager([2])
    for equalize, expected in (("drop", []), ("none", [0, 1]), ("pad", None)):
        streams = [
            StreamDataset(few, "data/x/", equalize=equalize, rank=rank, world_size=5)
            for rank in range(5)
        ]
        steps = [sample["id"] for stream in streams for sample in stream]
        found = [ref.index for ref in StreamLoader(streams[0], 1).samples_in_step(0)]
        assert sorted(found) == sorted(steps)
        assert expected in (None, sorted(found))
