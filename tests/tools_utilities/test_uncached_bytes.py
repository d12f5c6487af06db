import msgspec

from tests.fault_store import FaultStore
from tests.stream_parts import content, entries, read_all, reader_of
from tools_utilities.checksum import crc32c, encode_crc32c
from tools_utilities.disk_cache import DiskCache
from tools_utilities.fetch import Fetcher
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_reader import ShardReader
from tools_utilities.stream_statistics import StreamStatistics
from tools_utilities.uncached_bytes import MOST_UNUSED, MemoryPool

# Without a cache, and objects that do not fit.


def test_an_object_larger_than_cache_and_memory_is_read_in_ranges(tmp_path):
    store = FaultStore()
    data = content("big", 20_000_000)
    info = store.put("big", data)
    statistics = StreamStatistics()
    reader = ShardReader(
        store,
        Fetcher(store, statistics=statistics),
        statistics,
        cache=DiskCache(tmp_path, 1_000_000),
        concurrency=2,
        read_ahead_bytes=500_000,
        memory_bytes=1_000_000,
    )
    reader.set_order([info])
    shard = reader.open_shard(info)
    assert shard.path is None
    assert bytes(shard.read(0, 100)) == data[:100]
    assert bytes(shard.read(50, 200)) == data[50:200]  # the same window
    assert bytes(shard.read(3_000_000, 9_000_000)) == data[3_000_000:9_000_000]
    assert bytes(shard.read(19_999_990, 30_000_000)) == data[-10:]
    assert bytes(shard.read(20_000_000, 20_000_001)) == b""
    assert all(etag == info.etag for *_, etag in store.gets)
    assert len(store.gets) == 3
    assert not entries(tmp_path)


def test_without_a_cache_whole_objects_are_verified_in_memory():
    from tests.fault_store import flips

    store = FaultStore(flips(10))
    data = content("k", 5000)
    info = msgspec.structs.replace(store.put("k", data), crc32c=encode_crc32c(crc32c(data)))
    reader = reader_of(store)
    assert read_all(reader, info) == data
    assert read_all(reader, info) == data
    assert len(store.gets) == 2  # the bad one and the good one; then it is at hand


def test_memory_stays_within_its_budget():
    store = FaultStore()
    infos = [store.put(f"k{n}", content(str(n), 250)) for n in range(10)]
    reader = reader_of(store, memory_bytes=1000)
    shards = [reader.open_shard(info) for info in infos]
    assert reader._pool._used_bytes <= 1000
    for number, shard in enumerate(shards):
        assert bytes(shard.read(0, 250)) == content(str(number), 250)
        shard.close()
    assert read_all(reader, infos[9]) == content("9", 250)
    assert reader._pool._used_bytes <= 1000


def test_a_range_is_fetched_alone_unless_the_object_is_cached(tmp_path):
    store = FaultStore()
    info = store.put("k", content("k", 5000))
    reader = reader_of(store, tmp_path)
    assert reader.read_range(info, 100, 200) == content("k", 5000)[100:200]
    assert store.gets == [("k", 100, 200, info.etag)]
    assert read_all(reader, info)
    assert reader.read_range(info, 4990, 9999) == content("k", 5000)[4990:]
    assert len(store.gets) == 2


def test_windows_grow_only_where_reading_goes_on():
    from tools_utilities.uncached_bytes import RangedShardBytes

    asked: list[tuple[int, int]] = []
    data = content("k", 20 << 20)

    def read_range(info, start: int, end: int) -> bytes:
        asked.append((start, end))
        return data[start:end]

    info = ObjectInfo(key="k", size_bytes=len(data))
    once = RangedShardBytes(info, read_range)
    assert once.read(5 << 20, (5 << 20) + 10) == data[5 << 20 : (5 << 20) + 10]
    assert asked == [(5 << 20, (5 << 20) + (256 << 10))]
    asked.clear()
    along = RangedShardBytes(info, read_range)
    for start in range(0, len(data), 1000):
        assert along.read(start, start + 1000) == data[start : start + 1000]
    assert len(asked) < 12
    assert max(end - start for start, end in asked) == 4 << 20
    asked.clear()
    assert along.read(3, 6 << 20) == data[3 : 6 << 20]
    assert asked == [(3, 6 << 20)]


def test_what_is_unused_goes_first_out_first_and_of_tiny_objects_few_stay():
    asked: list[str] = []

    def load(info) -> bytes:
        asked.append(info.key)
        return b"x"

    pool = MemoryPool(1 << 30)
    infos = [ObjectInfo(key=str(number), size_bytes=1) for number in range(MOST_UNUSED + 10)]
    held = pool.open(infos[0], load)
    for info in infos:
        shard = pool.open(info, load)
        assert shard is not None
        shard.close()
    assert len(pool._objects) == MOST_UNUSED + 1
    for info in (infos[0], infos[-1], infos[10]):  # in use, new, and the oldest that is left
        assert pool.open(info, load) is not None
    assert len(asked) == len(infos)
    assert pool.open(infos[9], load) is not None
    assert asked[-1] == "9"
    assert held is not None
    assert bytes(held.read(0, 1)) == b"x"


def test_an_object_that_is_collected_within_the_pool_frees_its_room():
    pool = MemoryPool(10_000)
    shard = pool.open(ObjectInfo(key="k", size_bytes=1), lambda _: b"x")
    with pool._lock:  # a collection may come in any line that holds it
        del shard
    assert [held.users for held in pool._objects.values()] == [0]
