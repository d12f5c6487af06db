"""What a process has open: mapped and leased once, told once, and not asked for again."""

import os
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from brain.ml.dataset_shards.worker_shards import NearbyShards
from tests.fakes import StubS3
from tools_utilities.cache_entry import EntryId, entry_id
from tools_utilities.cached_file import CachedFile
from tools_utilities.checksum import crc32c
from tools_utilities.disk_cache import DiskCache
from tools_utilities.errors import ObjectReplacedError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.open_objects import OpenObjects
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.sidecars import Sidecars

STORE = "s3://endpoint/bucket"
CONTENT = b"hello"
HERE = ObjectInfo(key="here", size_bytes=len(CONTENT), etag="1")
AWAY = ObjectInfo(key="away", size_bytes=3, etag="2")


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    cache = DiskCache(tmp_path / "cache", 1 << 20)
    entry = entry_id(STORE, HERE)
    assert entry is not None
    reservation = cache.reserve(entry, ahead=False)
    assert reservation is not None
    reservation.write(0, CONTENT)
    reservation.publish(crc32c(CONTENT)).close()
    return cache


def test_an_object_is_opened_and_told_once_for_all_its_splits(cache: DiskCache):
    told: list[ObjectInfo] = []
    manager: Any = None  # nothing is asked of it
    shards = NearbyShards(manager, STORE, cache, told.append)
    assert shards.missing([HERE, AWAY]) == [HERE, AWAY]
    one, two = shards.open_shard(HERE), shards.open_shard(HERE)
    assert told == [HERE]
    assert shards.missing([HERE, AWAY]) == [AWAY]
    piece = two.read(1, 3)
    one.close()
    one.close()
    assert shards.missing([HERE]) == []
    assert bytes(two.read(0, 99)) == CONTENT
    two.close()
    assert shards.missing([HERE]) == [HERE]
    assert bytes(piece) == CONTENT[1:3]
    shards.open_shard(HERE).close()
    assert told == [HERE, HERE]


def test_threads_that_open_at_once_share_one_lease_and_leave_none(cache: DiskCache):
    entry = entry_id(STORE, HERE)
    assert entry is not None
    objects, start, firsts = OpenObjects(Sidecars(lambda _info: None)), Barrier(8), []
    files = [cache.open(entry) for _ in range(8)]

    def use(file: Any) -> None:
        start.wait()
        shard, first = objects.add(HERE, file)
        firsts.append(first)
        assert bytes(shard.read(0, 5)) == CONTENT
        start.wait()
        shard.close()

    threads = [Thread(target=use, args=(file,)) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(firsts) == [False] * 7 + [True]
    assert HERE not in objects
    # Every file is closed: its view is empty.
    assert [len(file.view) for file in files if file is not None] == [0] * 8


def resident_bytes(path: Path) -> int:
    """Return how much of a file this process has in memory, over all of its mappings."""
    total, within = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[:1] in "0123456789abcdef" and "-" in line.split()[0]:
            within = line.endswith(str(path))
        elif within and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


@pytest.fixture
def folder(tmp_path: Path) -> StreamingManager:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/big").write_bytes(b"0123456789abcdef" * (1 << 19))
    return StreamingManager(f"file://{tmp_path / 'data'}")


def test_what_one_split_has_read_leaves_the_memory_with_it(tmp_path, folder):
    [info] = folder.store.list("")
    one, other = folder.open_shard(info), folder.open_shard(info)
    half = info.size_bytes // 2
    assert sum(one.read(0, half)[::4096]) + sum(other.read(half, info.size_bytes)[::4096])
    both = resident_bytes(tmp_path / "data/big")
    assert both >= info.size_bytes - (1 << 16)
    one.close()
    left = resident_bytes(tmp_path / "data/big")
    assert half - (1 << 16) <= left <= half + (1 << 16)
    assert bytes(other.read(0, 16)) == b"0123456789abcdef"
    other.close()


def test_a_local_file_that_is_open_is_the_one_that_was_listed(tmp_path, folder):
    [info] = folder.store.list("")
    one = folder.open_shard(info)
    (tmp_path / "new").write_bytes(b"n" * info.size_bytes)
    (tmp_path / "new").rename(tmp_path / "data/big")
    two = folder.open_shard(info)
    assert bytes(two.read(0, 4)) == bytes(one.read(0, 4)) == b"0123"
    one.close()
    two.close()
    with pytest.raises(ObjectReplacedError):
        folder.open_shard(info)


def test_the_cache_is_asked_once_for_what_is_open_and_its_last_use_is_its_end(
    tmp_path, monkeypatch
):
    with StubS3({"data/x": b"x" * 5000}) as s3:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        manager = StreamingManager("b", endpoint_url=s3.url, cache_dir=tmp_path / "c", cache_gb=1)
        [info] = manager.store.list("data/")
        asked: list[object] = []
        before = DiskCache.open

        def open_noted(cache: DiskCache, entry: EntryId) -> CachedFile | None:
            asked.append(entry)
            return before(cache, entry)

        monkeypatch.setattr(DiskCache, "open", open_noted)
        manager.open_shard(info).close()
        asked.clear()
        holds = [manager.open_shard(info) for _ in range(5)]
        assert len(asked) == 1
        stats = manager.get_stats()
        assert (stats["objects_from_store"], stats["objects_from_cache"]) == (1, 5)
        path = holds[0].path
        assert path is not None
        os.utime(path, ns=(0, path.stat().st_mtime_ns))
        mtime = path.stat().st_mtime_ns
        for hold in holds[:-1]:
            hold.close()
        assert path.stat().st_atime_ns == 0
        holds[-1].close()
        assert path.stat().st_atime_ns > 0
        assert path.stat().st_mtime_ns == mtime  # what has been checked is known by it
        manager.open_shard(info).close()
        assert len(asked) == 2


def test_a_folder_that_is_out_of_reach_by_now_ends_nothing(cache, tmp_path, monkeypatch):
    entry = entry_id(STORE, HERE)
    assert entry is not None

    def read_only(*_arguments: object, **_options: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("os.utime", read_only)
    file = cache.open(entry)
    assert file is not None
    shard, _ = OpenObjects(Sidecars(lambda _info: (cache, entry))).add(HERE, file)
    (tmp_path / "file").touch()
    shard.path = tmp_path / "file" / "x"  # no folder any more
    assert shard.open_sidecar("n") is None
    shard.close()
