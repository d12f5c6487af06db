"""A big object in parts at once: each resumed by itself, the whole verified, versions never mixed."""

import hashlib
import threading
import time

import msgspec
import pytest

from tests.fakes import Reply, StubS3
from tests.fault_store import FaultStore, FaultyBody, breaks_after, flips
from tests.simulated_store import SimulatedStore
from tests.stream_parts import QUICK, content, read_all, stub_manager
from tools_utilities.checksum import combine_crc32c, crc32c, encode_crc32c
from tools_utilities.errors import (
    AccessError,
    IntegrityError,
    ObjectReplacedError,
    StoreError,
)
from tools_utilities.fetch import Fetcher
from tools_utilities.fetch_attempt import BufferSink, FetchLimits
from tools_utilities.fetch_parts import PartedDownload
from tools_utilities.object_store import ObjectInfo

DATA = bytes(range(256)) * 16
PARTED = msgspec.structs.replace(QUICK, parted_from_bytes=2000, part_bytes=1000)
STARTS = [0, 1000, 2000, 3000, 4000]


def fetcher_of(store: FaultStore, limits: FetchLimits = PARTED) -> Fetcher:
    return Fetcher(store, limits=limits, sleep=lambda _: None)


def stored(store: FaultStore, data: bytes = DATA) -> ObjectInfo:
    info = store.put("d/x", data)
    return msgspec.structs.replace(info, crc32c=encode_crc32c(crc32c(data)))


def settled() -> None:
    """Wait for threads that had begun with a part when another one failed."""
    for thread in threading.enumerate():
        if thread.name == "quark-part":
            thread.join(10)


def test_parts_are_asked_for_once_each_with_the_version_and_verified_as_a_whole():
    store = FaultStore()
    info = stored(store)
    data, fetched = fetcher_of(store).fetch_bytes(info)
    assert data == DATA
    assert (fetched.check, fetched.crc32c) == ("crc32c", crc32c(DATA))
    assert sorted(store.starts) == STARTS
    assert store.starts[0] == 0
    assert {etag for *_, etag in store.gets} == {info.etag}


def test_a_small_object_or_one_without_a_version_is_fetched_in_one():
    store = FaultStore()
    info = stored(store, DATA[:1999])
    fetcher_of(store).fetch_bytes(info)
    fetcher_of(store).fetch_bytes(msgspec.structs.replace(stored(store), etag=None))
    assert store.starts == [0, 0]


def test_a_part_that_breaks_is_resumed_where_it_broke():
    store = FaultStore(breaks_after(300))
    data, _ = fetcher_of(store).fetch_bytes(stored(store))
    assert data == DATA
    assert sorted(store.starts) == [0, 300, 1000, 2000, 3000, 4000]


def test_a_flipped_bit_in_a_part_is_found_and_the_whole_fetched_again():
    store = FaultStore(None, flips(7))
    data, fetched = fetcher_of(store).fetch_bytes(stored(store))
    assert (bytes(data), str(fetched.check)) == (DATA, "crc32c")
    assert len(store.gets) == 6
    assert store.gets[-1][1:3] == (0, None)
    with pytest.raises(IntegrityError):
        fetcher_of(store).fetch_bytes(
            msgspec.structs.replace(stored(store), crc32c=encode_crc32c(1))
        )


class Md5Store(FaultStore):
    def _write(self, key: str, data: bytes) -> ObjectInfo:
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        info = ObjectInfo(key=key, size_bytes=len(data), etag=etag)
        self._objects[key] = (info, data)
        return info


def test_where_only_an_md5_proves_the_whole_it_is_taken_at_the_end():
    store = Md5Store()
    info = store.put("d/x", DATA)
    assert fetcher_of(store).fetch_bytes(info)[1].check == "md5"
    assert sorted(store.starts) == STARTS
    # A part with a flipped bit is found by it too.
    broken = Md5Store(None, None, flips(5))
    data, fetched = fetcher_of(broken).fetch_bytes(broken.put("d/x", DATA))
    assert (bytes(data), str(fetched.check)) == (DATA, "md5")

    class Blind:
        def write(self, offset: int, piece: bytes) -> None:
            pass

    # What cannot be read back is hashed as it comes, in one.
    store.gets.clear()
    assert fetcher_of(store).fetch(info, Blind()).check == "md5"
    assert store.starts == [0]


def test_a_version_that_changes_between_parts_is_refused():
    class Changing(FaultStore):
        def get(self, key, *, start=0, end=None, if_etag=None):
            if start == 1000:
                self.put(key, bytes(len(DATA)))
            return super().get(key, start=start, end=end, if_etag=if_etag)

    store = Changing()
    with pytest.raises(ObjectReplacedError):
        fetcher_of(store).fetch_bytes(stored(store))


def test_a_server_that_ignores_if_match_is_found_out_by_the_version_it_names():
    class Careless(FaultStore):
        def get(self, key, *, start=0, end=None, if_etag=None):
            body = super().get(key, start=start, end=end)
            other = msgspec.structs.replace(body.info, etag="0a1b-2")
            return FaultyBody(other if start else body.info, iter(body))

    store = Careless()
    data, fetched = fetcher_of(store).fetch_bytes(stored(store))
    # The whole, in one answer, was of the listed version.
    assert (bytes(data), str(fetched.check)) == (DATA, "crc32c")


class NoRanges(FaultStore):
    """Answers every range with the whole, as servers may."""

    def get(self, key, *, start=0, end=None, if_etag=None):
        self.gets.append((key, start, end, if_etag))
        info, data = self._find(key)
        return FaultyBody(info, iter([data[:700], data[700:]]))


def test_a_server_without_ranges_is_asked_for_the_whole_from_then_on():
    store = NoRanges()
    info, fetcher = stored(store), fetcher_of(store)
    assert fetcher.fetch_bytes(info)[0] == DATA
    settled()
    assert (0, None) in [get[1:3] for get in store.gets]
    store.gets.clear()
    assert fetcher.fetch_bytes(info)[0] == DATA
    assert store.starts == [0]


def test_what_is_refused_is_refused_once():
    store = FaultStore(always=AccessError("403", key="d/x", status=403))
    with pytest.raises(AccessError):
        fetcher_of(store).fetch_bytes(stored(store))
    assert store.starts == [0]


def test_nothing_is_written_once_a_part_has_failed():
    gate, written = threading.Event(), list[int]()

    class Sink:
        def write(self, offset: int, piece: bytes) -> None:
            written.append(offset)

    def receive(span, part):
        if span[0] == 0:
            part.write(0, b"x")
            raise StoreError("given up")
        gate.wait(10)
        part.write(0, b"y")
        raise AssertionError("it was let through")

    parts = PartedDownload([(0, 1), (1, 2)], Sink(), receive)
    with pytest.raises(StoreError, match="given up"):
        parts.run(threading.Semaphore(3))
    gate.set()
    time.sleep(0.05)
    assert written == [0]


def test_parts_are_under_way_together_within_the_threads_allowed():
    store = SimulatedStore(1, 400, record_bytes=100, latency_seconds=0.05)
    limits = msgspec.structs.replace(PARTED, part_bytes=4000, part_threads=3)
    sink = BufferSink(store.object_bytes)
    Fetcher(store, limits=limits).fetch(store.info(0), sink)
    assert bytes(sink.data) == store.content(store.key(0), 0, store.object_bytes)
    assert 2 <= store.most_open_gets <= 4


def test_checksums_of_stretches_combine():
    left, right = DATA[:1234], DATA[1234:]
    assert combine_crc32c(crc32c(left), crc32c(right), len(right)) == crc32c(DATA)
    assert combine_crc32c(0, crc32c(DATA), len(DATA)) == crc32c(DATA)


def test_over_http_parts_are_ranges_with_if_match_and_one_that_fails_is_tried_again(
    aws_environment, tmp_path
):
    failed = list[object]()

    def once(request):
        if request.headers.get("range", "").startswith("bytes=1000-") and not failed:
            failed.append(request)
            return Reply(503, {}, b"")
        return None

    data = content("big", 4500)
    with StubS3({"d/big": data}, once) as stub:
        manager = stub_manager(stub, tmp_path, limits=PARTED)
        [info] = manager.store.list("d/")
        assert read_all(manager, info) == data
        gets = stub.sent("GET", "d/big")
        assert all("if-match" in request.headers for request in gets)
        spoken = [request.headers.get("range", "") for request in gets]
        for start in (0, 1000, 2000, 3000, 4000):
            assert any(text.startswith(f"bytes={start}-") for text in spoken)
        assert failed
        assert manager.get_stats()["retries"] >= 1


def test_where_the_system_gives_no_more_threads_one_receives_all_parts(monkeypatch):
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "quark-part":
            raise RuntimeError("can't start new thread")
        start(thread)

    store = FaultStore()
    info = stored(store)
    fetcher = fetcher_of(store)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    data, _ = fetcher.fetch_bytes(info)
    again, _ = fetcher.fetch_bytes(info)  # no place of a helper is lost
    assert data == again == DATA
    assert sorted(store.starts) == sorted(STARTS * 2)
