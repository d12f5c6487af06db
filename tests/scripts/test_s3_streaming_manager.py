import asyncio
import hashlib
import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.fakes import Reply, StubS3, xml_error
from tests.fault_store import FaultStore, breaks_after, drips
from tools_utilities.checksum import crc32c, encode_crc32c
from tools_utilities.disk_cache import DiskCache
from tools_utilities.errors import (
    AccessError,
    CacheError,
    IntegrityError,
    ObjectNotFoundError,
    ObjectReplacedError,
    StoreError,
    UsageError,
)
from tools_utilities.fetch import Fetcher
from tools_utilities.fetch_attempt import FetchLimits
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.shard_reader import ShardReader
from tools_utilities.stream_statistics import StreamStatistics

GB = 1_000_000_000
QUICK = FetchLimits(first_pause_seconds=0.01, longest_pause_seconds=0.02)


def content(key: str, size: int) -> bytes:
    seed = hashlib.sha256(key.encode()).digest()
    return (seed * (size // 32 + 1))[:size]


def memory_manager(tmp_path: Path, name: str, **options) -> StreamingManager:
    """Return a manager over a memory store of this test alone."""
    given = {"cache_dir": str(tmp_path / "cache"), "cache_bytes": GB, **options}
    return StreamingManager.for_store(StoreSpec(uri=f"memory://{tmp_path.name}-{name}"), **given)


def stub_manager(stub: StubS3, cache: Path | None, **options) -> StreamingManager:
    given = {"cache_bytes": GB, "limits": QUICK, **options}
    spec = StoreSpec(uri="s3://bucket", endpoint_url=stub.url)
    return StreamingManager.for_store(
        spec, cache_dir=None if cache is None else str(cache), **given
    )


def reader_of(store, cache: Path | None = None, **options) -> ShardReader:
    """Return what a manager uses, over a store made by the test."""
    statistics = StreamStatistics()
    limits = options.pop("limits", QUICK)
    given = {"concurrency": 4, "read_ahead_bytes": GB, "memory_bytes": GB, **options}
    return ShardReader(
        store,
        Fetcher(store, limits=limits, statistics=statistics),
        statistics,
        cache=None if cache is None else DiskCache(cache, GB),
        **given,
    )


def read_all(reader, info: ObjectInfo) -> bytes:
    shard = reader.open_shard(info)
    data = bytes(shard.read(0, info.size_bytes))
    shard.close()
    shard.close()
    return data


def settles_at(store: FaultStore, keys: set[str]) -> bool:
    """Wait until these objects were asked for, and see that no other follows."""
    deadline = time.monotonic() + 10
    while {key for key, *_ in store.gets} != keys and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    return {key for key, *_ in store.gets} == keys


def arrived(reader: ShardReader, number: int) -> bool:
    """Wait until so many objects have been read ahead."""
    deadline = time.monotonic() + 10
    flights = reader._read_ahead._flights
    while sum(flight.landed.is_set() for flight in list(flights.values())) < number:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def entries(folder: Path) -> list[Path]:
    return [path for path in files(folder) if path.parent.parent.name == "objects"]


# The documented calls.


def test_open_gives_a_seekable_binary_file(tmp_path):
    manager = memory_manager(tmp_path, "a")
    manager.store.put("k", b"one\ntwo\nthree\n")
    with manager.open("k") as file:
        assert isinstance(file, io.BufferedIOBase)
        assert list(file) == [b"one\n", b"two\n", b"three\n"]
        file.seek(-6, io.SEEK_END)
        assert file.read() == b"three\n"
        assert file.read() == b""
        file.seek(4)
        assert file.readline() == b"two\n"
    assert file.closed


def test_open_reads_the_current_version(tmp_path):
    manager = memory_manager(tmp_path, "a")
    manager.store.put("k", b"old")
    assert manager.open("k").read() == b"old"
    manager.store.put("k", b"new")
    assert manager.open("k").read() == b"new"


def test_prefetch_fetches_in_the_background_and_open_finds_it(tmp_path):
    manager = memory_manager(tmp_path, "a")
    for number in range(5):
        manager.store.put(f"k{number}", content(str(number), 5000))
    manager.prefetch(f"k{number}" for number in range(5))
    for number in range(5):
        assert manager.open(f"k{number}").read() == content(str(number), 5000)
    stats = manager.get_stats()
    assert stats["requests"] == 5
    assert stats["bytes_from_store"] == 25_000
    assert stats["prefetch_hits"] + stats["prefetch_misses"] == 5
    assert stats["prefetch_hits"] >= 1


def test_aprefetch_returns_when_the_objects_are_there(tmp_path):
    manager = memory_manager(tmp_path, "a")
    for key in "abc":
        manager.store.put(key, content(key, 5000))
    asyncio.run(manager.aprefetch("abc"))
    assert len(entries(tmp_path / "cache")) == 3
    assert manager.open("b").read() == content("b", 5000)
    assert manager.get_stats()["requests"] == 3


def test_aprefetch_says_what_is_missing(tmp_path):
    manager = memory_manager(tmp_path, "a")
    with pytest.raises(ObjectNotFoundError):
        asyncio.run(manager.aprefetch(["nothing"]))


def test_the_plain_constructor_takes_settings_from_the_environment(aws_environment, tmp_path):
    aws_environment.setenv("CACHE_DIR", str(tmp_path / "my cache"))
    aws_environment.setenv("CACHE_GB", "0.5")
    aws_environment.chdir(tmp_path)
    manager = StreamingManager(bucket="plain-name", endpoint_url="http://127.0.0.1:1")
    assert manager.spec == StoreSpec(uri="s3://plain-name", endpoint_url="http://127.0.0.1:1")
    assert manager.cache_dir == tmp_path / "my cache"
    assert manager.options.cache_bytes == 500_000_000
    assert manager.options.cache_required


def test_the_plain_constructor_uses_the_default_folder(aws_environment, tmp_path):
    aws_environment.chdir(tmp_path)
    manager = StreamingManager("plain-name")
    assert manager.cache_dir == Path.home() / ".cache" / "quark_stream"
    assert manager.options.cache_bytes == 20 * GB
    assert not manager.options.cache_required
    assert not manager.cache_dir.exists()


def test_an_unknown_policy_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cache_policy"):
        memory_manager(tmp_path, "a", cache_policy="fifo")


# B07, B22: what time cannot mend.


def test_an_object_gone_after_the_listing_is_asked_for_once(aws_environment, tmp_path):
    with StubS3({f"d/{n}": content(str(n), 500) for n in range(4)}) as stub:
        manager = stub_manager(stub, tmp_path)
        infos = list(manager.store.list("d/"))
        del stub.objects["d/2"]
        manager.prefetch_shards(infos)
        for info in infos:
            if info.key != "d/2":
                assert read_all(manager, info) == content(info.key[2:], 500)
        with pytest.raises(ObjectNotFoundError, match="get after list") as caught:
            manager.open_shard(infos[2])
        assert caught.value.detail["status"] == 404
        assert caught.value.detail["key"] == "d/2"
        assert caught.value.detail["phase"] == "get after list"
        assert len(stub.sent("GET", "d/2")) <= 2


def test_access_denied_is_met_once_though_it_was_read_ahead(aws_environment, tmp_path):
    def deny(request):
        if request.key == "d/1" and request.method == "GET":
            return xml_error(403, "AccessDenied", "not authorized to perform: kms:Decrypt")
        return None

    with StubS3({f"d/{n}": content(str(n), 500) for n in range(3)}, deny) as stub:
        manager = stub_manager(stub, tmp_path)
        infos = list(manager.store.list("d/"))
        manager.prefetch_shards(infos)
        time.sleep(0.3)
        with pytest.raises(AccessError, match="access denied") as caught:
            manager.open_shard(infos[1])
        assert "kms:Decrypt" in caught.value.hint
        assert caught.value.detail["key"] == "d/1"
        assert len(stub.sent("GET", "d/1")) == 1


def test_an_object_replaced_after_the_listing_is_never_mixed_in(aws_environment, tmp_path):
    with StubS3({"d/0": b"old content"}) as stub:
        manager = stub_manager(stub, tmp_path)
        [info] = manager.store.list("d/")
        stub.objects["d/0"] = b"new content"
        with pytest.raises(ObjectReplacedError):
            manager.open_shard(info)


class OtherEtagS3(StubS3):
    """Lists MD5s, answers GET with etags of another kind and knows no If-Match, as nginx does."""

    def _object(self, request):
        request.headers.pop("if-match", None)
        reply = super()._object(request)
        return Reply(reply.status, {**reply.headers, "etag": '"6b0a151a-fffdd4"'}, reply.body)


def test_a_server_with_two_kinds_of_etags_is_read_whole_and_proven(aws_environment, tmp_path):
    with OtherEtagS3({"d/0": content("0", 500)}) as stub:
        manager = stub_manager(stub, tmp_path)
        [info] = manager.store.list("d/")
        # A range cannot be proven: the whole is fetched, checked and kept.
        assert manager.read_range(info, 10, 20) == content("0", 500)[10:20]
        assert read_all(manager, info) == content("0", 500)
        assert manager.get_stats()["unverified"] == 0
        assert len([sent for sent in stub.sent("GET", "d/0") if "range" not in sent.headers]) == 1
    with OtherEtagS3({"d/0": b"old content"}) as stub:
        manager = stub_manager(stub, tmp_path / "second")
        [info] = manager.store.list("d/")
        stub.objects["d/0"] = b"new content"
        with pytest.raises(ObjectReplacedError):
            manager.open_shard(info)
        with pytest.raises(ObjectReplacedError):
            manager.read_range(info, 0, 3)


# B08: names.


def test_odd_keys_stay_in_the_cache_folder_and_apart(tmp_path):
    keys = [
        "data/d/train/../../../../evil.jsonl",
        "data/d/train/..",
        "data/d/train/./dot.jsonl",
        "/abs.jsonl",
        "data/d/train//dbl.jsonl",
        "data/d/train/dbl.jsonl",
        "data/d/train/a",
        "data/d/train/a/b.jsonl",
        "data/d/train/CON.jsonl",
        "data/d/train/A",
    ]
    manager = memory_manager(tmp_path, "odd", cache_dir=str(tmp_path / "q" / "cache"))
    infos = [manager.store.put(key, f"record of {key}".encode()) for key in keys]
    manager.prefetch_shards(infos)
    for info in infos:
        assert read_all(manager, info) == f"record of {info.key}".encode()
    assert len(entries(tmp_path)) == len(keys)
    root = os.path.realpath(tmp_path / "q" / "cache")
    assert all(os.path.realpath(path).startswith(root + "/") for path in files(tmp_path))


def test_two_endpoints_with_the_same_key_and_etag_do_not_mix(aws_environment, tmp_path):
    def same_etag(data: bytes):
        return lambda request: Reply(200, {"etag": '"same"'}, data) if request.key else None

    with (
        StubS3({"k": b"AAAA"}, same_etag(b"AAAA")) as one,
        StubS3({"k": b"BBBB"}, same_etag(b"BBBB")) as two,
    ):
        managers = [stub_manager(one, tmp_path), stub_manager(two, tmp_path)]
        info = ObjectInfo(key="k", size_bytes=4, etag="same")
        assert [read_all(manager, info) for manager in managers] == [b"AAAA", b"BBBB"]
        assert [read_all(manager, info) for manager in managers] == [b"AAAA", b"BBBB"]


# B13, B14, B17: bodies.


def test_a_body_cut_short_never_gets_its_final_name(aws_environment, tmp_path):
    data = content("k", 4096)

    def cut(request):
        if request.method != "GET" or request.key != "d/k":
            return None
        return Reply(
            200,
            {"etag": f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'},
            data,
            send_bytes=2048,
        )

    seen: set[int] = set()
    with StubS3({"d/k": data}, cut) as stub:
        [info] = stub_manager(stub, None).store.list("d/")
        broken = stub_manager(stub, tmp_path, limits=msgspec.structs.replace(QUICK, max_attempts=3))
        stop = threading.Event()

        def watch():
            while not stop.is_set():
                seen.update(path.stat().st_size for path in entries(tmp_path))
                time.sleep(0.002)

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        with pytest.raises(StoreError) as caught:
            broken.open_shard(info)
        assert caught.value.detail["attempts"] == len(stub.sent("GET", "d/k")) == 3
        assert caught.value.detail["expected_bytes"] == 4096
        stub.script = None
        assert read_all(stub_manager(stub, tmp_path), info) == data
        stop.set()
        watcher.join()
    assert seen <= {4096}
    assert [path.stat().st_size for path in entries(tmp_path)] == [4096]
    assert not [path for path in files(tmp_path) if path.suffix == ".tmp"]


def test_a_chunked_answer_that_ends_early_is_not_taken_for_whole(tmp_path):
    from tests.fault_store import ends_after

    store = FaultStore(ends_after(2048))
    info = store.put("k", content("k", 4096))
    assert read_all(reader_of(store, tmp_path), info) == content("k", 4096)
    assert store.starts == [0, 2048]


def test_a_short_file_under_the_final_name_is_fetched_again(tmp_path):
    manager = memory_manager(tmp_path, "c")
    info = manager.store.put("k", content("k", 4096))
    assert read_all(manager, info) == content("k", 4096)
    [entry] = entries(tmp_path)
    entry.write_bytes(content("k", 2048))
    again = StreamingManager.from_options(manager.options)
    assert read_all(again, info) == content("k", 4096)
    assert again.get_stats()["quarantined"] == 1
    assert again.get_stats()["requests"] == 1


def test_an_object_that_stays_bad_is_an_error_after_one_more_fetch(tmp_path):
    manager = memory_manager(tmp_path, "c")
    info = manager.store.put("k", content("k", 4096))
    assert read_all(manager, info)
    bad = msgspec.structs.replace(info, crc32c=encode_crc32c(1))
    with pytest.raises(IntegrityError):
        manager.open_shard(bad)
    assert manager.get_stats()["requests"] == 1 + 2
    assert not entries(tmp_path)


def resetting(stub: StubS3, num_gets: int):
    """Send half of what was asked for and reset the connection, `num_gets` times."""

    def script(request):
        done = len(stub.sent("GET", "d/k")) > num_gets
        if request.method != "GET" or request.key != "d/k" or done:
            return None
        reply = stub._object(request)
        half = len(reply.body) // 2
        return Reply(reply.status, reply.headers, reply.body, send_bytes=half, then="reset")

    return script


def test_a_connection_reset_in_the_body_is_resumed(aws_environment, tmp_path):
    data = content("k", 8_000_000)
    with StubS3({"d/k": data}) as stub:
        manager = stub_manager(stub, tmp_path)
        [info] = manager.store.list("d/")
        stub.script = resetting(stub, 2)
        assert read_all(manager, info) == data
        gets = stub.sent("GET", "d/k")
        assert len(gets) == 3
        assert "range" not in gets[0].headers
        assert all(int(get.headers["range"][6:].split("-")[0]) > 0 for get in gets[1:])


def test_a_connection_that_is_always_reset_ends_in_an_error(aws_environment, tmp_path):
    data = content("k", 8_000_000)
    with StubS3({"d/k": data}) as stub:
        manager = stub_manager(stub, tmp_path)
        [info] = manager.store.list("d/")
        stub.script = resetting(stub, 99)
        with pytest.raises(StoreError, match="6 attempts") as caught:
            manager.open_shard(info)
        assert caught.value.exit_code == 1
        assert caught.value.detail["attempts"] == 6 == len(stub.sent("GET", "d/k"))
        assert 0 < caught.value.detail["received_bytes"] < 8_000_000
        assert caught.value.detail["expected_bytes"] == 8_000_000
        assert not [path for path in files(tmp_path) if path.suffix == ".tmp"]


def test_a_stalled_connection_counts_as_one_failed_attempt(aws_environment, tmp_path):
    data = content("k", 64_000)

    def stall(request):
        if request.method != "GET" or request.key != "d/k" or len(stub.sent("GET", "d/k")) > 1:
            return None
        return Reply(200, stub._object(request).headers, data, send_bytes=1000, then="stall")

    with StubS3({"d/k": data}) as stub:
        limits = msgspec.structs.replace(QUICK, first_byte_seconds=1.0, watch_seconds=1.0)
        manager = stub_manager(stub, tmp_path, limits=limits)
        [info] = manager.store.list("d/")
        stub.script = stall
        started = time.monotonic()
        assert read_all(manager, info) == data
        assert 0.9 < time.monotonic() - started < 20
        assert len(stub.sent("GET", "d/k")) == 2


def test_sizes_around_multiples_of_a_piece_are_downloaded_once(tmp_path):
    sizes = [base + more for base in (65_536, 1 << 20, 8 << 20, 16 << 20) for more in (-1, 0, 1)]
    manager = memory_manager(tmp_path, "b14")
    infos = [manager.store.put(f"s{size}", content(str(size), size)) for size in sizes]
    first = [hashlib.sha256(read_all(manager, info)).digest() for info in infos]
    assert manager.get_stats()["requests"] == len(sizes)
    assert not [path for path in files(tmp_path) if path.suffix in {".tmp", ".lock"}]
    second = [hashlib.sha256(read_all(manager, info)).digest() for info in infos]
    assert manager.get_stats()["requests"] == len(sizes)
    assert first == second == [hashlib.sha256(content(str(s), s)).digest() for s in sizes]


def test_empty_objects_ask_nothing_of_the_store(aws_environment, tmp_path):
    with StubS3({"d/empty": b"", "d/one": b"x"}) as stub:
        manager = stub_manager(stub, tmp_path)
        infos = list(manager.store.list("d/"))
        manager.prefetch_shards(infos)
        assert [read_all(manager, info) for info in infos] == [b"", b"x"]
        assert manager.read_range(infos[0], 0, 10) == b""
        assert not stub.sent("GET", "d/empty")


# B16: folders that cannot be used.


def no_request_before(stub: StubS3, cache_dir: Path) -> CacheError:
    with pytest.raises(CacheError) as caught:
        stub_manager(stub, cache_dir)
    assert not stub.requests
    assert caught.value.exit_code == 2
    return caught.value


def test_a_chosen_folder_that_is_a_file_is_an_error_before_the_first_request(
    aws_environment, tmp_path
):
    (tmp_path / "c").write_bytes(b"mine")
    with StubS3({}) as stub:
        error = no_request_before(stub, tmp_path / "c")
    for words in (str(tmp_path / "c"), "not a directory", "CACHE_DIR"):
        assert words in str(error)
    assert (tmp_path / "c").read_bytes() == b"mine"


AS_NOBODY = """
import os, sys
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.object_store import StoreSpec
from tools_utilities.errors import CacheError
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    StreamingManager.for_store(StoreSpec(uri="s3://b"), cache_dir=sys.argv[1], cache_bytes=10**9)
except CacheError as error:
    print(error.exit_code, error)
"""


@pytest.mark.parametrize("below", ["", "/new/folder"])
def test_a_chosen_folder_that_may_not_be_written_is_an_error(below):
    # Not in tmp_path, whose parents only its owner may enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        said = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, folder + below],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        Path(folder).chmod(0o755)
    for words in ("2 ", folder + below, "not writable", "CACHE_DIR"):
        assert words in said


def test_an_unusable_default_folder_means_no_cache_and_one_warning(
    aws_environment, tmp_path, caplog
):
    (Path.home() / ".cache").write_text("a file")
    aws_environment.chdir(tmp_path)
    with StubS3({"d/k": content("k", 5000)}) as stub:
        manager = StreamingManager("bucket", endpoint_url=stub.url)
        [info] = manager.store.list("d/")
        for _ in range(3):
            assert read_all(manager, info) == content("k", 5000)
        assert len([record for record in caplog.records if "cache folder" in record.message]) == 1
        assert len(stub.sent("GET", "d/k")) == 1  # kept in memory


def test_a_folder_in_the_home_with_a_space(aws_environment, tmp_path):
    manager = memory_manager(tmp_path, "e", cache_dir="~/q cache")
    info = manager.store.put("k", b"data")
    assert read_all(manager, info) == b"data"
    assert len(entries(Path.home() / "q cache")) == 1
    assert not list(Path.cwd().glob("~*"))


class FullDisk:
    """Not a byte is left."""

    def free_and_total_bytes(self, folder):
        return 4096, 8 << 20

    def allocate(self, fd, num_bytes):
        raise OSError(28, "No space left on device")


def test_a_full_disk_means_reading_on_without_a_cache(tmp_path, caplog):
    store = FaultStore()
    infos = [store.put(f"k{n}", content(str(n), 50_000)) for n in range(4)]
    reader = reader_of(store)
    reader._cache = DiskCache(tmp_path, GB, disk=FullDisk())
    for _ in range(2):
        for number, info in enumerate(infos):
            assert read_all(reader, info) == content(str(number), 50_000)
    [record] = [record for record in caplog.records if "is full" in record.message]
    for words in (str(tmp_path), "50000 bytes needed", "4096 bytes free"):
        assert words in record.message
    assert reader.to_dict()["objects_uncached"] == 8
    assert not entries(tmp_path)


class LyingDisk(FullDisk):
    """Promises room and then has none, as file systems without allocation do."""

    def free_and_total_bytes(self, folder):
        return GB, GB

    def allocate(self, fd, num_bytes):
        os.close(os.dup(fd))


def test_a_disk_that_fills_up_in_the_middle_of_a_file_loses_nothing(tmp_path, caplog):
    import resource

    store = FaultStore()
    info = store.put("k", content("k", 3_000_000))
    reader = reader_of(store)
    reader._cache = DiskCache(tmp_path, GB, disk=LyingDisk())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        assert read_all(reader, info) == content("k", 3_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert "without a cache" in caplog.text
    assert not entries(tmp_path)
    assert not [path for path in files(tmp_path) if path.suffix == ".tmp"]


def test_a_folder_deleted_in_the_middle_of_a_run_is_made_again(tmp_path):
    import shutil

    manager = memory_manager(tmp_path, "d")
    infos = [manager.store.put(f"k{n}", content(str(n), 5000)) for n in range(3)]
    for number, info in enumerate(infos):
        assert read_all(manager, info) == content(str(number), 5000)
        shutil.rmtree(tmp_path / "cache")
    assert read_all(manager, infos[0]) == content("0", 5000)
    assert len(entries(tmp_path)) == 1


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


# Other processes.


def test_a_pickled_manager_holds_no_secret_and_works(aws_environment, tmp_path):
    aws_environment.setenv("AWS_SESSION_TOKEN", "TOKENSECRETTOKEN")
    with StubS3({"d/k": b"data"}) as stub:
        manager = stub_manager(stub, tmp_path)
        [info] = manager.store.list("d/")
        assert read_all(manager, info) == b"data"
        pickled = pickle.dumps(manager)
        for name in ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID"):
            assert os.environ[name].encode() not in pickled
        again = pickle.loads(pickled)  # noqa: S301 - made two lines above
        assert again.options == manager.options
        assert read_all(again, info) == b"data"


def test_a_forked_child_reads_on_though_the_parent_was_busy(aws_environment, tmp_path):
    with StubS3({f"d/{n}": content(str(n), 50_000) for n in range(8)}) as stub:
        manager = stub_manager(stub, tmp_path)
        infos = list(manager.store.list("d/"))
        manager.prefetch_shards(infos)
        held = manager.open_shard(infos[0])
        children = []
        for _ in range(2):
            right = False
            child = os.fork()
            if child == 0:
                # The signal kills: its handler is the test runner's, which must not run here.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(30)
                try:
                    right = all(
                        read_all(manager, info) == content(info.key[2:], 50_000) for info in infos
                    )
                    right = right and bytes(held.read(0, 50_000)) == content("0", 50_000)
                    held.close()
                finally:
                    os._exit(0 if right else 1)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
        for info in infos:
            assert read_all(manager, info) == content(info.key[2:], 50_000)
        held.close()


# Local folders.


def test_a_local_folder_is_mapped_in_place_and_nothing_is_copied(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for number in range(4):
        (data / f"s{number}").write_bytes(content(str(number), 5000))
    (data / "empty").write_bytes(b"")
    before = {path: path.read_bytes() for path in data.iterdir()}
    manager = StreamingManager.for_store(
        StoreSpec(uri=f"file://{data}"), cache_dir=str(data / "cache"), cache_bytes=6000
    )
    infos = list(manager.store.list(""))
    manager.prefetch_shards(infos)
    for _ in range(2):
        for info in infos:
            shard = manager.open_shard(info)
            assert shard.path == data / info.key
            assert bytes(shard.read(0, 10_000)) == before[data / info.key]
            shard.close()
    assert manager.read_range(infos[1], 10, 20) == before[data / infos[1].key][10:20]
    assert manager.open("s2").read() == before[data / "s2"]
    assert {path: path.read_bytes() for path in data.iterdir()} == before


def test_a_local_file_replaced_after_the_listing_is_noticed(tmp_path):
    (tmp_path / "s").write_bytes(b"old")
    manager = StreamingManager.for_store(
        StoreSpec(uri=f"file://{tmp_path}"), cache_dir=None, cache_bytes=0
    )
    [info] = manager.store.list("")
    time.sleep(0.01)
    (tmp_path / "s").write_bytes(b"new")
    with pytest.raises(ObjectReplacedError):
        manager.open_shard(info)


def test_a_local_file_is_checked_against_its_manifest(tmp_path):
    (tmp_path / "s").write_bytes(b"data")
    manager = StreamingManager.for_store(
        StoreSpec(uri=f"file://{tmp_path}"), cache_dir=None, cache_bytes=0
    )
    [info] = open_store(manager.spec).list("")
    right = msgspec.structs.replace(info, crc32c=encode_crc32c(crc32c(b"data")))
    assert read_all(manager, right) == b"data"
    with pytest.raises(IntegrityError):
        manager.open_shard(msgspec.structs.replace(info, crc32c=encode_crc32c(1)))
