"""Reading ahead overlaps with computing, asks for nothing twice, and changes nothing."""

from threading import Event

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.simulated_store import SimulatedStore
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

NUM_SHARDS = 6
PER_SHARD = 8


class WatchedStore(SimulatedStore):
    """Says when each object's first request has come in."""

    def __init__(self, **settings: float) -> None:
        super().__init__(NUM_SHARDS, PER_SHARD, latency_seconds=settings.get("latency_seconds", 0))
        self.asked = {self.key(number): Event() for number in range(NUM_SHARDS)}

    def began(self, key: str) -> None:
        self.asked[key].set()


def read(store: SimulatedStore, tmp_path, name: str, **settings) -> list[list[int]]:
    manager = StreamingManager.for_store(
        store.register(), cache_dir=str(tmp_path / name), cache_bytes=1_000_000_000
    )
    stream = StreamDataset(manager, "data/x/", rank=0, world_size=1, **settings)
    loader = StreamLoader(
        stream, PER_SHARD, collate_fn=lambda batch: [sample["id"] for sample in batch]
    )
    batches = []
    for batch in loader:
        batches.append(batch)
        if isinstance(store, WatchedStore) and len(batches) < NUM_SHARDS:
            # This is the step: it does not end before the next shard has been asked for.
            assert store.asked[store.key(len(batches))].wait(20)
    return batches


def test_the_next_shard_is_asked_for_before_the_step_ends(tmp_path):
    store = WatchedStore(latency_seconds=0.01)
    batches = read(store, tmp_path, "cache", shuffle=False)
    assert [batch[0] for batch in batches] == [n * PER_SHARD for n in range(NUM_SHARDS)]
    assert store.num_gets == NUM_SHARDS


def test_reading_ahead_has_several_requests_open_and_no_more_of_them(tmp_path):
    orders = []
    for prefetch, shuffle in ((0, True), ("auto", True), (2, True)):
        store = SimulatedStore(NUM_SHARDS * 4, PER_SHARD, latency_seconds=0.02)
        orders.append(read(store, tmp_path, f"c{prefetch}", prefetch=prefetch, shuffle=shuffle))
        assert store.num_gets == NUM_SHARDS * 4
        assert (store.most_open_gets > 1) == (prefetch != 0)
    assert orders[0] == orders[1] == orders[2]


def test_cold_and_warm_are_one_sequence(tmp_path):
    store = SimulatedStore(NUM_SHARDS * 4, PER_SHARD)
    cold = read(store, tmp_path, "cache")
    asked = store.num_gets
    assert read(store, tmp_path, "cache") == cold
    assert store.num_gets == asked
