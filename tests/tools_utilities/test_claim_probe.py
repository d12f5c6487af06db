"""The probe before the first claim: it refuses a store on proof alone, and leaves nothing behind."""

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from uuid import UUID

import pytest

from tools_utilities import claim_probe
from tools_utilities.claim_probe import RACERS
from tools_utilities.errors import ConditionFailedError, StoreError, UsageError
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store
from tools_utilities.object_stores.memory import MemoryStore

UNIQUE = UUID(int=7)

# Patient for as many requests as people's time allows, in a fiftieth of it.
probe_conditions = functools.partial(
    claim_probe.probe_conditions, sleep=lambda seconds: time.sleep(seconds / 50)
)


def busy(key: str) -> StoreError:
    return StoreError(f"{key}: 503 SlowDown", status=503, transient=True)


class TroubledStore(MemoryStore):
    """Fails the first `times` requests of every kind on every key, before or after doing them."""

    def __init__(self, *, times: int = 2, applies: bool = False) -> None:
        super().__init__(StoreSpec(uri="memory://troubled"))
        self.times = times
        self.applies = applies
        self.seen: Counter[tuple[str, str]] = Counter()
        self.lock = threading.Lock()

    def troubled(self, kind: str, key: str) -> bool:
        with self.lock:
            self.seen[kind, key] += 1
            return self.seen[kind, key] <= self.times

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        failing = self.troubled("create", key)
        if failing and not self.applies:
            raise busy(key)
        done = super().put_if_absent(key, data)
        if failing:
            raise busy(key)
        return done

    def put_if_match(self, key, data, etag):
        failing = self.troubled("replace", key)
        if failing and not self.applies:
            raise busy(key)
        done = super().put_if_match(key, data, etag)
        if failing:
            raise busy(key)
        return done

    def get(self, key, **options):
        if self.troubled("get", key):
            raise busy(key)
        return super().get(key, **options)

    def head(self, key):
        if self.troubled("head", key):
            raise busy(key)
        return super().head(key)

    def list(self, prefix: str, **options: str) -> Iterator[ObjectInfo]:
        if self.troubled("list", prefix):
            raise busy(prefix)
        return super().list(prefix, **options)

    def delete(self, key):
        if self.troubled("delete", key) and self.seen["delete", key] <= 2:
            raise busy(key)
        super().delete(key)


@pytest.mark.parametrize(
    ("times", "applies"),
    [(1, False), (1, True), (RACERS, True), (RACERS, False)],
)
def test_an_honest_store_in_trouble_is_not_refused(applies, times):
    store = TroubledStore(times=times, applies=applies)

    probe_conditions(store, "d/", UNIQUE)

    assert store.seen["create", f"d/.quark-probe-{UNIQUE}-0"] > RACERS
    store.times = 0
    assert not list(store.list(""))


def test_a_store_that_never_answers_is_not_called_dishonest():
    with pytest.raises(StoreError, match="503"):
        probe_conditions(TroubledStore(times=10**9), "", UNIQUE, seconds=0.1)


class UnknownStore(TroubledStore):
    """Says of the first conditional puts that nobody knows, as a broken connection leaves it."""

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        return self.unknown("create", key, lambda: MemoryStore.put_if_absent(self, key, data))

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectInfo:
        return self.unknown("replace", key, lambda: MemoryStore.put_if_match(self, key, data, etag))

    def unknown(self, kind: str, key: str, put: Callable[[], ObjectInfo]) -> ObjectInfo:
        failing = self.troubled(kind, key)
        done = None if failing and not self.applies else put()
        if failing or done is None:
            raise ConditionFailedError(f"{key}: nobody can say", status=503, unknown=True)
        return done


@pytest.mark.parametrize("applies", [False, True])
def test_an_outcome_that_nobody_can_tell_is_no_refusal(applies):
    probe_conditions(UnknownStore(times=3, applies=applies), "", UNIQUE)
    with pytest.raises(StoreError, match="nobody can say") as caught:
        probe_conditions(UnknownStore(times=10**9), "", UNIQUE, seconds=0.1)
    assert not isinstance(caught.value, ConditionFailedError)


class Dishonest(TroubledStore):
    def put_if_absent(self, key, data):
        if self.troubled("create", key):
            raise busy(key)
        return self.put(key, data)


class Stale(TroubledStore):
    def put_if_match(self, key, data, etag):
        if self.troubled("replace", key):
            raise busy(key)
        return self.put(key, data)


class NeverMatches(TroubledStore):
    def put_if_match(self, key, data, etag):
        raise ConditionFailedError(key)


class SecondWriteWins(TroubledStore):
    """Tells one creator that it won, and lets the next one write over it."""

    def put_if_absent(self, key, data):
        found = self.troubled("create", key)
        self.put(key, data)
        if not found:
            raise ConditionFailedError(key)


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        (Dishonest(times=2), "were told they won"),
        (SecondWriteWins(times=1), "created again"),
        (Stale(times=1), "stale version was accepted"),
        (NeverMatches(times=0), "current version is refused"),
    ],
)
def test_a_dishonest_store_is_refused_also_when_it_is_in_trouble(store, reason):
    with pytest.raises(UsageError, match=reason) as caught:
        probe_conditions(store, "", UNIQUE)
    assert "conditional writes" in caught.value.hint


class Conflicts(TroubledStore):
    """Answers 409 to all the first racers at once, and creates nothing."""

    def put_if_absent(self, key, data):
        if self.troubled("create", key):
            raise ConditionFailedError(key, status=409)
        return super().put_if_absent(key, data)


def test_a_conflict_told_to_every_creator_is_tried_again():
    probe_conditions(Conflicts(times=0), "", UNIQUE)
    store = Conflicts(times=RACERS)
    probe_conditions(store, "", UNIQUE)
    assert store.seen["create", f".quark-probe-{UNIQUE}-0"] > RACERS


def test_a_local_folder_is_left_as_it_was(tmp_path):
    (tmp_path / "shard_000").mkdir()
    store = open_store(StoreSpec(uri=f"file://{tmp_path}"))

    probe_conditions(store, "", UNIQUE)
    probe_conditions(store, "deep/", UNIQUE)

    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    assert {name for name in left if not name.startswith(".quark-locks")} == {"shard_000", "deep"}
