"""Stop anywhere, save, load into a new stream, go on: nothing lost, nothing twice."""

import json
import random
from collections.abc import Iterator
from itertools import islice
from typing import Any, cast

import numpy as np
import pytest
import torch

from brain.ml.dataset_shards import epoch_reader, shuffle_order
from brain.ml.dataset_shards.epoch_plan import EpochStart
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.brain.check_resume import check_resume, endless
from tests.brain.direct_manager import DirectManager
from tests.brain.stream_data import ids, memory_manager, put_shards, read_positions
from tools_utilities.errors import ChangedError, UsageError

SIZES = [3, 0, 15, 1, 17, 2, 14, 16, 1, 19, 12, 13, 8, 4]
"""14 objects, 125 samples."""
TOTAL = sum(SIZES)


@pytest.fixture(autouse=True)
def small_shape(monkeypatch):
    """Few lanes and short windows, so that little data turns over many of them."""
    monkeypatch.setattr(shuffle_order, "NUM_LANES", 4)
    monkeypatch.setattr(shuffle_order, "NUM_WINDOW_SPLITS", 2)


@pytest.fixture
def manager():
    return memory_manager(SIZES)


@pytest.mark.parametrize("shuffle", [True, False])
def test_over_500_resumes_at_every_position_of_two_epochs(manager, shuffle):
    def make() -> StreamDataset:
        return StreamDataset(manager, "data/x/", shuffle=shuffle, prefetch=0)

    length = 2 * TOTAL + 30
    stream = make()
    expected, states = [], [stream.state_dict()]
    for sample in islice(endless(stream), length):
        expected.append(sample["id"])
        states.append(stream.state_dict())
    for stop_after, state in enumerate(states):
        again = make()
        again.load_state_dict(state)
        following = expected[stop_after : stop_after + 5]
        assert ids(islice(endless(again), len(following))) == following
    for stop_after in (0, 1, TOTAL // 2, TOTAL - 1, TOTAL, TOTAL + 1, 2 * TOTAL):
        check_resume(
            make, stop_after, length=length, flatten=lambda s: [s["id"]], expected=expected
        )


@pytest.mark.parametrize("num_ranks", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [True, False])
def test_every_batch_border_of_a_loader(manager, num_ranks, drop_last):
    def make() -> StreamLoader:
        stream = StreamDataset(
            manager, "data/x/", rank=num_ranks - 1, world_size=num_ranks, prefetch=0
        )
        return StreamLoader(stream, 4, drop_last=drop_last)

    expected = None
    for stop_after in range(0, 24, 1 if num_ranks == 3 else 3):
        expected = check_resume(
            make, stop_after, length=50, flatten=lambda b: b["id"].tolist(), expected=expected
        )


def test_ranks_and_workers_may_change_at_a_resume(manager):
    order = ids(StreamDataset(manager, "data/x/"))
    chance = random.Random(1)
    for _ in range(6):
        position, found = 0, {}
        while position < TOTAL:
            world_size, num_workers, batch_size = (chance.randint(1, 4) for _ in range(3))
            steps = chance.randint(1, 6)
            stream = StreamDataset(manager, "data/x/", prefetch=0)
            end = position + steps * batch_size * world_size
            for rank in range(world_size):
                for worker in range(num_workers):
                    share = Share(
                        rank=rank,
                        world_size=world_size,
                        worker=worker,
                        num_workers=num_workers,
                        batch_size=batch_size,
                        equalize="none",
                    )
                    part = read_positions(stream, share, EpochStart(position=position), end=end)
                    found.update({p: s["id"] for p, s in part.items() if p < end})
            position = end
        assert [found[place] for place in range(TOTAL)] == order


def test_a_chain_of_many_resumes_is_one_run(manager):
    whole = islice(endless(StreamDataset(manager, "data/x/")), 4 * TOTAL)
    expected, chance = ids(whole), random.Random(2)
    seen: list[int] = []
    state = None
    while len(seen) < 4 * TOTAL:
        stream = StreamDataset(manager, "data/x/", prefetch=0)
        if state is not None:
            stream.load_state_dict(state)
        seen += ids(islice(endless(stream), chance.randint(0, 40)))
        state = json.loads(json.dumps(stream.state_dict()))
    assert seen[: 4 * TOTAL] == expected


def test_resume_opens_only_the_windows_it_needs():
    manager = memory_manager([20] * 200)
    stream = StreamDataset(manager, "data/x/")
    iterator = iter(stream)
    for _ in range(3000):
        next(iterator)
    state = stream.state_dict()
    manager = DirectManager(manager.spec)
    again = StreamDataset(manager, "data/x/", prefetch=0)
    again.load_state_dict(state)
    assert next(iter(again)) == next(iterator)
    shape = again.index.shape
    assert len(manager.opened) <= shape.num_lanes * shape.num_window_splits


def test_b38_state_goes_on_advancing_after_a_load():
    manager = memory_manager([25] * 4)

    def make() -> StreamLoader:
        return StreamLoader(StreamDataset(manager, "data/x/"), 5)

    def take(loader: StreamLoader, batches: int) -> list[int]:
        return [n for batch in islice(loader, batches) for n in batch["id"].tolist()]

    order = take(make(), 20)
    loader = make()
    pieces = take(loader, 4)
    states = [loader.state_dict()]
    for batches, position in ((5, 45), (5, 70)):
        loader = make()
        loader.load_state_dict(states[-1])
        assert loader.state_dict() == states[-1]
        pieces += take(loader, batches)
        states.append(loader.state_dict())
        assert states[-1]["position"] == position
    loader = make()
    loader.load_state_dict(states[-1])
    pieces += take(loader, 100)
    assert pieces == order

    # S1, one batch, break, iterate again: documented to be the next epoch; saving still works.
    loader = make()
    loader.load_state_dict(states[0])
    assert take(loader, 1) == order[20:25]
    assert loader.state_dict()["position"] == 25
    second = make()
    second.set_epoch(1)
    assert take(loader, 20) == take(second, 20)
    assert loader.state_dict()["epoch"] == 2


@pytest.mark.parametrize(("consumed", "epoch", "position"), [(0, 0, 0), (50, 1, 0), (18, 0, 36)])
def test_b37_state_at_the_edges(consumed, epoch, position):
    loader = StreamLoader(StreamDataset(memory_manager([25] * 4), "data/x/", batch_size=2), 2)
    for _ in islice(loader, consumed):
        pass
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (epoch, position)


def test_reading_to_the_end_stands_at_the_next_epoch(manager):
    stream = StreamDataset(manager, "data/x/")
    ids(stream)
    assert (stream.state_dict()["epoch"], stream.state_dict()["position"]) == (1, 0)
    stream.reset()
    assert stream.state_dict()["epoch"] == 0
    stream.set_epoch(5)
    fifth = ids(stream)
    other = StreamDataset(manager, "data/x/")
    other.set_epoch(5)
    assert ids(other) == fifth
    assert ids(other) == ids(stream)


def changed(manager: DirectManager, key: str, data: bytes | None = None) -> None:
    if data is None:
        manager.store.delete(key)
    else:
        manager.store.put(key, data)


@pytest.mark.parametrize(
    ("key", "data", "kind"),
    [
        ("data/x/train-99999.jsonl", b'{"id":1000}\n', "added"),
        ("data/x/train-00002.jsonl", None, "removed"),
        ("data/x/train-00002.jsonl", b'{"id":1000}\n', "resized"),
        ("data/x/train-00003.jsonl", b'{"id":99}\n', "rewritten"),
    ],
)
def test_changed_data_is_refused_with_what_changed(tmp_path, key, data, kind):
    manager = memory_manager([1, 2, 5, 1], cache_dir=tmp_path)
    put_shards(manager.store, [10, 20, 5])
    manager.store.put("data/x/train-00003.jsonl", b'{"id":98}\n')
    stream = StreamDataset(manager, "data/x/")
    next(iter(stream))
    state = stream.state_dict()
    changed(manager, key, data)
    with pytest.raises(ChangedError) as caught:
        StreamDataset(manager, "data/x/").load_state_dict(state)
    assert caught.value.exit_code == 6
    assert caught.value.detail[kind] == [key.removeprefix("data/x/")]
    assert key.removeprefix("data/x/") in str(caught.value)
    going_on = StreamDataset(manager, "data/x/", allow_changed=True)
    going_on.load_state_dict(state)
    assert len(ids(going_on)) > 20


def test_changed_data_is_refused_without_a_kept_listing_too(manager):
    state = StreamDataset(manager, "data/x/").state_dict()
    changed(manager, "data/x/train-00002.jsonl")
    with pytest.raises(ChangedError) as caught:
        StreamDataset(manager, "data/x/").load_state_dict(state)
    detail = caught.value.detail
    assert (detail["objects_before"], detail["objects_now"]) == (14, 13)
    assert detail["bytes_before"] > detail["bytes_now"]


def test_other_seed_settings_or_version_are_refused_by_name(manager):
    state = StreamDataset(manager, "data/x/").state_dict()
    with pytest.raises(ChangedError, match="seed 42"):
        StreamDataset(manager, "data/x/", seed=1).load_state_dict(state)
    with pytest.raises(ChangedError, match="shuffle was True"):
        StreamDataset(manager, "data/x/", shuffle=False).load_state_dict(state)
    with pytest.raises(UsageError, match="version"):
        StreamDataset(manager, "data/x/").load_state_dict({**state, "version": 99})
    with pytest.raises(UsageError, match="position"):
        StreamDataset(manager, "data/x/").load_state_dict({**state, "position": "far"})


def test_a_number_is_the_same_seed_and_epoch_whatever_library_it_is_of(manager):
    expected = StreamDataset(manager, "data/x/", seed=7)
    expected.set_epoch(3)
    order = ids(expected)
    numbers: tuple[tuple[Any, Any], ...] = (
        (np.int64(7), np.int32(3)), (torch.tensor(7), torch.tensor(3)),
    )  # fmt: skip
    for seed, epoch in numbers:
        stream = StreamDataset(manager, "data/x/", seed=seed)
        stream.set_epoch(epoch)
        iterator = iter(stream)
        first = ids(islice(iterator, 20))
        again = StreamDataset(manager, "data/x/", seed=7)
        again.load_state_dict(json.loads(json.dumps(stream.state_dict())))
        assert first + ids(again) == order
        told = StreamLoader(stream, 4).samples_in_step(2, epoch=epoch)
        assert told == StreamLoader(expected, 4).samples_in_step(2, epoch=3)
        in_memory = StreamDataset.from_samples(range(50), seed=seed)
        assert list(in_memory) == list(StreamDataset.from_samples(range(50), seed=7))
    wrong: tuple[Any, ...] = ("7", 7.0, None)
    for number in wrong:
        with pytest.raises(UsageError, match=f"seed={number}: not a whole number"):
            StreamDataset(manager, "data/x/", seed=number)
    with pytest.raises(UsageError, match=r"epoch=1\.5: not a whole number"):
        expected.set_epoch(cast("int", 1.5))


def damaged_states(state: dict[str, Any]) -> Iterator[Any]:
    order = state["order"]
    yield from (None, [], "x", {}, {"version": 1})
    yield from ({**state, name: -1} for name in ("epoch", "position"))
    hint = order["lanes"]
    for lanes in ("x", {}, {**hint, "windows": hint["windows"][:-1]}, {**hint, "bases": []}):
        yield {**state, "order": {**order, "lanes": lanes}}
    for worker in ({"slot": -1}, {"slot": "x"}, 7):
        yield {**state, "order": {**order, "worker": worker}}


def test_a_damaged_state_is_refused_in_a_sentence(manager):
    stream = StreamDataset(manager, "data/x/")
    iterator = iter(stream)
    list(islice(iterator, 9))
    for state in damaged_states(stream.state_dict()):
        with pytest.raises(UsageError, match="not a stream state"):
            StreamDataset(manager, "data/x/").load_state_dict(state)
    dealt = StreamDataset(manager, "data/x/", partition="files", rank=0, world_size=2, max_drop=1)
    list(islice(dealt, 3))
    good = dealt.state_dict()
    parts = good["order"]["partitions"]
    for wrong in (
        {"positions": [1, 2]},
        {**parts, "positions": [1]},
        {**parts, "positions": [-1, 2]},
    ):
        state = {**good, "order": {**good["order"], "partitions": wrong}}
        other = StreamDataset(
            manager, "data/x/", partition="files", rank=0, world_size=2, max_drop=1
        )
        with pytest.raises(UsageError, match="not a stream state"):
            other.load_state_dict(state)


def test_the_order_is_the_same_on_another_store(manager, tmp_path):
    from tests.brain.stream_data import folder_manager

    local = folder_manager(tmp_path, SIZES)
    stream, other = StreamDataset(manager, "data/x/"), StreamDataset(local, "data/x/")
    assert ids(stream) == ids(other)
    assert stream.index.order_fingerprint == other.index.order_fingerprint
    assert stream.index.change_fingerprint != other.index.change_fingerprint


def test_counts_are_kept_beside_the_cache(tmp_path):
    manager = memory_manager(SIZES, cache_dir=tmp_path)
    with pytest.raises(TypeError, match="not known"):
        len(StreamDataset(manager, "data/x/"))
    ids(StreamDataset(manager, "data/x/"))
    assert len(StreamDataset(manager, "data/x/")) == TOTAL
    (kept,) = (tmp_path / "counts").glob("*.counts")
    kept.write_bytes(kept.read_bytes()[:-1] + b"\xff")
    with pytest.raises(TypeError):
        len(StreamDataset(manager, "data/x/"))


def test_samples_in_step_are_the_samples_delivered(manager):
    loader = StreamLoader(StreamDataset(manager, "data/x/", rank=1, world_size=2), 4)
    delivered = [batch["id"].tolist() for batch in loader]
    first_id = {f"data/x/train-{n:05d}.jsonl": sum(SIZES[:n]) for n in range(len(SIZES))}
    fresh = StreamLoader(StreamDataset(manager, "data/x/", rank=1, world_size=2), 4)
    for step in (0, 3, 7):
        refs = fresh.samples_in_step(step)
        assert [first_id[ref.key] + ref.index for ref in refs][1::2] == delivered[step]


def test_a_long_run_that_saves_no_state_remembers_few_places_and_saves_a_right_one(monkeypatch):
    monkeypatch.setattr(epoch_reader, "_MOST_HINTS", 8)
    manager = memory_manager([3] * 300)
    stream = StreamDataset(manager, "data/x/", prefetch=0)
    iterator = iter(stream)
    seen = [next(iterator)["id"] for _ in range(700)]
    iteration = stream.bookmark.iteration
    assert iteration is not None
    reader = iteration._reader
    assert isinstance(reader, epoch_reader.EpochReader)
    assert len(reader._hints) <= 8
    other = StreamDataset(manager, "data/x/", prefetch=0)
    other.load_state_dict(stream.state_dict())
    assert sorted(seen + ids(other)) == list(range(900))
    assert ids(other)
