import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.fault_store import FaultStore, breaks_after, drips
from tests.stream_parts import arrived, content, read_all, reader_of, settles_at
from tools_utilities.errors import (
    StoreError,
)
from tools_utilities.fetch_attempt import FetchLimits

# Reading ahead.


def test_reading_ahead_overlaps_and_asks_for_each_object_once(tmp_path):
    store = FaultStore(always=drips(2000, 0.05))
    infos = [store.put(f"k{n}", content(str(n), 2000)) for n in range(12)]

    def seconds(reader) -> float:
        started = time.monotonic()
        for number, info in enumerate(infos):
            assert read_all(reader, info) == content(str(number), 2000)
        return time.monotonic() - started

    limits = FetchLimits()
    without = seconds(reader_of(store, tmp_path / "a", limits=limits))
    reader = reader_of(store, tmp_path / "b", limits=limits)
    store.gets.clear()
    reader.set_order(infos)
    assert seconds(reader) < 0.7 * without
    assert sorted(key for key, *_ in store.gets) == sorted(info.key for info in infos)
    assert reader.to_dict()["prefetch_hits"] + reader.to_dict()["prefetch_misses"] == 12


def test_reading_ahead_stays_within_its_bytes_and_in_order(tmp_path):
    store = FaultStore()
    infos = [store.put(f"k{n}", content(str(n), 1000)) for n in range(10)]
    reader = reader_of(store, tmp_path, read_ahead_bytes=3500)
    reader.set_order(infos)
    assert settles_at(store, {"k0", "k1", "k2"})
    assert read_all(reader, infos[0])
    assert settles_at(store, {"k0", "k1", "k2", "k3"})


def test_a_new_order_replaces_the_old_one(tmp_path):
    store = FaultStore()
    infos = [store.put(f"k{n}", content(str(n), 1000)) for n in range(10)]
    reader = reader_of(store, tmp_path, read_ahead_bytes=2500)
    reader.set_order(infos[:5])
    assert arrived(reader, 2)
    reader.set_order(infos[5:])
    assert settles_at(store, {"k0", "k1", "k5", "k6"})


def test_saying_what_comes_next_never_waits(tmp_path):
    store = FaultStore(always=drips(500, 0.3))
    infos = [store.put(f"k{n}", content(str(n), 1000)) for n in range(20)]
    reader = reader_of(store, tmp_path, limits=FetchLimits())
    started = time.monotonic()
    for _ in range(20):
        reader.set_order(infos)
    assert time.monotonic() - started < 0.25


def test_threads_end_when_there_is_nothing_to_fetch(tmp_path):
    store = FaultStore()
    infos = [store.put(f"k{n}", b"x" * 100) for n in range(5)]
    reader = reader_of(store, tmp_path)
    reader.set_order(infos)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and reader._read_ahead._threads:
        time.sleep(0.01)
    assert reader._read_ahead._threads == 0


def test_an_error_met_ahead_is_raised_to_the_reader_and_then_forgotten(tmp_path):
    store = FaultStore(always=breaks_after(0))
    info = store.put("k", b"x" * 100)
    reader = reader_of(store, tmp_path)
    reader.set_order([info])
    with pytest.raises(StoreError, match="6 attempts"):
        reader.open_shard(info)
    store.always = None
    assert read_all(reader, info) == b"x" * 100
    assert len(store.gets) == 7


def test_many_threads_on_one_object_download_it_once(tmp_path):
    store = FaultStore(always=drips(1000, 0.02))
    info = store.put("k", content("k", 5000))
    for reader in (reader_of(store, tmp_path), reader_of(store)):
        store.gets.clear()
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(read_all, [reader] * 8, [info] * 8))
        assert found == [content("k", 5000)] * 8
        assert len(store.gets) == 1
