"""Strategies that assign splits: resumes at every place, other worlds, files, losses, loaders."""

import json
import random
from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brain.ml.dataset_shards import shuffle_order
from brain.ml.dataset_shards.partition_deal import advance, turn_order
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.brain.check_resume import check_resume, endless
from tests.brain.direct_manager import DirectManager
from tests.brain.stream_data import ids, memory_manager, put_shards
from tools_utilities.errors import ChangedError, ObjectNotFoundError, UsageError
from tools_utilities.shard_format import OpenSplit

SIZES = [3, 0, 15, 1, 17, 2, 14, 16, 1, 19, 12, 13, 8, 4]
"""14 objects, 125 samples."""
TOTAL = sum(SIZES)
OPTIONS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "files": {},
    "hash": {"num_partitions": 4},
    "range": {"ranges": [(0, 4), (4, 7), (7, 10), (10, 14)]},
    "stratified": {"key": "id"},
}
NAMES = sorted(OPTIONS)


@pytest.fixture(autouse=True)
def small_shape(monkeypatch):
    """Few lanes and short windows, so that little data turns over many of them."""
    monkeypatch.setattr(shuffle_order, "NUM_LANES", 4)
    monkeypatch.setattr(shuffle_order, "NUM_WINDOW_SPLITS", 2)


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    return memory_manager(SIZES, tmp_path_factory.mktemp("cache"))


def make(
    manager: DirectManager, name: str, rank: int = 0, world_size: int = 1, **settings: Any
) -> StreamDataset:
    settings = {"max_drop": 1.0, "prefetch": 0, "equalize": "none", **settings}
    return StreamDataset(
        manager,
        "data/x/",
        partition=name,
        partition_options=OPTIONS[name],
        rank=rank,
        world_size=world_size,
        **settings,
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("rank", "world_size", "equalize"), [(0, 1, "none"), (1, 2, "pad")])
def test_c_dataresume_001_over_500_resumes_in_all(manager, name, rank, world_size, equalize):
    def fresh() -> StreamDataset:
        return make(manager, name, rank, world_size, equalize=equalize)

    stream = fresh()
    length = 2 * len(stream) + 9
    expected, states = [], [stream.state_dict()]
    for sample in islice(endless(stream), length):
        expected.append(sample["id"])
        states.append(json.loads(json.dumps(stream.state_dict())))
    end = len(stream)
    edges = [place for edge in (0, end, 2 * end) for place in range(edge - 2, edge + 3)]
    for stop_after in sorted({*range(0, length, 5), *edges} & set(range(length + 1))):
        state, again = states[stop_after], fresh()
        again.load_state_dict(state)
        following = expected[stop_after : stop_after + 3]
        assert ids(islice(endless(again), len(following))) == following
    for stop_after in (1, end):
        check_resume(
            fresh, stop_after, length=length, flatten=lambda s: [s["id"]], expected=expected
        )


@pytest.mark.parametrize("name", NAMES)
def test_every_epoch_has_the_same_samples_in_another_order(manager, name):
    stream = make(manager, name, 1, 2)
    epochs = [ids(stream) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert len({tuple(sorted(epoch)) for epoch in epochs}) == 1
    direct = make(manager, name, 1, 2)
    direct.set_epoch(2)
    assert ids(direct) == epochs[2]
    prefetching = make(manager, name, 1, 2, prefetch="auto")
    assert ids(prefetching) == epochs[0]


def run_rank(
    stream: StreamDataset, state: dict[str, Any], turns: int
) -> tuple[list[int], int, dict[str, Any]]:
    """Go on from a state; returns ids, how many of them are repeats, and the state then."""
    stream.load_state_dict(state)
    iterator = iter(stream)
    got = ids(islice(iterator, turns))
    made, share = stream._partitions.made, stream._share(1)
    assert made is not None
    deal = made.deal(tuple(state["order"]["partitions"]["positions"]), share)
    return got, max(0, len(got) - deal.lefts[share.rank]), stream.state_dict()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_partitions_are_dealt_to_other_worlds_at_a_resume(manager, name):
    chance = random.Random(name)
    for _ in range(3):
        state = make(manager, name, 0, 4, equalize="pad").state_dict()
        pin = {key: state["order"]["partitions"][key] for key in ("count", "lanes")}
        assert pin["count"] == 4
        seen: list[int] = []
        num_repeats = 0
        while state["epoch"] == 0:
            world_size, turns = chance.choice([1, 2, 3, 4]), chance.randint(1, 20)
            parts = [
                run_rank(make(manager, name, rank, world_size, equalize="pad"), state, turns)
                for rank in range(world_size)
            ]
            seen += [number for got, _, _ in parts for number in got]
            num_repeats += sum(repeats for _, repeats, _ in parts)
            state = parts[0][2]
            assert all(found == state for _, _, found in parts)
            assert {key: state["order"]["partitions"][key] for key in pin} == pin
        assert set(seen) == set(range(TOTAL))
        assert len(seen) == TOTAL + num_repeats


def test_more_ranks_than_partitions_are_refused(manager):
    state = make(manager, "contiguous", 0, 2).state_dict()
    stream = make(manager, "contiguous", 0, 3)
    stream.load_state_dict(state)
    with pytest.raises(UsageError, match="insufficient partitions: 2 for 3 workers"):
        list(stream)


def test_a_state_of_another_strategy_or_other_options_is_refused(manager):
    state = make(manager, "hash").state_dict()
    other = StreamDataset(
        manager, "data/x/", partition="hash", partition_options={"num_partitions": 5}
    )
    for stream in (StreamDataset(manager, "data/x/"), make(manager, "files"), other):
        with pytest.raises(ChangedError, match="partition was"):
            stream.load_state_dict(state)


def test_files_of_ten_over_three_ranks_are_four_three_and_three():
    manager = memory_manager([5] * 10)
    streams = [make(manager, "files", rank, 3) for rank in range(3)]
    files = [stream.rank_files() for stream in streams]
    assert [len(part) for part in files] == [4, 3, 3]
    assert files[1] == [f"data/x/train-{number:05d}.jsonl" for number in (1, 4, 7)]
    for stream, own in zip(streams, files, strict=True):
        manager.opened.clear()
        first, second = list(stream), list(stream)
        assert {f"data/x/train-{found['id'] // 5:05d}.jsonl" for found in first} == set(own)
        assert set(manager.opened) == set(own)
        assert ids(first) != ids(second)
        assert sorted(ids(first)) == sorted(ids(second))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_b32_three_files_for_four_workers_end_every_rank_before_the_first_step(num_workers):
    manager = memory_manager([10] * 3)
    for rank in range(4):
        loader = StreamLoader(make(manager, "files", rank, 4), 2, num_workers=num_workers)
        with pytest.raises(UsageError, match="insufficient files: 3 files for 4 workers"):
            next(iter(loader))
    assert manager.opened == []
    parts = [
        ids(StreamDataset(manager, "data/x/", rank=rank, world_size=4, equalize="none"))
        for rank in range(4)
    ]
    assert sorted(len(part) for part in parts) == [7, 7, 8, 8]
    assert sorted(number for part in parts for number in part) == list(range(30))


def test_a_loss_above_max_drop_is_refused_and_one_below_is_counted():
    manager = memory_manager([100, 99])
    stream = make(manager, "contiguous", 0, 2, equalize="drop", max_drop=0.01)
    assert len(list(stream)) == len(stream) == 99
    assert stream.get_stats()["dropped_samples"] == 1
    strict = make(manager, "contiguous", 0, 2, equalize="drop", max_drop=0.004)
    with pytest.raises(UsageError, match=r"1 of 199 samples \(0.5%\) would be dropped.*99 to 100"):
        next(iter(strict))
    padded = make(manager, "contiguous", 1, 2, equalize="pad", max_drop=0.0)
    assert len(list(padded)) == 100
    assert padded.get_stats()["padded_samples"] == 1


def test_a_rank_without_any_sample_is_padded_with_those_of_others():
    manager = memory_manager([0, 7])
    parts = [ids(make(manager, "files", rank, 2, equalize="pad")) for rank in range(2)]
    assert [sorted(part) for part in parts] == [list(range(7))] * 2


@pytest.mark.parametrize("name", NAMES)
def test_loader_workers_do_not_change_the_order_and_a_state_needs_none(manager, name):
    def loader(num_workers: int) -> StreamLoader:
        stream = make(manager, name, 1, 2, equalize="pad")
        return StreamLoader(stream, 4, num_workers=num_workers, multiprocessing_context="fork")

    whole = [batch["id"].tolist() for batch in loader(0)]
    working = loader(2)
    iterator = iter(working)
    got = [next(iterator)["id"].tolist() for _ in range(5)]
    state = working.state_dict()
    del iterator
    again = loader(0)
    again.load_state_dict(state)
    assert got + [batch["id"].tolist() for batch in again] == whole


def test_a_plain_loader_says_how_many_batches_it_has_delivered(manager):
    stream = make(manager, "contiguous", 0, 2, batch_size=5)
    order = ids(make(manager, "contiguous", 0, 2))
    list(stream)
    stream.set_epoch(0)
    again = make(manager, "contiguous", 0, 2)
    again.load_state_dict(stream.state_dict(batches_delivered=3))
    assert ids(again) == order[15:]
    again = make(manager, "contiguous", 0, 2)
    again.load_state_dict(stream.state_dict(batches_delivered=-(-len(order) // 5)))
    assert again.state_dict()["epoch"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_samples_in_step_are_those_of_the_ranks(manager, name):
    streams = [make(manager, name, rank, 2, equalize="drop") for rank in range(2)]
    loaders = [StreamLoader(stream, 3) for stream in streams]
    step = [list(islice(loader, 3))[2]["id"].tolist() for loader in loaders]
    refs = loaders[0].samples_in_step(2)
    firsts = {f"data/x/train-{at:05d}.jsonl": sum(SIZES[:at]) for at in range(len(SIZES))}
    found = [firsts[ref.key] + ref.index for ref in refs]
    assert found == [number for turn in zip(*step, strict=True) for number in turn]


def test_stratified_finds_classes_and_reads_labels_once(tmp_path):
    manager = memory_manager([1], tmp_path)
    for number in range(24):
        label = "rare" if number % 6 == 0 else "common"
        line = json.dumps({"id": 1 + number, "label": label}).encode() + b"\n"
        manager.store.put(f"data/s/{number:02}.jsonl", line * 4)
    settings: dict[str, Any] = {
        "partition": "stratified",
        "partition_options": {"partition_key": "label"},
        "prefetch": 0,
    }
    for rank in range(4):
        stream = StreamDataset(manager, "data/s/", rank=rank, world_size=4, **settings)
        labels = [sample["label"] for sample in stream]
        assert labels.count("rare") == 4
        assert labels.count("common") == 20
    manager.opened.clear()
    stream = StreamDataset(manager, "data/s/", rank=0, world_size=4, **settings)
    stream.prepare()
    assert manager.opened == []


class OnlyNumbers:
    """A view that hides the label field, as packing into tokens does."""

    identity = "only numbers"

    def open(self, split: OpenSplit) -> OpenSplit:
        return NumberSplit(split)


class NumberSplit:
    def __init__(self, split: OpenSplit) -> None:
        self.num_samples, self.num_bytes = split.num_samples, split.num_bytes
        self.skipped = split.skipped
        self.close = split.close
        self._split = split

    def read(self, indices: Sequence[int]) -> list[Any]:
        return [{"number": sample["id"]} for sample in self._split.read(indices)]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        return self._split.read_raw(indices)


def test_labels_are_those_of_the_records_whatever_the_view_shows(manager):
    stream = make(manager, "stratified", 0, 2, view=OnlyNumbers())
    plain = make(manager, "stratified", 0, 2)
    assert [sample["number"] for sample in stream] == ids(plain)


def test_stratified_refuses_a_sample_without_a_label(manager):
    options = {"key": "kind"}
    stream = StreamDataset(manager, "data/x/", partition="stratified", partition_options=options)
    with pytest.raises(UsageError, match="no label in field 'kind'"):
        next(iter(stream))


def test_missing_objects_are_skipped_and_counted(tmp_path):
    manager = memory_manager([4] * 6, tmp_path)
    stream = make(manager, "contiguous", on_missing="skip")
    assert stream.index.table.objects
    manager.store.delete("data/x/train-00002.jsonl")
    assert sorted(ids(stream)) == [number for number in range(24) if number // 4 != 2]
    assert stream.get_stats()["missing_objects"] == 1
    failing = memory_manager([4] * 3)
    stream = make(failing, "contiguous")
    assert stream.index.table.objects
    failing.store.delete("data/x/train-00001.jsonl")
    with pytest.raises(ObjectNotFoundError):
        next(iter(stream))


def test_splits_of_one_file_are_assigned_one_by_one(monkeypatch):
    manager = memory_manager([1])
    put_shards(manager.store, [300], "data/one/")
    monkeypatch.setattr("brain.ml.dataset_shards.stream_index.SPLIT_BYTES", 512)
    parts = [
        ids(
            StreamDataset(
                manager,
                "data/one/",
                rank=rank,
                world_size=3,
                partition="contiguous",
                equalize="none",
            )
        )
        for rank in range(3)
    ]
    assert sorted(number for part in parts for number in part) == list(range(300))
    bounds = [(min(part), max(part)) for part in parts]
    assert bounds == sorted(bounds)
    assert all(left[1] < right[0] for left, right in pairwise(bounds))


@given(
    partitions=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6),
    chance=st.randoms(),
)
@settings(deadline=None)
def test_turns_taken_at_once_are_turns_taken_one_by_one(partitions, chance):
    starts = np.array([start for start, _ in partitions])
    totals = starts + np.array([rest for _, rest in partitions])
    turns = chance.randint(0, int((totals - starts).sum()))
    at, order = starts.copy(), []
    for _ in range(turns):
        least = min((int(at[part]), part) for part in range(len(at)) if at[part] < totals[part])
        order.append(least[1])
        at[least[1]] += 1
    ends = advance(starts, totals, turns)
    assert ends.tolist() == at.tolist()
    assert turn_order(starts, ends).tolist() == order
