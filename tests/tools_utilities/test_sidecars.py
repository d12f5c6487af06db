"""What is made of an object once: kept in memory and in the cache, never needed, never in the way."""

import resource
import time
from collections.abc import Callable, Iterator
from threading import Event, Thread

import pytest

from tests.cache_parts import MB, SmallDisk, entries, files, folder_bytes, held, identity, store
from tests.memory_peak import memory_peak
from tools_utilities.cache_entry import sidecar_digest
from tools_utilities.disk_cache import DiskCache
from tools_utilities.object_store import ObjectInfo
from tools_utilities.sidecars import Sidecars
from tools_utilities.spare_entry import SpareContent, keep_spare
from tools_utilities.spill import Spill


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


def whole(content: bytes) -> SpareContent:
    return SpareContent(len(content), [memoryview(content)])


def offer(sidecars: Sidecars, key: str, num_bytes: int) -> None:
    """Have a large one kept."""
    content = whole(b"x" * num_bytes)
    sidecars.offer(info_of(key), "n", lambda: content, about_bytes=num_bytes)


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
    cache, go = DiskCache(tmp_path, MB), Event()

    def slowly(cache: DiskCache, digest: str, content: SpareContent) -> None:
        go.wait(30)
        keep_spare(cache, digest, content)

    monkeypatch.setattr("tools_utilities.sidecars.keep_spare", slowly)
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
def test_a_damaged_one_is_made_again(tmp_path, damage, caplog):
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
    assert caplog.messages == []  # a power cut may tear many: no news


def test_what_is_read_for_the_first_time_is_not_worth_looking_for(tmp_path):
    sidecars, just_now = beside(DiskCache(tmp_path, MB)), time.time_ns()

    def read_again(key: str, fetched_ns: int | None) -> bool:
        return sidecars.is_read_again(info_of(key), "n", fetched_ns=fetched_ns)

    assert [read_again("a", just_now) for _ in range(3)] == [False, True, True]
    # What lay in the cache when this process began has been read before.
    assert read_again("b", just_now - 10**12)
    assert not read_again("c", None)


def test_large_ones_are_kept_and_leased(tmp_path):
    cache = DiskCache(tmp_path, 2 * MB + 50_000)
    assert store(cache, "a")
    sidecars = beside(cache)
    assert sidecars.open(info_of("a"), "n") is None
    offer(sidecars, "a", MB)
    sidecars.settle()
    found = sidecars.open(info_of("a"), "n")
    assert found is not None
    assert found.view == b"x" * MB
    assert store(cache, "b")
    assert held(cache, "ab") == "b"
    found.close()
    assert store(cache, "c")
    assert held(cache, "bc") == "bc"


def test_bytes_that_wait_to_be_written_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("tools_utilities.sidecars._MOST_WAITING_BYTES", 2500)
    cache, go = DiskCache(tmp_path, MB), Event()

    def slowly(cache: DiskCache, digest: str, content: SpareContent) -> None:
        go.wait(30)
        keep_spare(cache, digest, content)

    monkeypatch.setattr("tools_utilities.sidecars.keep_spare", slowly)
    sidecars = beside(cache)
    for key in "abcde":
        offer(sidecars, key, 1000)
    go.set()
    sidecars.settle()
    assert len(entries(tmp_path)) == 2
    offer(sidecars, "e", 9000)  # alone it may be larger
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


def test_a_budget_of_next_to_nothing_evicts_nothing_for_one_either(tmp_path):
    cache = DiskCache(tmp_path, 250)
    assert store(cache, "a", 120)
    sidecar(cache, Maker(b"x" * 140))
    assert [path.stat().st_size for path in entries(tmp_path)] == [120]


def test_nothing_is_made_that_has_no_room(tmp_path):
    sidecars, made = beside(DiskCache(tmp_path, MB)), []

    def make() -> SpareContent:
        made.append(1)
        return whole(b"x" * 10)

    for about_bytes in (2 * MB, 10):
        sidecars.offer(info_of("a"), "n", make, about_bytes=about_bytes)
        sidecars.settle()
        assert len(made) == len(entries(tmp_path)) == int(about_bytes == 10)


def test_what_cannot_be_made_leaves_room_for_what_waits_behind_it(tmp_path, monkeypatch):
    monkeypatch.setattr("tools_utilities.sidecars._MOST_WAITING_BYTES", 100)
    sidecars = beside(DiskCache(tmp_path, MB))

    def fail() -> SpareContent:
        raise MemoryError

    with pytest.raises(MemoryError):
        sidecars.offer(info_of("a"), "n", fail, about_bytes=90)
    sidecars.offer(info_of("b"), "n", lambda: None, about_bytes=90)
    for key in "cd":
        offer(sidecars, key, 90)
        sidecars.settle()
    assert len(entries(tmp_path)) == 2


def test_a_quota_that_is_met_by_one_warns_of_nothing(tmp_path, caplog):
    cache = DiskCache(tmp_path, MB, disk=SmallDisk(100 * MB, tmp_path, full=True))
    sidecar(cache, Maker(b"x" * 1000))
    assert entries(tmp_path) == []
    assert caplog.messages == []
    assert not store(cache, "a", 1000)
    assert len(caplog.messages) == 1


def test_a_large_one_is_written_in_little_memory(tmp_path):
    spill, piece, num_pieces = Spill(memory_bytes=0), bytes(range(256)) * 4096, 100
    for _ in range(num_pieces):
        spill.write(piece)
    num_bytes = len(spill.view())
    content = SpareContent(num_bytes, spill.passing(1 << 20))
    cache = DiskCache(tmp_path, 200 * MB)
    spill.close()  # as the split may be before its content is written
    with memory_peak() as peak:
        keep_spare(cache, identity("a").digest, content)
    assert peak.num_bytes < 20 << 20
    found = cache.find(identity("a").digest)
    assert found is not None
    assert all(
        found.view[start : start + len(piece)] == piece
        for start in range(0, num_bytes, 10 * len(piece))
    )
    found.close()


def test_two_processes_do_not_write_the_same_one_at_once(tmp_path):
    caches, digest = [DiskCache(tmp_path, MB) for _ in range(2)], identity("a").digest
    seen = []

    def pieces() -> Iterator[memoryview]:
        keep_spare(caches[1], digest, whole(b"x" * 1000))  # while the first writes it
        seen.append(len([path for path in files(tmp_path) if path.suffix == ".tmp"]))
        yield memoryview(b"x" * 1000)

    keep_spare(caches[0], digest, SpareContent(1000, pieces()))
    assert seen == [1]
    assert len(entries(tmp_path)) == 1
    assert len(files(tmp_path)) == 2  # and the ledger


def test_one_that_is_there_but_cannot_be_mapped_stays_counted(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path, 10_000)

    def no_more_files(*_arguments: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr("tools_utilities.disk_cache.CachedFile", no_more_files)
        sidecar(cache, Maker(b"x" * 6000))
    assert len(entries(tmp_path)) == 1
    sidecar(cache, Maker(b"y" * 3000))
    offer(beside(cache), "b", 6000)
    assert folder_bytes(tmp_path) <= 10_000
    with cache._locked() as ledger:
        assert ledger.used_bytes >= folder_bytes(tmp_path)


def test_a_thread_that_cannot_be_had_costs_only_the_keeping(tmp_path, monkeypatch):
    def refuse(_thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    cache = DiskCache(tmp_path, MB)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", refuse)
        sidecars = beside(cache)
        for _ in range(2):
            offer(sidecars, "a", 1000)
        sidecars.settle()
        assert entries(tmp_path) == []
    offer(sidecars, "a", 1000)
    sidecars.settle()
    assert len(entries(tmp_path)) == 1


def test_a_low_limit_on_open_files_is_left_to_others(tmp_path, monkeypatch):
    sidecars = beside(DiskCache(tmp_path, MB))
    offer(sidecars, "a", 1000)
    sidecars.settle()
    for limit, is_found in ((6, False), (100_000, True), (resource.RLIM_INFINITY, True)):
        monkeypatch.setattr(resource, "getrlimit", lambda _kind, limit=limit: (limit, limit))
        found = sidecars.open(info_of("a"), "n")
        assert (found is not None) is is_found
        if found is not None:
            found.close()
