import hashlib
import threading
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.fault_store import (
    FaultStore,
    FaultyBody,
    breaks_after,
    busy,
    drips,
    ends_after,
    flips,
    stalls_after,
    too_long,
    whole,
)
from tools_utilities.checksum import crc32c, encode_crc32c
from tools_utilities.errors import (
    AccessError,
    IntegrityError,
    ObjectNotFoundError,
    ObjectReplacedError,
    StoreError,
)
from tools_utilities.fetch import Fetcher
from tools_utilities.fetch_attempt import BufferSink, FetchLimits
from tools_utilities.object_store import ObjectInfo
from tools_utilities.stream_statistics import StreamStatistics

DATA = bytes(range(256)) * 16  # 4,096 bytes
QUICK = FetchLimits(first_byte_seconds=0.2, watch_seconds=0.2)


class Setting:
    """A fault store with one object, and a fetcher whose pauses are noted, not slept."""

    def __init__(self, store: FaultStore, limits: FetchLimits = QUICK, **changes: str | None):
        self.store = store
        self.info = msgspec.structs.replace(store.put("d/x", DATA), **changes)
        self.pauses: list[float] = []
        self.statistics = StreamStatistics()
        self.fetcher = Fetcher(
            store, limits=limits, statistics=self.statistics, sleep=self.pauses.append
        )

    def fetch(self) -> bytes:
        data, self.fetched = self.fetcher.fetch_bytes(self.info)
        return bytes(data)

    def stat(self, name: str) -> int:
        return int(self.statistics.to_dict()[name])


def crc(data: bytes) -> str:
    return encode_crc32c(crc32c(data))


def test_a_broken_body_is_resumed_where_it_broke():
    case = Setting(FaultStore(breaks_after(1000), breaks_after(96)), crc32c=crc(DATA))
    assert case.fetch() == DATA
    assert case.store.starts == [0, 1000, 1096]
    assert [etag for *_, etag in case.store.gets] == [case.info.etag] * 3
    assert case.stat("retries") == 2
    assert case.stat("requests") == 3
    assert case.stat("bytes_from_store") == 4096


def test_a_body_that_always_breaks_ends_in_an_error_with_the_numbers():
    case = Setting(FaultStore(always=breaks_after(100)))
    with pytest.raises(StoreError) as caught:
        case.fetch()
    detail = caught.value.detail
    assert len(case.store.gets) == detail["attempts"] == 6
    assert (detail["received_bytes"], detail["expected_bytes"]) == (600, 4096)
    assert (detail["key"], detail["phase"]) == ("d/x", "get after list")
    assert "d/x" in str(caught.value)
    assert "600 of 4096 bytes" in str(caught.value)


def test_pauses_are_jittered_between_the_limits():
    case = Setting(FaultStore(always=busy()))
    with pytest.raises(StoreError, match="after 6 attempts"):
        case.fetch()
    assert len(case.pauses) == 5
    assert all(0.1 <= pause <= 10 for pause in case.pauses)
    assert len(set(case.pauses)) == 5


def test_no_attempt_begins_when_the_time_for_retries_is_over():
    now = iter(range(0, 100_000, 50))
    store = FaultStore(always=busy())
    limits = FetchLimits(first_byte_seconds=1e6, watch_seconds=1e6)
    fetcher = Fetcher(store, limits=limits, clock=lambda: float(next(now)), sleep=lambda _s: None)
    with pytest.raises(StoreError) as caught:
        fetcher.fetch_bytes(store.put("x", DATA))
    assert 1 < caught.value.detail["attempts"] < 6


def test_a_body_that_stalls_is_given_up_and_resumed():
    released = threading.Event()
    case = Setting(FaultStore(stalls_after(1500, released)))
    assert case.fetch() == DATA
    assert case.store.starts == [0, 1500]
    released.set()


def test_what_a_given_up_attempt_still_receives_goes_nowhere():
    released = threading.Event()
    limits = msgspec.structs.replace(QUICK, max_attempts=1, first_byte_seconds=10)
    case = Setting(FaultStore(stalls_after(1500, released)), limits)
    sink = BufferSink(len(DATA))
    with pytest.raises(StoreError, match="stalled"):
        case.fetcher.fetch(case.info, sink)
    sink.data[:] = bytes(len(DATA))  # as a caller may reuse what it gave up
    released.set()
    for thread in threading.enumerate():
        if thread.name == "quark-fetch":
            thread.join(5)
    assert sink.read(0, len(DATA)) == bytes(len(DATA))


def test_a_drip_below_the_least_rate_is_given_up():
    case = Setting(FaultStore(drips(64, 0.02)))
    assert case.fetch() == DATA
    assert len(case.store.gets) == 2
    assert 0 < case.store.starts[1] < 4096


def test_a_slow_body_above_the_least_rate_is_left_alone():
    limits = FetchLimits(first_byte_seconds=5, watch_seconds=0.5, min_bytes_per_second=250)
    case = Setting(FaultStore(drips(256, 0.1)), limits)
    assert case.fetch() == DATA
    assert case.store.starts == [0]


def test_silence_is_tried_four_times_only_ever_shorter():
    released = threading.Event()
    limits = FetchLimits(first_byte_seconds=0.05, watch_seconds=0.05)
    case = Setting(FaultStore(always=stalls_after(0, released)), limits)
    with pytest.raises(StoreError) as caught:
        case.fetch()
    released.set()
    assert caught.value.detail["attempts"] == 4
    assert "no byte in 0.035 s" in str(caught.value)
    # 35 s are what a silent server may cost, pauses included.
    usual = FetchLimits()
    waits = [usual.after_silence(silent).first_byte_seconds for silent in range(4)]
    assert sum(waits) + 3 * 3 * usual.first_pause_seconds <= 35
    assert max(case.pauses) <= 3 * limits.first_pause_seconds


def test_three_silent_answers_are_survived():
    released = threading.Event()
    limits = FetchLimits(first_byte_seconds=0.2, watch_seconds=0.2)
    case = Setting(FaultStore(*[stalls_after(0, released)] * 3), limits)
    assert case.fetch() == DATA
    released.set()


def test_a_body_that_ends_early_without_an_error_is_resumed():
    case = Setting(FaultStore(ends_after(2048)))
    assert case.fetch() == DATA
    assert case.store.starts == [0, 2048]


def test_a_body_that_always_ends_early_ends_in_an_error_after_the_last_attempt():
    case = Setting(FaultStore(*[ends_after(0)] * 99))
    with pytest.raises(StoreError, match=r"gave up after 6 attempts, 0 of 4096 bytes.*ended early"):
        case.fetch()
    assert case.store.starts == [0] * 6
    assert len(case.pauses) == 5


def test_a_body_that_is_too_long_is_fetched_from_its_start():
    case = Setting(FaultStore(too_long))
    assert case.fetch() == DATA
    assert case.store.starts == [0, 0]


def test_a_server_without_ranges_is_asked_for_the_whole_again():
    no_ranges = StoreError("Received non-partial response when range requested", status=None)
    case = Setting(FaultStore(breaks_after(1000), no_ranges))
    assert case.fetch() == DATA
    assert case.store.starts == [0, 1000, 0]


def test_a_resumed_body_that_begins_again_at_zero_is_caught_by_its_checksum():
    def ignores_range(body, start, end):
        yield DATA[: end - start]

    case = Setting(FaultStore(breaks_after(1000), ignores_range), crc32c=crc(DATA))
    assert case.fetch() == DATA
    assert case.store.starts == [0, 1000, 0]


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (AccessError("denied", status=403, permission="s3:GetObject"), AccessError),
        (ObjectNotFoundError("none", status=404), ObjectNotFoundError),
        (ObjectReplacedError("other", status=412), ObjectReplacedError),
    ],
)
def test_what_time_cannot_mend_is_asked_for_once(refusal, kind):
    case = Setting(FaultStore(always=refusal))
    with pytest.raises(kind) as caught:
        case.fetch()
    assert len(case.store.gets) == 1
    assert caught.value.detail["phase"] == "get after list"
    assert caught.value.detail["key"] == "d/x"
    assert caught.value.detail["status"] == refusal.detail["status"]
    assert caught.value.exit_code == refusal.exit_code


def test_an_object_of_another_size_or_version_is_a_replaced_one():
    store = FaultStore()
    info = store.put("x", DATA)
    for changed in (
        msgspec.structs.replace(info, size_bytes=9),
        ObjectInfo(key="x", size_bytes=9),
    ):
        with pytest.raises(ObjectReplacedError, match="no longer the object"):
            Fetcher(store).fetch_bytes(changed)


class OtherEtagStore(FaultStore):
    """Lists MD5s and answers with etags of another kind; knows no If-Match (nginx before a store)."""

    def get(self, key, *, start=0, end=None, if_etag=None):
        body = super().get(key, start=start, end=end)
        named = msgspec.structs.replace(body.info, etag="6b0a151a-fffdd4")
        return FaultyBody(named, iter(body))


def test_an_etag_of_another_kind_is_proven_by_the_md5_of_the_whole():
    md5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
    case = Setting(OtherEtagStore(breaks_after(1000)), etag=md5, crc32c=None)
    assert case.fetch() == DATA
    assert case.fetched.check == "md5"
    assert case.store.starts == [0, 1000]
    # A range proves nothing.
    with pytest.raises(ObjectReplacedError):
        case.fetcher.fetch_range(case.info, 0, 100)


def test_another_etag_and_another_content_is_a_replaced_object():
    for etag in (hashlib.md5(b"old", usedforsecurity=False).hexdigest(), "0a1b-2"):
        case = Setting(OtherEtagStore(), etag=etag, crc32c=crc(DATA))
        with pytest.raises(ObjectReplacedError, match="6b0a151a-fffdd4"):
            case.fetch()
        assert len(case.store.gets) == 1
        with pytest.raises(ObjectReplacedError):
            case.fetch()


def test_a_flipped_bit_is_fetched_again():
    case = Setting(FaultStore(flips(77)), crc32c=crc(DATA))
    assert case.fetch() == DATA
    assert case.fetched.check == "crc32c"
    assert case.store.starts == [0, 0]


def flipped_in_the_middle(body, start, end):
    data = bytearray(whole(body))
    data[len(data) // 2] ^= 1
    yield bytes(data)


@pytest.mark.parametrize("num_flips", [1, 2, 3])
@pytest.mark.parametrize("known", ["crc32c", "md5"])
def test_bits_flipped_up_to_three_times_on_the_way_are_survived(num_flips, known):
    case = Setting(Md5Store(*[flipped_in_the_middle] * num_flips))
    if known == "crc32c":
        case.info = msgspec.structs.replace(case.info, crc32c=crc(DATA))
    assert case.fetch() == DATA
    assert case.fetched.check == known


def test_a_checksum_that_the_same_bytes_fail_however_they_come_is_an_integrity_error():
    case = Setting(FaultStore(), crc32c=crc(b"something else"))
    with pytest.raises(IntegrityError, match="downloaded 3 times") as caught:
        case.fetch()
    third = len(DATA) // 3
    assert [(start, end) for _, start, end, _ in case.store.gets] == [
        *((0, None), (0, None)),
        *((0, third), (third, None)),
    ]
    assert caught.value.detail["key"] == "d/x"
    assert crc(DATA) in str(caught.value)


class Md5Store(FaultStore):
    """Etags are MD5s, as most stores have them."""

    def _write(self, key: str, data: bytes) -> ObjectInfo:
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        info = ObjectInfo(key=key, size_bytes=len(data), etag=etag)
        self._objects[key] = (info, data)
        return info

    def relabel(self, key: str, etag: str) -> ObjectInfo:
        info = msgspec.structs.replace(self._objects[key][0], etag=etag)
        self._objects[key] = (info, self._objects[key][1])
        return info


def test_an_etag_that_is_an_md5_checks_the_content():
    case = Setting(Md5Store(flips(4095)))
    assert case.fetch() == DATA
    assert case.fetched.check == "md5"
    assert case.store.starts == [0, 0]
    assert case.stat("unverified") == 0


def test_an_etag_that_only_looks_like_an_md5_does_not_stop_the_run(caplog):
    case = Setting(store := Md5Store())
    case.info = store.relabel("d/x", "0" * 32)
    assert case.fetch() == DATA
    assert case.fetched.check == "length"
    assert case.stat("unverified") == 1
    assert "cannot be verified" in caplog.text


@pytest.mark.parametrize("size", [1, 2, 3, 4096])
def test_a_bit_that_is_always_flipped_on_the_way_is_never_taken_for_a_false_md5(size):
    case = Setting(Md5Store(always=flipped_in_the_middle))
    info = case.store.put("d/y", DATA[:size])
    with pytest.raises(IntegrityError, match="md5"):
        case.fetcher.fetch_bytes(info)


def test_a_store_whose_etags_are_no_md5s_is_soon_read_once():
    case = Setting(store := Md5Store())
    for number in range(5):
        store.put(f"d/{number}", DATA)
        info = store.relabel(f"d/{number}", f"{number:032x}")
        assert bytes(case.fetcher.fetch_bytes(info)[0]) == DATA
    keys = [key for key, *_ in store.gets]
    assert [keys.count(f"d/{number}") for number in range(5)] == [4, 4, 4, 1, 1]
    assert case.stat("unverified") == 5


def test_a_wrong_md5_on_a_store_whose_etags_are_md5s_is_an_integrity_error():
    case = Setting(store := Md5Store())
    case.fetch()
    info = store.relabel("d/x", "0" * 32)
    with pytest.raises(IntegrityError):
        case.fetcher.fetch_bytes(info)


def test_without_any_checksum_only_the_length_counts_and_is_said():
    case = Setting(FaultStore())
    assert case.fetch() == DATA
    assert case.fetched.check == "length"
    assert case.stat("unverified") == 1


class CrcStore(FaultStore):
    """Tells checksums on HEAD only, as S3 does of objects uploaded in parts."""

    heads = 0

    def head(self, key: str) -> ObjectInfo:
        self.heads += 1
        data = self._objects[key][1]
        return msgspec.structs.replace(super().head(key), crc32c=crc(data))


def test_a_checksum_that_only_a_head_tells_is_asked_for():
    case = Setting(CrcStore(flips(9)))
    assert case.fetch() == DATA
    assert case.fetched.check == "crc32c"
    assert case.stat("unverified") == 0
    assert case.store.starts == [0, 0]


def test_a_store_without_checksums_is_not_asked_for_ever():
    class Counting(CrcStore):
        def head(self, key: str) -> ObjectInfo:
            return msgspec.structs.replace(super().head(key), crc32c=None)

    case = Setting(store := Counting())
    for _ in range(5):
        assert case.fetch() == DATA
    assert store.heads == 2


def test_ranges_are_clipped_and_carry_the_version():
    case = Setting(FaultStore(breaks_after(10)))
    assert case.fetcher.fetch_range(case.info, 4000, 9999) == DATA[4000:]
    assert case.fetcher.fetch_range(case.info, 100, 200) == DATA[100:200]
    assert case.fetcher.fetch_range(case.info, 5000, 6000) == b""
    assert case.store.gets == [
        ("d/x", 4000, None, case.info.etag),
        ("d/x", 4010, None, case.info.etag),
        ("d/x", 100, 200, case.info.etag),
    ]


def test_an_error_of_the_sink_is_not_the_stores():
    class FullDisk:
        def write(self, offset, piece):
            raise OSError(28, "No space left on device")

    case = Setting(FaultStore())
    with pytest.raises(OSError, match="No space left") as caught:
        case.fetcher.fetch(case.info, FullDisk())
    assert caught.value.errno == 28
    assert len(case.store.gets) == 1


@pytest.mark.parametrize("num_bytes", [1000, 1 << 20])
def test_a_large_buffer_has_pages_of_its_own_which_no_child_shares(num_bytes):
    sink = BufferSink(num_bytes)
    sink.write(num_bytes - 4, b"tail")
    assert isinstance(sink.data, bytearray) == (num_bytes < 1 << 18)
    view = sink.read(num_bytes - 5, 5)
    address = np.frombuffer(view, np.uint8).ctypes.data
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, permissions, *_ = line.split()
        start, end = (int(part, 16) for part in span.split("-"))
        if start <= address < end:
            assert permissions == "rw-p"
    del sink
    assert bytes(view) == b"\0tail"
