"""Several streams mixed by weights: the mix, its end, and resumes at every batch."""

import json
from itertools import islice
from typing import Any

import pytest

from brain.ml.dataset_shards.mixed_stream import MixedStream
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.brain.check_resume import check_resume
from tests.brain.stream_data import memory_manager
from tools_utilities.errors import ChangedError, UsageError

SIZES = (20, 6, 10)
FIRST = (0, 100, 200)


def make(weights: tuple[float, ...] | None = (5, 1, 2), **settings: Any) -> MixedStream:
    rank, world_size = settings.pop("place", (0, 1))
    streams = [
        StreamDataset.from_samples(
            range(first, first + size), seed=size, rank=rank, world_size=world_size
        )
        for first, size in zip(FIRST, SIZES, strict=True)
    ]
    return MixedStream([StreamLoader(stream, 2) for stream in streams], weights, **settings)


def sources(batches: list[list[int]]) -> list[int]:
    return [batch[0] // 100 for batch in batches]


def read(stream: MixedStream) -> list[list[int]]:
    return [batch.tolist() for batch in stream]


def test_all_exhausted_gives_every_sample_once_in_the_proportion_of_the_weights():
    batches = read(make())
    assert sorted(number for batch in batches for number in batch) == sorted(
        number
        for first, size in zip(FIRST, SIZES, strict=True)
        for number in range(first, first + size)
    )
    start = sources(batches)[:16]
    assert [start.count(number) for number in range(3)] == [10, 2, 4]
    assert all(sorted(start[at : at + 8]).count(0) == 5 for at in (0, 8))


def test_first_exhausted_ends_when_a_stream_is_due_that_has_nothing_left():
    batches = read(make((1, 1, 1), stop="first_exhausted"))
    assert sources(batches) == [0, 1, 2] * 3 + [0]
    heavy = sources(read(make((1, 4, 1), stop="first_exhausted")))
    assert heavy.count(1) == 3
    assert len(heavy) < 8


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_a_resume_at_every_batch_of_two_epochs(stop):
    length = 2 * len(read(make(stop=stop))) + 5
    expected = None
    for stop_after in range(length + 1):
        expected = check_resume(
            lambda: make(stop=stop),
            stop_after,
            length=length,
            flatten=lambda batch: [batch.tolist()],
            expected=expected,
        )


def test_a_resume_at_every_batch_where_counts_are_not_known_before():
    managers = [memory_manager([7, 6]), memory_manager([3, 2])]

    def mixed() -> MixedStream:
        streams = [StreamDataset(manager, "data/x/", prefetch=0) for manager in managers]
        return MixedStream([StreamLoader(stream, 2) for stream in streams])

    expected = None
    for stop_after in range(25):
        expected = check_resume(
            mixed, stop_after, length=26, flatten=lambda b: [b["id"].tolist()], expected=expected
        )


def test_epochs_differ_and_hold_the_same_samples():
    stream = make()
    first, second = read(stream), read(stream)
    assert first != second
    assert sorted(n for batch in first for n in batch) == sorted(n for b in second for n in b)


def test_ranks_take_each_batch_from_the_same_stream():
    parts = [read(make(place=(rank, 2))) for rank in range(2)]
    assert sources(parts[0]) == sources(parts[1])
    together = [number for part in parts for batch in part for number in batch]
    assert len(together) == len(set(together)) == sum(SIZES)


def test_weights_and_rules_that_make_no_sense_are_refused():
    for weights in ((1, 1), (1, 0, 1), (1, -1, 1), (1, float("nan"), 1)):
        with pytest.raises(UsageError, match="one above 0 for each of 3"):
            make(weights)
    with pytest.raises(UsageError, match="first_exhausted"):
        make(stop="never")


def test_a_state_of_fewer_streams_is_refused():
    stream = make()
    list(islice(stream, 3))
    state = json.loads(json.dumps(stream.state_dict()))
    state["sources"].pop()
    with pytest.raises(ChangedError, match="had 2 data sources, now it has 3"):
        make().load_state_dict(state)
