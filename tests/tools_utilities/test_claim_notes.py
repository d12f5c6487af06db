"""What workers tell each other of done shards, and that requests a shard do not grow with the workers."""

import json

import pytest

from tests.claim_counting import Race
from tests.tools_utilities.test_claim_search import CountingStore, manager_of
from tools_utilities.claim_notes import NOTES_NAME, DoneNotes
from tools_utilities.errors import StoreError
from tools_utilities.object_store import StoreSpec
from tools_utilities.object_stores.memory import MemoryStore

MOST_GROWTH = 1.5


def requests_a_shard(num_workers: int, work_seconds: float = 0.0, **options) -> float:
    races = [
        Race(seed, num_workers=num_workers, num_shards=200, work_seconds=work_seconds, **options)
        for seed in range(2)
    ]
    return sum(race.run() for race in races) / len(races)


class Silent(DoneNotes):
    """Nobody tells anybody."""

    def read(self):
        return {}

    def add(self, done):
        return None


@pytest.mark.parametrize("work_seconds", [0.0, 1.0])
def test_requests_a_shard_do_not_grow_with_the_workers(work_seconds):
    alone = requests_a_shard(1, work_seconds)

    # A claim, its completion, and metadata.json read once and written twice.
    assert alone == pytest.approx(5, abs=0.1)
    for num_workers in (2, 4):
        assert requests_a_shard(num_workers, work_seconds) <= MOST_GROWTH * alone, num_workers


def test_without_notes_they_would():
    """Each of N workers would read what N - 1 others completed."""
    assert requests_a_shard(4, notes_type=Silent) > MOST_GROWTH * 5
    assert requests_a_shard(8) < 0.7 * requests_a_shard(8, notes_type=Silent)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(StoreSpec(uri="memory://notes"))


class TestNotes:
    """One object that several workers add to."""

    def test_what_was_added_is_read(self, store):
        notes = DoneNotes(store, "d/")
        assert notes.read() == {}
        notes.add({3: "a"})
        notes.add({4: "b", 3: "c"})
        assert DoneNotes(store, "d/").read() == {3: "c", 4: "b"}
        assert [info.key for info in store.list("")] == [f"d/{NOTES_NAME}"]

    def test_two_that_add_at_once_keep_both(self, store):
        plain_get, other = store.get, DoneNotes(store, "")

        def get_then_lose(key, **options):
            found = plain_get(key, **options)
            store.get = plain_get
            other.add({2: "b"})
            return found

        other.add({1: "a"})
        store.get = get_then_lose
        DoneNotes(store, "").add({3: "c"})
        assert other.read() == {1: "a", 2: "b", 3: "c"}

    def test_what_is_no_note_is_not_read_and_is_replaced(self, store):
        store.put(NOTES_NAME, b"[not notes")
        notes = DoneNotes(store, "")
        assert notes.read() == {}
        notes.add({1: "a"})
        assert notes.read() == {1: "a"}

    def test_trouble_is_no_error(self, store):
        def fails(*_args, **_options):
            raise StoreError("503", status=503, transient=True)

        store.get = store.put_if_absent = fails
        notes = DoneNotes(store, "")
        assert notes.read() == {}
        notes.add({1: "a"})


class TestUse:
    """A note counts for the version that the listing shows, and for no other."""

    @pytest.fixture
    def store(self) -> CountingStore:
        return CountingStore()

    def finished_by(self, store: CountingStore, tmp_path, count: int) -> None:
        """Let a worker complete the first shards, and tell of them as it comes to the others' work."""
        worker = manager_of(store, "before", tmp_path)
        for number in range(count):
            worker.claim_shard(number)
            worker.mark_completed(number)
        done = {
            number: store.head(f"shard_{number:03d}/claim.json").etag for number in range(count)
        }
        DoneNotes(store, "").add({number: etag for number, etag in done.items() if etag})
        store.counted.clear()

    def test_records_that_are_noted_are_not_read(self, store, tmp_path):
        self.finished_by(store, tmp_path, 40)
        manager = manager_of(store, "a", tmp_path)

        assert manager.claim_shard() is None

        assert manager.open_shards() == []
        assert store.counted["get claim"] == 0

    def test_a_record_that_changed_since_is_read(self, store, tmp_path):
        self.finished_by(store, tmp_path, 40)
        manager_of(store, "operator", tmp_path).reset(7, force=True)

        found = manager_of(store, "a", tmp_path).claim_shard()

        assert found is not None
        assert found.shard_id == 7

    def test_the_operators_own_search_forgets_it(self, store, tmp_path):
        self.finished_by(store, tmp_path, 40)
        manager = manager_of(store, "a", tmp_path)
        assert manager.claim_shard() is None
        manager.reset(7, force=True)
        assert manager.open_shards() == [7]
        found = manager.claim_shard()
        assert found is not None
        assert found.shard_id == 7

    def test_forged_notes_hide_nothing(self, store, tmp_path):
        store.put(NOTES_NAME, json.dumps({str(n): "no version" for n in range(40)}).encode())
        other, manager = manager_of(store, "b", tmp_path), manager_of(store, "a", tmp_path)
        for number in range(20):
            other.claim_shard(number)
            other.mark_failed(number, "gave up")

        claimed = {claim.shard_id for _ in range(40) if (claim := manager.claim_shard())}

        assert claimed == set(range(40))

    def test_what_was_read_is_told(self, store, tmp_path):
        other = manager_of(store, "b", tmp_path)
        for number in range(20):
            other.claim_shard(number)
            other.mark_completed(number)
        manager = manager_of(store, "a", tmp_path)
        while manager.claim_shard() is not None:
            pass
        assert manager.open_shards() == list(range(20, 40))

        notes = DoneNotes(store, "").read()

        assert set(notes) <= set(range(20))
        assert len(notes) >= 8


def test_what_a_hold_completed_is_not_read_again(tmp_path):
    store = CountingStore()
    other, manager = manager_of(store, "b", tmp_path), manager_of(store, "a", tmp_path)
    for number in range(10):
        other.claim_shard(number)
    while (claim := manager.claim_shard()) is not None:
        with manager.hold(claim) as hold:
            hold.complete()
    store.counted.clear()

    assert manager.claim_shard() is None
    assert manager.open_shards() == list(range(10))

    assert store.counted["get claim"] == 0


def test_shards_left_to_others_are_not_read(tmp_path):
    store = CountingStore()
    other, manager = manager_of(store, "b", tmp_path), manager_of(store, "a", tmp_path)
    for number in range(40):
        other.claim_shard(number)
    left_out = set(range(1, 40))
    store.counted.clear()

    assert manager.claim_shard(skip=left_out) is None

    assert store.counted["get claim"] == 1
