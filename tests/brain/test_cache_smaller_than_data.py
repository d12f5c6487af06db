"""P10: with a cache of half the data, the second epoch finds nearly half of it there."""

import pytest

from brain.ml.dataset_shards import shuffle_order
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.simulated_store import SimulatedStore
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

NUM_OBJECTS = 128


def hit_rate(tmp_path, policy: str) -> tuple[float, float]:
    """Return which share of the second epoch's objects was not fetched: as counted, by the store."""
    store = SimulatedStore(NUM_OBJECTS, 4, record_bytes=500)
    manager = StreamingManager.for_store(
        store.register(),
        cache_dir=str(tmp_path / policy),
        cache_bytes=store.object_bytes * NUM_OBJECTS // 2,
        cache_policy=policy,
    )
    stream = StreamDataset(manager, "data/x/", batch_size=4, rank=0, world_size=1)
    first = [sample["id"] for sample in stream]
    gets, before = store.num_gets, manager.get_stats()
    second = [sample["id"] for sample in stream]
    assert sorted(first) == sorted(second) == list(range(4 * NUM_OBJECTS))
    after = manager.get_stats()
    found = after["objects_from_cache"] - before["objects_from_cache"]
    print(f"{policy}: {found / NUM_OBJECTS:.2f} of epoch 2 found in a cache of half the data")  # noqa: T201
    return found / NUM_OBJECTS, 1 - (store.num_gets - gets) / NUM_OBJECTS


@pytest.fixture(autouse=True)
def few_lanes(monkeypatch):
    monkeypatch.setattr(shuffle_order, "NUM_LANES", 4)
    monkeypatch.setattr(shuffle_order, "NUM_WINDOW_SPLITS", 2)


def test_next_use_keeps_what_the_next_epoch_begins_with(tmp_path):
    counted, fetched = hit_rate(tmp_path, "next_use")
    assert counted >= 0.45
    assert fetched >= 0.45


def test_least_recently_used_does_worse_and_its_figure_is_honest(tmp_path):
    counted, fetched = hit_rate(tmp_path, "lru")
    assert counted < 0.4
    assert abs(counted - fetched) < 0.1
