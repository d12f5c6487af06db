"""Finding a shard to claim: how many requests it takes, and that nobody is robbed or sent in vain."""

import json
from collections import Counter

import pytest

from tools_utilities.claim_search import listing_pays
from tools_utilities.errors import AccessError
from tools_utilities.manifest import Chunk, Shard
from tools_utilities.object_store import StoreSpec
from tools_utilities.object_stores._bodies import BytesBody
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.shard_lease import Clock, ShardLease

NUM_SHARDS = 40


class CountingStore(MemoryStore):
    """Counts requests by kind, those for claim records apart."""

    def __init__(self, num_shards: int = NUM_SHARDS) -> None:
        super().__init__(StoreSpec(uri="memory://counting"))
        rows = [{"shard_id": n, "directory": f"shard_{n:03d}"} for n in range(num_shards)]
        chunk = {"chunk_id": 0, "file": "chunk_0000.jsonl", "num_tasks": 1, "size_mb": 0.1}
        for row in rows:
            metadata = {**row, "total_tasks": 1, "num_chunks": 1, "chunks": [chunk]}
            self.put(f"{row['directory']}/metadata.json", json.dumps(metadata).encode())
        master = {"total_tasks": num_shards, "num_shards": num_shards, "chunk_size_mb": 1}
        self.put("master_metadata.json", json.dumps({**master, "shards": rows}).encode())
        self.counted: Counter[str] = Counter()

    def count(self, action: str, key: str) -> None:
        kind = "claim" if key.endswith("claim.json") else "other"
        self.counted[f"{action} {kind}"] += 1

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> BytesBody:
        self.count("get", key)
        return super().get(key, start=start, end=end, if_etag=if_etag)

    def put_if_absent(self, key, data):
        self.count("put", key)
        return super().put_if_absent(key, data)

    def put_if_match(self, key, data, etag):
        self.count("put", key)
        return super().put_if_match(key, data, etag)

    def list(self, prefix, *, start_after=""):
        self.counted["list"] += 1
        return super().list(prefix, start_after=start_after)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


def manager_of(store: CountingStore, worker: str, tmp_path, **options) -> ShardManager:
    manager = ShardManager(
        "memory://counting", worker, store=store, state_dir=tmp_path / worker, **options
    )
    manager._probed = True
    assert manager.manifest.num_samples
    store.counted.clear()
    return manager


def test_a_fresh_dataset_costs_one_listing_and_one_put_a_claim(store, tmp_path):
    manager = manager_of(store, "a", tmp_path)

    claimed = [claim.shard_id for _ in range(NUM_SHARDS) if (claim := manager.claim_shard())]

    assert claimed == list(range(NUM_SHARDS))
    assert (store.counted["list"], store.counted["put claim"]) == (1, NUM_SHARDS)
    assert store.counted["get claim"] == 0


def test_done_and_held_shards_are_not_read_again(store, tmp_path):
    other, manager = manager_of(store, "b", tmp_path), manager_of(store, "a", tmp_path)
    for number in range(NUM_SHARDS - 1):
        other.claim_shard(number)
        if number % 2:
            other.mark_completed(number)
    assert manager.claim_shard() is not None
    assert manager.claim_shard() is None
    store.counted.clear()

    assert manager.claim_shard() is None

    assert store.counted == Counter({"list": 1})


def test_a_claim_by_somebody_else_since_the_listing_is_found_out(store, tmp_path):
    manager, other = manager_of(store, "a", tmp_path), manager_of(store, "b", tmp_path)
    assert manager.claim_shard() is not None  # lists
    for number in range(1, NUM_SHARDS - 1):
        other.claim_shard(number)

    last = manager.claim_shard()

    assert last is not None
    assert last.shard_id == NUM_SHARDS - 1
    assert manager.claim_shard() is None


def test_a_lost_race_goes_on_elsewhere(store, tmp_path):
    clock = Clock(jitter=lambda: 0.5)
    manager, other = (manager_of(store, name, tmp_path, clock=clock) for name in "ab")
    assert manager.claim_shard() is not None
    other.claim_shard(1)

    found = manager.claim_shard()

    assert found is not None
    assert found.shard_id == 2 + (NUM_SHARDS - 2) // 2
    rest = {claim.shard_id for _ in range(NUM_SHARDS) if (claim := manager.claim_shard())}
    assert rest == set(range(2, NUM_SHARDS)) - {found.shard_id}


@pytest.mark.parametrize(("list_seconds", "listings"), [(0.0, 4), (2.0, 2), (100.0, 1)])
def test_lost_races_are_paid_for_until_a_listing_costs_less(
    store, tmp_path, list_seconds, listings
):
    """Three races are lost, of a second each; a listing takes so long."""
    now = [0.0]
    manager = manager_of(store, "a", tmp_path, clock=Clock(now=lambda: now[0], jitter=lambda: 0.0))
    other = manager_of(store, "b", tmp_path)
    plain_list, plain_put = store.list, store.put_if_absent

    def slow_list(prefix, *, start_after=""):
        now[0] += list_seconds
        return plain_list(prefix, start_after=start_after)

    def slow_put(key, data):
        now[0] += 1
        return plain_put(key, data)

    store.list = slow_list
    assert manager.claim_shard() is not None
    for number in (1, 4, 7):
        other.claim_shard(number)
        store.put_if_absent = slow_put
        for _ in range(2):
            assert manager.claim_shard() is not None
        store.put_if_absent = plain_put
    assert store.counted["list"] == listings


def test_what_a_holder_freed_is_claimed_in_the_next_pass(store, tmp_path):
    manager, other = manager_of(store, "a", tmp_path), manager_of(store, "b", tmp_path)
    other.claim_shard(7)
    for _ in range(NUM_SHARDS - 1):
        assert manager.claim_shard() is not None
    assert manager.claim_shard() is None
    other.mark_failed(7, "gave up")

    found = manager.claim_shard()

    assert found is not None
    assert found.shard_id == 7


def test_without_a_listing_records_are_read_one_by_one(store, tmp_path):
    def refuses(prefix, *, start_after=""):
        raise AccessError("no right to list")

    store.list = refuses
    manager = manager_of(store, "a", tmp_path)

    claimed = [claim.shard_id for _ in range(NUM_SHARDS) if (claim := manager.claim_shard())]

    assert claimed == list(range(NUM_SHARDS))


@pytest.mark.parametrize(
    ("num_shards", "chunks", "pays"), [(8, 1, False), (9, 1, True), (40, 20, True), (9, 500, False)]
)
def test_a_listing_must_cost_less_than_what_it_saves(num_shards, chunks, pays):
    files = tuple(Chunk(key=str(n), num_samples=1) for n in range(chunks))
    shards = [Shard(shard_id=n, chunks=files) for n in range(num_shards)]
    assert listing_pays(shards, num_shards) is pays


def test_a_new_holder_met_in_a_lost_race_is_watched_from_then():
    """A version that was read because a claim failed is as new as any: its holder lives."""
    now = [0.0]
    store = MemoryStore(StoreSpec(uri="memory://watch"))
    clock = Clock(now=lambda: now[0], sleep=lambda _: None)

    def lease(owner: str) -> ShardLease:
        return ShardLease(store, "k", owner, lease_seconds=10, clock=clock)

    gone, late, quick = lease("gone"), lease("late"), lease("quick")
    assert gone.try_claim()
    late.look()
    quick.look()
    now[0] = 13.0
    assert late.claimable()
    assert quick.claim_seen()
    assert not late.claim_seen()  # lost, and has read the new holder's record

    now[0] = 14.0
    assert not late.try_claim()
    assert quick.renew()


class TestShown:
    """metadata.json, which people read, is never set back to an older record."""

    def shown(self, store: CountingStore) -> dict[str, object]:
        content = json.loads(b"".join(store.get("shard_000/metadata.json")))
        assert isinstance(content, dict)
        return content

    def test_a_late_writer_does_not_hide_what_happened_since(self, store, tmp_path):
        stale, operator = manager_of(store, "stale", tmp_path), manager_of(store, "op", tmp_path)
        claim = stale.claim_shard(0)
        assert claim is not None
        record = stale._lease(0).record
        operator.reset(0)
        operator.claim_shard(0)
        operator.mark_completed(0)

        stale.tell_progress(claim, record, 1)

        now = self.shown(store)
        assert (now["status"], now["assigned_to"]) == ("completed", "op")
        assert "progress" not in now

    def test_a_claim_reads_it_once_and_a_completion_not_at_all(self, store, tmp_path):
        manager = manager_of(store, "a", tmp_path)
        manager.claim_shard(0)
        manager.mark_completed(0)

        assert (store.counted["get other"], store.counted["put other"]) == (1, 2)
        assert self.shown(store)["status"] == "completed"

    def test_progress_keeps_the_start(self, store, tmp_path):
        now = [0.0]
        manager = manager_of(store, "a", tmp_path, wall_clock=lambda: now[0])
        claim = manager.claim_shard(0)
        assert claim is not None
        now[0] = 3600.0
        manager.tell_progress(claim, manager._lease(0).record, 1)
        shown = self.shown(store)
        assert shown["started_at"] == "1970-01-01T00:00:00+00:00"
        assert shown["progress"] == "1/1 chunks"
