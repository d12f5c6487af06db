"""What a loader worker has open: mapped and leased once, announced once, and not asked for again."""

from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from brain.ml.dataset_shards.worker_objects import OpenObjects
from brain.ml.dataset_shards.worker_shards import NearbyShards
from tools_utilities.checksum import crc32c
from tools_utilities.disk_cache import DiskCache, entry_id
from tools_utilities.object_store import ObjectInfo

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
    objects, start, firsts = OpenObjects(), Barrier(8), []
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
