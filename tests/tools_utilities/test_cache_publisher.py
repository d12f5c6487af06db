"""What was read ahead is used before it is durable, and durable before anyone else sees it."""

import os
from functools import partial
from threading import Event, get_ident

import pytest

from tests.cache_parts import MB, content, entries, files, has, identity, store
from tests.stream_parts import memory_manager
from tools_utilities.cache_publisher import CachePublisher
from tools_utilities.checksum import crc32c
from tools_utilities.disk_cache import DiskCache


def reserved(cache: DiskCache, key: str):
    reservation = cache.reserve(identity(key))
    assert reservation is not None
    reservation.write(0, content(key, MB))
    return reservation


def test_a_lent_download_is_read_by_this_process_alone(tmp_path):
    cache = DiskCache(tmp_path, 10 * MB)
    reservation = reserved(cache, "k")
    assert not has(cache, "k")
    lent = reservation.lend()
    assert has(cache, "k")
    assert not has(DiskCache(tmp_path, 10 * MB), "k")
    assert not entries(tmp_path)
    reservation.publish(crc32c(content("k", MB))).close()
    assert has(DiskCache(tmp_path, 10 * MB), "k")
    assert bytes(lent.view) == content("k", MB)


def test_a_lent_download_is_not_evicted_while_somebody_reads_it(tmp_path):
    cache = DiskCache(tmp_path, 2 * MB + MB // 2)
    reservation = reserved(cache, "k")
    lent = reservation.lend()
    reservation.publish(crc32c(content("k", MB))).close()
    assert store(cache, "a")
    assert store(cache, "b")  # evicts a, not k
    assert has(cache, "k")
    lent.close()
    lent.close()
    assert store(cache, "c")
    assert store(cache, "d")
    assert not has(cache, "k")


def test_a_lent_download_that_is_discarded_stays_readable_and_is_forgotten(tmp_path):
    cache = DiskCache(tmp_path, 10 * MB)
    reservation = reserved(cache, "k")
    lent = reservation.lend()
    reservation.discard()
    assert bytes(lent.view) == content("k", MB)
    assert not has(cache, "k")
    assert not [path for path in files(tmp_path) if path.stat().st_size >= MB]


def test_jobs_are_done_in_order_by_one_thread_and_waited_for():
    publisher, go = CachePublisher(), Event()
    done: list[tuple[int, int]] = []

    def job(number: int) -> None:
        assert go.wait(20)
        done.append((number, get_ident()))

    for number in range(5):
        publisher.put(partial(job, number))
    go.set()
    publisher.settle()
    assert [number for number, _ in done] == [0, 1, 2, 3, 4]
    assert len({thread for _, thread in done}) == 1
    publisher.settle()


def test_whoever_brings_too_much_does_it_himself():
    publisher, started, go = CachePublisher(most_waiting=1), Event(), Event()
    done: list[tuple[str, int]] = []

    def job(name: str) -> None:
        if name == "first":
            started.set()
            assert go.wait(20)
        done.append((name, get_ident()))

    publisher.put(lambda: job("first"))
    assert started.wait(20)
    publisher.put(lambda: job("waiting"))
    publisher.put(lambda: job("too many"))
    assert done == [("too many", get_ident())]
    go.set()
    publisher.settle()
    assert [name for name, _ in done[1:]] == ["first", "waiting"]


def test_what_a_manager_read_ahead_is_durable_once_settled(tmp_path):
    manager = memory_manager(tmp_path / "cache", "publish")
    infos = []
    for number in range(6):
        key = f"x/{number}"
        manager.store.put(key, content(key, 5000))
        infos.append(manager.store.head(key))
    manager.prefetch_shards(infos)
    for info in infos:
        shard = manager.open_shard(info)
        assert bytes(shard.read(0, 5000)) == content(info.key, 5000)
        shard.close()
    manager.settle()
    assert len(entries(tmp_path / "cache")) == 6
    assert manager.get_stats()["requests"] == 6


@pytest.mark.parametrize("number", [5, 28])
def test_a_disk_that_fails_at_the_end_costs_the_cache_and_no_sample(tmp_path, monkeypatch, number):
    manager = memory_manager(tmp_path / "cache", f"publish-{number}")
    manager.store.put("x/a", content("x/a", 5000))
    info = manager.store.head("x/a")
    fsync = os.fsync

    def failing(fd: int) -> None:
        if os.fstat(fd).st_size == 5000:
            raise OSError(number, "planted")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", failing)
    manager.prefetch_shards([info])
    manager.settle()
    shard = manager.open_shard(info)
    assert bytes(shard.read(0, 5000)) == content("x/a", 5000)
    manager.settle()
    assert not entries(tmp_path / "cache")
    assert not [path for path in files(tmp_path / "cache") if path.stat().st_size == 5000]


def test_a_job_that_fails_keeps_neither_the_others_nor_settle_waiting(caplog):
    publisher, done = CachePublisher(), Event()

    def fail() -> None:
        raise OSError("no file can be opened")

    publisher.put(fail)
    publisher.put(done.set)
    publisher.settle()
    assert done.is_set()
    assert "no file can be opened" in caplog.text
