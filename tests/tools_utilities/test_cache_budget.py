import time

import pytest

from tests.cache_parts import (
    MB,
    SmallDisk,
    entries,
    folder_bytes,
    has,
    held,
    identity,
    lease,
    store,
)
from tools_utilities import disk_cache
from tools_utilities.disk_cache import DiskCache

KB = 1024

# The budget.


@pytest.mark.parametrize("policy", ["lru", "next_use"])
def test_the_folder_never_exceeds_the_budget(tmp_path, policy):
    budget = int(3.5 * MB)
    cache = DiskCache(tmp_path, budget, policy=policy)
    for number in range(12):
        assert store(cache, f"k{number}")
        assert folder_bytes(tmp_path) <= budget
    assert len(entries(tmp_path)) == 3


def test_a_reservation_counts_before_it_is_written(tmp_path):
    cache = DiskCache(tmp_path, int(2.5 * MB))
    one, two = cache.reserve(identity("a")), cache.reserve(identity("b"))
    assert one is not None
    assert two is not None
    assert cache.reserve(identity("c")) is None
    one.discard()
    assert cache.reserve(identity("c")) is not None


def test_of_many_small_objects_some_go_together(tmp_path, monkeypatch):
    """A walk over all entries costs their number, so it must not come with every small download."""
    monkeypatch.setattr(disk_cache, "_SPARE_SHARE", 1 / 4)
    cache, counts = DiskCache(tmp_path, int(12.5 * KB), policy="lru"), list[int]()
    for number in range(18):
        assert store(cache, f"k{number:02}", KB)
        assert folder_bytes(tmp_path) <= cache.budget_bytes
        counts.append(len(entries(tmp_path)))
    # Three more than needed, which is what a quarter of the budget holds; no more before it is full again.
    assert counts[11:] == [12, 9, 10, 11, 12, 9, 10]
    assert not has(cache, "k07", KB)
    assert has(cache, "k08", KB)


def test_an_object_larger_than_the_budget_gets_no_room(tmp_path):
    cache = DiskCache(tmp_path, MB)
    assert store(cache, "a", 1000)
    assert cache.reserve(identity("big", 2 * MB)) is None
    assert has(cache, "a", 1000)  # and evicts nothing


def test_lru_evicts_what_was_not_opened_for_longest(tmp_path):
    cache = DiskCache(tmp_path, int(3.5 * MB), policy="lru")
    for key in "abc":
        assert store(cache, key)
        time.sleep(0.01)
    assert has(cache, "a")
    assert store(cache, "d")
    assert held(cache, "abcd") == "acd"


def test_next_use_evicts_what_is_needed_last(tmp_path):
    cache = DiskCache(tmp_path, int(3.5 * MB))
    for key in "abc":
        assert store(cache, key)
    cache.set_order([identity(key).digest for key in "dcab"])
    assert store(cache, "d")
    assert held(cache, "abcd") == "acd"


def test_what_another_process_announced_is_kept(tmp_path):
    mine, theirs = (DiskCache(tmp_path, int(3.5 * MB)) for _ in range(2))
    for key in "abc":
        assert store(mine, key)
    theirs.set_order([identity(key).digest for key in "xcb"])
    assert store(mine, "d")
    assert held(mine, "abcd") == "bcd"


def test_reading_ahead_never_evicts_what_is_needed_before(tmp_path):
    cache = DiskCache(tmp_path, int(2.5 * MB))
    for key in "ab":
        assert store(cache, key)
    cache.set_order([identity(key).digest for key in "xabcd"])
    assert cache.reserve(identity("c"), ahead=True) is None
    assert cache.reserve(identity("c")) is not None  # somebody waits for this one
    assert held(cache, "ab") == "a"


def test_an_open_entry_is_not_evicted(tmp_path):
    cache, other = (DiskCache(tmp_path, int(2.5 * MB), policy="lru") for _ in range(2))
    for key in "ab":
        assert store(cache, key)
    first = lease(cache, "a")
    assert store(other, "c")
    assert held(other, "abc") == "ac"
    second = lease(cache, "c")
    assert other.reserve(identity("d")) is None
    first.close()
    second.close()
    assert store(other, "d")


def test_five_percent_of_the_disk_stay_free(tmp_path):
    # Without the rule there is room for three, and a little more for the cache's own files.
    disk = SmallDisk(4 * MB + 100 * KB, tmp_path, others=MB)
    cache = DiskCache(tmp_path, 100 * MB, disk=disk, policy="lru")
    for number in range(6):
        assert store(cache, f"k{number}")
        assert disk.free_and_total_bytes(tmp_path)[0] >= 0.05 * disk.total
    assert len(entries(tmp_path)) == 2


def test_a_disk_full_of_other_things_gives_no_room_and_one_warning(tmp_path, caplog):
    cache = DiskCache(tmp_path, 100 * MB, disk=SmallDisk(4 * MB, tmp_path, others=4 * MB))
    assert cache.reserve(identity("a")) is None
    assert cache.reserve(identity("b")) is None
    [record] = caplog.records
    assert str(tmp_path) in record.getMessage()
    assert f"{MB} bytes needed" in record.getMessage()
    assert "bytes free" in record.getMessage()


def test_a_disk_that_fills_up_between_counting_and_allocating_gives_no_room(tmp_path, caplog):
    cache = DiskCache(tmp_path, 100 * MB, disk=SmallDisk(9 * MB, tmp_path, full=True))
    before = folder_bytes(tmp_path)
    assert cache.reserve(identity("a")) is None
    assert folder_bytes(tmp_path) == before
    assert "is full" in caplog.text
