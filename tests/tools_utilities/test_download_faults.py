import hashlib
import threading
import time

import msgspec
import pytest

from tests.fakes import Reply, StubS3, xml_error
from tests.fault_store import FaultStore
from tests.stream_parts import (
    QUICK,
    content,
    entries,
    files,
    memory_manager,
    read_all,
    reader_of,
    stub_manager,
)
from tools_utilities.checksum import encode_crc32c
from tools_utilities.errors import (
    AccessError,
    IntegrityError,
    ObjectNotFoundError,
    ObjectReplacedError,
    StoreError,
)
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

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


def test_an_object_that_stays_bad_is_an_error_and_never_kept(tmp_path):
    manager = memory_manager(tmp_path, "c")
    info = manager.store.put("k", content("k", 4096))
    assert read_all(manager, info)
    bad = msgspec.structs.replace(info, crc32c=encode_crc32c(1))
    with pytest.raises(IntegrityError):
        manager.open_shard(bad)
    assert manager.get_stats()["requests"] == 1 + 4  # twice whole, once in two pieces
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


def test_b14_sizes_around_multiples_of_a_piece_are_downloaded_once(tmp_path):
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
