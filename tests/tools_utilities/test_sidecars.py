"""What is made of an object once: kept in memory and in the cache, never needed, never in the way."""

import time
from collections.abc import Callable
from threading import Event, Thread

import pytest

from tests.cache_parts import MB, entries, folder_bytes, held, identity, store
from tools_utilities.cache_entry import sidecar_digest
from tools_utilities.disk_cache import DiskCache
from tools_utilities.object_store import ObjectInfo
from tools_utilities.sidecars import Sidecars


class Maker:
    """Makes a sidecar, and counts how often it was asked to."""

    def __init__(self, content: bytes = b"offsets") -> None:
        self.content, self.times = content, 0

    def __call__(self) -> bytes:
        self.times += 1
        return self.content


def beside(cache: DiskCache | None, **options: int) -> Sidecars:
    """Return the sidecars of a process that has just begun."""
    return Sidecars(lambda info: None if cache is None else (cache, identity(info.key)), **options)


def info_of(key: str) -> ObjectInfo:
    return ObjectInfo(key=key, size_bytes=MB, etag="v1")


def ask(sidecars: Sidecars, make: Callable[[], bytes], key: str = "a") -> bytes | None:
    return sidecars.get(info_of(key), "n", make)


def sidecar(cache: DiskCache, make: Callable[[], bytes]) -> bytes | None:
    """Ask as a process would that has just begun, until it is there and kept."""
    sidecars = beside(cache)
    found = ask(sidecars, make)
    if found is None:
        found = ask(sidecars, make)
    sidecars.settle()
    return found


def test_it_is_made_once_for_all_processes_of_a_cache(tmp_path):
    make = Maker()
    for _ in range(3):
        assert sidecar(DiskCache(tmp_path, MB), make) == b"offsets"
    assert make.times == 1


def test_it_belongs_to_a_name_and_to_a_version_of_an_object():
    named = [("a", "v1", "n-1"), ("a", "v1", "n-2"), ("a", "v2", "n-1"), ("b", "v1", "n-1")]
    found = {sidecar_digest(identity(key, etag=etag), name) for key, etag, name in named}
    assert len(found - {identity("a").digest}) == len(named)


def test_an_object_that_is_opened_once_is_not_gone_through():
    sidecars, make = beside(None), Maker()
    assert ask(sidecars, make) is None
    assert make.times == 0
    assert ask(sidecars, make) == b"offsets"
    assert ask(sidecars, make) == b"offsets"
    assert make.times == 1


def test_the_last_used_are_remembered():
    sidecars, make = beside(None, memory_bytes=2 * (256 + 7)), Maker()
    for key in "aabbacc":
        ask(sidecars, make, key=key)
    assert make.times == 3
    ask(sidecars, make, key="a")
    assert make.times == 3
    ask(sidecars, make, key="b")  # it went for `c`
    assert make.times == 4


def test_nobody_waits_while_it_is_made_and_nobody_makes_it_twice():
    sidecars, make, begun, go = beside(None), Maker(), Event(), Event()

    def slowly() -> bytes:
        begun.set()
        go.wait(30)
        return make()

    assert ask(sidecars, slowly) is None
    maker = Thread(target=ask, args=(sidecars, slowly))
    maker.start()
    assert begun.wait(30)
    assert [ask(sidecars, slowly) for _ in range(9)] == [None] * 9
    go.set()
    maker.join()
    assert ask(sidecars, slowly) == b"offsets"
    assert make.times == 1


def test_what_fails_to_be_made_is_tried_again():
    sidecars = beside(None)

    def fail() -> bytes:
        raise ValueError

    assert ask(sidecars, fail) is None
    with pytest.raises(ValueError):
        ask(sidecars, fail)
    assert ask(sidecars, Maker()) == b"offsets"


def test_what_waits_to_be_written_is_bounded(tmp_path, monkeypatch):
    cache, go, keep = DiskCache(tmp_path, MB), Event(), DiskCache.keep

    def slowly(self: DiskCache, digest: str, content: memoryview) -> None:
        go.wait(30)
        keep(self, digest, content)

    monkeypatch.setattr(DiskCache, "keep", slowly)
    sidecars, make = beside(cache), Maker()
    for number in range(100):
        for _ in range(2):
            ask(sidecars, make, key=str(number))
    go.set()
    sidecars.settle()
    assert make.times == 100
    assert 64 <= len(entries(tmp_path)) <= 65  # and the one under way


# In the cache.


def test_it_is_counted_in_the_budget_and_evicts_nothing(tmp_path):
    cache = DiskCache(tmp_path, 2 * MB + 50_000)
    assert store(cache, "a")
    assert store(cache, "b")
    sidecar(cache, Maker(b"x" * 60_000))
    assert len(entries(tmp_path)) == 2
    sidecar(cache, Maker(b"x" * 40_000))
    assert len(entries(tmp_path)) == 3
    sidecar(cache, Maker(b"y" * 40_000))
    assert len(entries(tmp_path)) == 3
    assert folder_bytes(tmp_path) <= cache.budget_bytes
    assert held(cache, "ab") == "ab"


@pytest.mark.parametrize("policy", ["next_use", "lru"])
def test_it_goes_before_what_is_to_be_read_again(tmp_path, policy):
    cache = DiskCache(tmp_path, 2 * MB + 50_000, policy=policy)
    assert store(cache, "a")
    sidecar(cache, Maker(b"x" * 900_000))
    cache.set_order([identity(key).digest for key in "ab"])
    assert store(cache, "b")
    assert held(cache, "ab") == "ab"
    assert folder_bytes(tmp_path) <= cache.budget_bytes


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "longer"])
def test_a_damaged_one_is_made_again(tmp_path, damage):
    cache, content = DiskCache(tmp_path, MB), bytes(range(256)) * 10
    sidecar(cache, Maker(content))
    [path] = entries(tmp_path)
    path.chmod(0o600)
    changed = {
        "flipped": content[:99] + b"\xff" + content[100:],
        "cut": content[:-1],
        "emptied": b"",
        "longer": content + b"\0",
    }[damage]
    path.write_bytes(changed)
    again = Maker(content)
    assert sidecar(DiskCache(tmp_path, MB), again) == content
    assert again.times == 1
    assert sidecar(DiskCache(tmp_path, MB), again) == content
    assert again.times == 1


def test_large_ones_are_kept_when_their_object_is_read_again(tmp_path):
    cache = DiskCache(tmp_path, 3 * MB)
    sidecars, content = beside(cache), memoryview(b"x" * 2000)

    def make() -> memoryview:
        return content

    just_now = time.time_ns()
    for times in range(2):
        assert sidecars.open(info_of("a"), "n") is None
        sidecars.offer(info_of("a"), "n", make, fetched_ns=just_now)
        sidecars.settle()
        assert len(entries(tmp_path)) == times
    found = sidecars.open(info_of("a"), "n")
    assert found is not None
    assert found.view == content
    found.close()
    # What lay in the cache when this process began has been read before.
    sidecars.offer(info_of("b"), "n", make, fetched_ns=just_now - 10**12)
    sidecars.settle()
    assert len(entries(tmp_path)) == 2
    sidecars.offer(info_of("c"), "n", make, fetched_ns=None)
    sidecars.settle()
    assert len(entries(tmp_path)) == 2


def test_a_large_one_that_is_read_is_not_evicted(tmp_path):
    cache = DiskCache(tmp_path, 2 * MB + 50_000)
    assert store(cache, "a")
    sidecars = beside(cache)
    sidecars.offer(info_of("a"), "n", lambda: memoryview(b"x" * MB), fetched_ns=0)
    sidecars.settle()
    found = sidecars.open(info_of("a"), "n")
    assert found is not None
    assert store(cache, "b")
    assert held(cache, "ab") == "b"
    found.close()
    assert store(cache, "c")
    assert held(cache, "bc") == "bc"


def test_bytes_that_wait_to_be_written_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("tools_utilities.sidecars._MOST_WAITING_BYTES", 2500)
    cache, go, keep = DiskCache(tmp_path, MB), Event(), DiskCache.keep

    def slowly(self: DiskCache, digest: str, content: memoryview) -> None:
        go.wait(30)
        keep(self, digest, content)

    monkeypatch.setattr(DiskCache, "keep", slowly)
    sidecars = beside(cache)
    for key in "abcde":
        sidecars.offer(info_of(key), "n", lambda: memoryview(b"x" * 1000), fetched_ns=0)
    go.set()
    sidecars.settle()
    assert len(entries(tmp_path)) == 2
    sidecars.offer(
        info_of("e"), "n", lambda: memoryview(b"x" * 9000), fetched_ns=0
    )  # alone it may be larger
    sidecars.settle()
    assert len(entries(tmp_path)) == 3


def test_one_that_says_nothing_takes_no_entry(tmp_path):
    assert sidecar(DiskCache(tmp_path, MB), Maker(b"")) == b""
    assert entries(tmp_path) == []


def test_a_cache_that_cannot_be_used_costs_nothing_but_the_making(tmp_path, monkeypatch):
    cache, make = DiskCache(tmp_path, MB), Maker()

    def broken(*_arguments: object, **_options: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(DiskCache, "reserve", broken)
    assert sidecar(cache, make) == b"offsets"
    monkeypatch.setattr(DiskCache, "find", broken)
    assert sidecar(cache, make) == b"offsets"
    assert make.times == 2
    assert entries(tmp_path) == []


def test_a_write_that_fails_leaves_no_room_taken(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path, MB)
    before = folder_bytes(tmp_path)

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tools_utilities.disk_cache.Reservation.write", full)
    assert sidecar(cache, Maker(b"x" * 1000)) == b"x" * 1000
    assert folder_bytes(tmp_path) == before
