"""Any rank and worker, simulated in this process, against the order that one reader reads."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brain.ml.dataset_shards.epoch_plan import EpochStart
from brain.ml.dataset_shards.epoch_reader import EpochReader
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_index import _check_cover
from tests.brain.loader_simulation import as_worker
from tests.brain.stream_data import ids, memory_manager, read_positions
from tools_utilities.errors import DataError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import Split

SIZES = [3, 0, 5, 1, 7, 2, 4, 6, 1, 9] * 6


def make_stream(sizes: list[int], **settings: Any) -> StreamDataset:
    return StreamDataset(memory_manager(sizes), "data/x/", **{"prefetch": 0, **settings})


def shares(
    world_size: int, num_workers: int, batch_size: int, equalize: str = "none"
) -> list[Share]:
    return [
        Share(
            rank=rank,
            world_size=world_size,
            worker=worker,
            num_workers=num_workers,
            batch_size=batch_size,
            equalize=equalize,
        )
        for rank in range(world_size)
        for worker in range(num_workers)
    ]


def test_counts_unknown_and_known_give_one_order():
    stream = make_stream(SIZES)
    first = ids(stream)
    assert stream.index.total == sum(SIZES)
    stream.set_epoch(0)
    assert ids(stream) == first
    assert sorted(first) == list(range(sum(SIZES)))


@pytest.mark.parametrize(
    ("world_size", "known"), [(1, False), (2, True), (3, False), (3, True), (4, True), (8, True)]
)
def test_every_position_is_read_by_one_rank_and_worker(world_size, known):
    stream = make_stream(SIZES)
    order = dict(enumerate(ids(stream)))
    stream = stream if known else make_stream(SIZES)
    for num_workers, batch_size, position in ((1, 1, 0), (1, 4, 40), (3, 4, 0), (3, 4, 157)):
        found: dict[int, int] = {}
        for share in shares(world_size, num_workers, batch_size):
            part = read_positions(stream, share, EpochStart(position=position))
            assert not found.keys() & part.keys()
            found.update({place: sample["id"] for place, sample in part.items()})
        assert found == {place: order[place] for place in range(position, len(order))}


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_batch_t_holds_the_same_samples_at_any_world_size(world_size):
    stream, size = make_stream(SIZES), 8
    order = ids(stream)
    found = [
        read_positions(stream, share, EpochStart())
        for share in shares(world_size, 2, size // world_size, "drop")
    ]
    per_step: dict[int, set[int]] = {}
    for place, sample in (item for part in found for item in part.items()):
        per_step.setdefault(place // size, set()).add(sample["id"])
    for step, samples in per_step.items():
        assert samples <= set(order[step * size : (step + 1) * size])
    assert all(len(per_step[step]) == size for step in range(len(order) // size))


@pytest.mark.parametrize(
    ("equalize", "counts"),
    [("none", [8, 8, 7, 7]), ("drop", [7, 7, 7, 7]), ("pad", [8, 8, 8, 8])],
)
def test_b32_thirty_samples_over_four_ranks(equalize, counts):
    # 3 shards of 10 over 4 ranks with 2 workers each.
    streams = [
        StreamDataset(manager, "data/x/", equalize=equalize, rank=rank, world_size=4)
        for manager in [memory_manager([10, 10, 10])]
        for rank in range(4)
    ]
    read = [ids(stream) for stream in streams]
    assert [len(part) for part in read] == counts
    assert [len(stream) for stream in streams] == counts
    everything = [number for part in read for number in part]
    assert len(set(everything)) == (28 if equalize == "drop" else 30)
    stats = [stream.get_stats() for stream in streams]
    assert {part["dropped_samples"] for part in stats} == {2 if equalize == "drop" else 0}
    assert sum(part["padded_samples"] for part in stats) == (2 if equalize == "pad" else 0)


def test_more_ranks_than_samples_work():
    for equalize, total in (("none", 3), ("drop", 0), ("pad", 8)):
        parts = [
            ids(StreamDataset(manager, "data/x/", equalize=equalize, rank=rank, world_size=8))
            for manager in [memory_manager([2, 0, 1])]
            for rank in range(8)
        ]
        assert sum(map(len, parts)) == total
        if equalize == "pad":
            assert {number for part in parts for number in part} == {0, 1, 2}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=12).filter(any),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from(["drop", "pad", "none"]),
    st.booleans(),
)
def test_disjoint_complete_and_equal_steps(
    sizes, world_size, num_workers, batch_size, equalize, shuffle
):
    stream, total = make_stream(sizes, shuffle=shuffle), sum(sizes)
    order = ids(make_stream(sizes, shuffle=shuffle))
    found: dict[int, int] = {}
    per_rank = [0] * world_size
    for share in shares(world_size, num_workers, batch_size, equalize):
        part = ids_of(read_positions(stream, share, EpochStart()))
        assert not found.keys() & part.keys()
        found.update(part)
        per_rank[share.rank] += len(part)
    length = {"drop": total - total % world_size, "none": total}.get(
        equalize, -(-total // world_size) * world_size
    )
    assert found == {place: order[place % total] for place in range(length)}
    assert max(per_rank) - min(per_rank) <= (1 if equalize == "none" else 0)


def ids_of(part: dict[int, Any]) -> dict[int, int]:
    return {place: sample["id"] for place, sample in part.items()}


def test_file_order_is_the_order_of_keys_and_lines():
    stream = make_stream([4, 3, 0, 5], shuffle=False)
    assert ids(stream) == list(range(12))
    assert ids(stream) == list(range(12))


def test_epochs_differ_and_seeds_differ():
    stream = make_stream([10] * 8)
    epochs = [tuple(ids(stream)) for _ in range(3)]
    other = tuple(ids(make_stream([10] * 8, seed=7)))
    assert len({*epochs, other}) == 4
    assert {tuple(sorted(epoch)) for epoch in [*epochs, other]} == {tuple(range(80))}


def test_a_rank_opens_only_its_lanes_once_counts_are_known():
    manager = memory_manager([5] * 96)
    stream = StreamDataset(manager, "data/x/", rank=1, world_size=4)
    ids(stream)
    assert stream.index.total == 480
    manager.opened.clear()
    stream.set_epoch(0)
    assert len(ids(stream)) == 120
    assert len(set(manager.opened)) == 24


def test_prefetch_changes_nothing_and_names_what_comes_next():
    plain = ids(make_stream(SIZES, prefetch=0))
    manager = memory_manager(SIZES)
    assert ids(StreamDataset(manager, "data/x/", prefetch="auto")) == plain
    assert manager.ahead
    assert set(manager.ahead[0]) <= set(manager.opened)
    few = memory_manager(SIZES)
    assert ids(StreamDataset(few, "data/x/", prefetch=3)) == plain
    assert max(map(len, few.ahead)) == 3


def test_samples_in_memory_stream_under_the_same_rules():
    samples = [f"sample {number}" for number in range(1000)]
    parts = [
        list(StreamDataset.from_samples(samples, rank=rank, world_size=4, equalize="none"))
        for rank in range(4)
    ]
    assert sorted(sample for part in parts for sample in part) == sorted(samples)
    whole = StreamDataset.from_samples(samples)
    assert len(whole) == 1000
    first = list(whole)
    assert first != samples
    assert parts[1] == first[1::4]


@pytest.mark.parametrize("position", [0, 3000])
def test_with_known_counts_the_first_batch_is_asked_for_before_anything_else(position):
    manager = memory_manager([20] * 240)
    stream = StreamDataset(manager, "data/x/")
    order = ids(stream)
    manager.ahead.clear()
    share, start = Share(batch_size=4), EpochStart(position=position)
    reader = EpochReader(stream.plan_for(share, start), stream.index.counts.copy())
    first = next(reader.blocks())
    reader.close()
    count = len(first.entries)  # a round of the lanes, at least
    assert 4 <= count <= 48
    assert ids(first.entries) == order[position : position + count]
    needed = {f"data/x/train-{number // 20:05d}.jsonl" for number in ids(first.entries)}
    assert set(manager.ahead[0][: len(needed)]) == needed
    # Then the rest of the windows that it is in; what comes after those, apart.
    shape = stream.index.shape
    assert len(manager.ahead[0]) <= shape.num_lanes * (shape.num_window_splits if position else 1)
    assert len(manager.ahead) > 1


@pytest.mark.parametrize("batch_size", [None, 4])
def test_without_a_batch_size_workers_read_once_in_an_order_of_their_own_and_say_so(
    batch_size, caplog
):
    manager, parts, kept = memory_manager([20, 20]), [list[int]() for _ in range(3)], list[int]()
    whole = ids(StreamDataset(manager, "data/x/"))
    for number, part in enumerate(parts):
        stream = StreamDataset(manager, "data/x/", batch_size=batch_size)
        with as_worker(number, 3, stream):
            part.extend(ids(stream))
    assert sorted(sum(parts, kept)) == list(range(40))
    # Batches of four by turns, as a DataLoader takes them.
    starts = range(0, max(map(len, parts)), 4)
    delivered = [number for start in starts for part in parts for number in part[start : start + 4]]
    warned = [record for record in caplog.records if "has no batch_size" in record.message]
    assert (delivered == whole) is (batch_size is not None)
    assert len(warned) == (batch_size is None)


@pytest.mark.parametrize("lost", [slice(1, None), slice(None, -1)])
def test_an_epoch_that_comes_out_short_is_an_error(monkeypatch, lost):
    """Whatever loses a sample between the counts and the batch is found out at the epoch's end."""
    read = EpochReader._read
    monkeypatch.setattr(EpochReader, "_read", lambda self, chunk: read(self, chunk)[lost])
    with pytest.raises(DataError, match=r"epoch 0: \d+ samples read, 12 expected"):
        list(make_stream([5, 4, 3]))


@pytest.mark.parametrize(
    "bounds", [[(0, 4), (5, 9)], [(0, 5), (4, 9)], [(1, 9)], [(0, 8)], [(0, 9), (9, 12)], []]
)
def test_splits_that_leave_bytes_out_or_have_them_twice_are_refused(bounds):
    info = ObjectInfo(key="x", size_bytes=9)
    whole = [
        Split(key="x", start=0, end=4, num_bytes=4),
        Split(key="x", start=4, end=9, num_bytes=5),
    ]
    _check_cover(info, whole)
    wrong = [Split(key="x", start=start, end=end, num_bytes=end - start) for start, end in bounds]
    with pytest.raises(DataError, match="do not cover its 9 bytes exactly once"):
        _check_cover(info, wrong)
