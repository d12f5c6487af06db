import asyncio
import io
import os
import pickle
import signal
import time
from pathlib import Path

import msgspec
import pytest

from tests.fakes import Reply, StubS3
from tests.stream_parts import GB, content, entries, files, memory_manager, read_all, stub_manager
from tools_utilities.checksum import crc32c, encode_crc32c
from tools_utilities.errors import (
    IntegrityError,
    ObjectNotFoundError,
    ObjectReplacedError,
    UsageError,
)
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

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
    manager.settle()
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
