"""The fault proxy: every fault looks as it does from a real server, and nothing else is changed."""

import base64
import hashlib
import http.client
import re
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import pytest

from tests import faults
from tests.fakes import StubS3
from tests.fault_proxy import ALWAYS, FaultProxy, Where
from tests.servers import s3_client
from tools_utilities.checksum import crc32c
from tools_utilities.object_store import StoreSpec, open_store

BODY = bytes(range(256)) * 40
OBJECTS = {"d/a.bin": BODY, "d/b.bin": b"second", "d/empty": b""}


@pytest.fixture
def upstream():
    with StubS3(OBJECTS) as stub:
        yield stub


@pytest.fixture
def proxy(upstream):
    with FaultProxy(upstream.url) as proxy:
        yield proxy


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    cut: bool


def ask(
    proxy: FaultProxy, path: str = "/bucket/d/a.bin", method: str = "GET", **headers: str
) -> Answer:
    """Send one request on a connection of its own; `cut`: the body ended before its announced end."""
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=5)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        response = connection.getresponse()
        try:
            body, cut = response.read(), False
        except http.client.IncompleteRead as error:
            body, cut = error.partial, True
        found = {name.lower(): value for name, value in response.headers.items()}
        return Answer(response.status, found, body, cut)
    finally:
        connection.close()


def test_without_a_fault_everything_passes(proxy, upstream):
    whole = ask(proxy)
    part = ask(proxy, range="bytes=10-19")
    head = ask(proxy, method="HEAD")
    absent = ask(proxy, "/bucket/d/none")

    assert (whole.status, whole.body, whole.cut) == (200, BODY, False)
    assert (part.status, part.body) == (206, BODY[10:20])
    assert (head.status, head.headers["content-length"]) == (200, str(len(BODY)))
    assert absent.status == 404
    assert [r.headers["host"] for r in upstream.requests] == [urlsplit(proxy.url).netloc] * 4
    assert not proxy.fired


def test_what_was_sent_is_counted(proxy):
    ask(proxy)
    ask(proxy, range="bytes=0-9")
    ask(proxy, "/bucket/d/b.bin")
    ask(proxy, "/bucket?list-type=2&prefix=d/")

    assert proxy.sent_bytes(r"a\.bin$") == len(BODY) + 10
    assert proxy.sent_bytes("") == len(BODY) + 10 + len(b"second")
    assert [entry.status for entry in proxy.log] == [200, 206, 200, 200]


@pytest.mark.parametrize("times", [1, 3, ALWAYS])
def test_a_fault_strikes_once_three_times_or_always(proxy, times):
    proxy.inject(faults.slow_down(), times=times)

    statuses = [ask(proxy).status for _ in range(5)]

    struck = min(times, 5)
    assert statuses == [503] * struck + [200] * (5 - struck)
    assert proxy.fired["503 SlowDown"] == struck


def test_a_fault_may_begin_late_and_count_each_key(proxy):
    proxy.inject(faults.expired_token(), after=2, times=ALWAYS)
    assert [ask(proxy).status for _ in range(4)] == [200, 200, 400, 400]
    proxy.clear()
    proxy.inject(faults.missing(), times=1, each_key=True)

    paths = ["/bucket/d/a.bin", "/bucket/d/b.bin"] * 2

    assert [ask(proxy, path).status for path in paths] == [404, 404, 200, 200]


def test_only_requests_that_are_meant_are_struck(proxy):
    proxy.inject(faults.forbidden(), Where("GET HEAD", r"b\.bin$"), times=ALWAYS)

    assert ask(proxy).status == 200
    assert ask(proxy, "/bucket/d/b.bin").status == 403
    assert ask(proxy, "/bucket/d/b.bin", "HEAD").status == 403
    assert ask(proxy, "/bucket?list-type=2&prefix=d/").status == 200


def test_chances_come_from_the_seed(proxy):
    def struck(seed: int) -> list[int]:
        proxy.clear()
        proxy.inject(faults.slow_down(), times=ALWAYS, chance=0.5, seed=seed)
        return [ask(proxy, method="HEAD").status for _ in range(16)]

    first = struck(1)

    assert set(first) == {200, 503}
    assert struck(1) == first
    assert struck(2) != first


@pytest.mark.parametrize(
    ("fault", "status", "code"),
    [
        (faults.slow_down(), 503, "SlowDown"),
        (faults.slow_down(429), 429, "TooManyRequests"),
        (faults.internal_error(), 500, "InternalError"),
        (faults.expired_token(), 400, "ExpiredToken"),
        (faults.forbidden(), 403, "AccessDenied"),
        (faults.missing(), 404, "NoSuchKey"),
        (faults.moved("eu-west-9"), 301, "PermanentRedirect"),
        (faults.moved("eu-west-9", 400), 400, "AuthorizationHeaderMalformed"),
        (faults.clock_skew(), 403, "RequestTimeTooSkewed"),
    ],
)
def test_errors_are_worded_as_s3_words_them(proxy, upstream, fault, status, code):
    proxy.inject(fault, times=2)

    got, head = ask(proxy), ask(proxy, method="HEAD")

    assert (got.status, head.status, head.body) == (status, status, b"")
    assert f"<Code>{code}</Code>".encode() in got.body
    assert not upstream.requests
    if status in {301, 400} and code != "ExpiredToken":
        assert got.headers["x-amz-bucket-region"] == "eu-west-9"


def test_a_skewed_clock_is_seen_in_the_answer(proxy):
    proxy.inject(faults.clock_skew(20))
    answer = ask(proxy)
    ahead = parsedate_to_datetime(answer.headers["date"]).timestamp() - time.time()
    assert 1100 < ahead < 1210
    assert b"<ServerTime>" in answer.body


def test_a_reset_before_the_answer_does_nothing(proxy, upstream):
    proxy.inject(faults.reset_before())
    with pytest.raises(ConnectionResetError):
        ask(proxy, method="PUT")
    assert not upstream.requests
    assert proxy.log[0].applied == 0


def test_a_reset_in_the_body_comes_after_what_was_sent(proxy):
    proxy.inject(faults.reset_in_body(1000))
    connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=5)
    connection.request("GET", "/bucket/d/a.bin")
    response = connection.getresponse()

    assert response.read(1000) == BODY[:1000]
    with pytest.raises(ConnectionResetError):
        response.read()
    connection.close()


def test_a_short_body_with_its_true_or_an_agreeing_length(proxy):
    proxy.inject(faults.short_body(100))
    proxy.inject(faults.short_body(100, agreeing=True))

    true, agreeing = ask(proxy), ask(proxy)

    assert (true.cut, true.body, true.headers["content-length"]) == (
        *(True, BODY[:100]),
        str(len(BODY)),
    )
    assert (agreeing.cut, agreeing.body) == (False, BODY[:100])
    assert agreeing.headers["content-length"] == "100"


def test_a_body_fault_on_an_empty_body_changes_nothing(proxy):
    for fault in (faults.reset_in_body(), faults.short_body(), faults.stall(), faults.bit_flip()):
        proxy.inject(fault)
        answer = ask(proxy, "/bucket/d/empty")
        assert (answer.status, answer.body, answer.cut) == (200, b"", False)


def test_one_bit_is_turned_with_and_without_a_checksum(proxy):
    proxy.inject(faults.bit_flip(7))
    proxy.inject(faults.bit_flip(checksum=True))
    proxy.inject(faults.bit_flip(checksum=True))

    plain, summed, part = ask(proxy), ask(proxy), ask(proxy, range="bytes=0-99")

    assert [n for n in range(len(BODY)) if plain.body[n] != BODY[n]] == [7]
    assert not any(name.startswith(faults.CHECKSUM) for name in plain.headers)
    sent = base64.b64decode(summed.headers["x-amz-checksum-crc32c"])
    assert int.from_bytes(sent, "big") == crc32c(BODY) != crc32c(summed.body)
    assert "x-amz-checksum-crc32c" not in part.headers


@pytest.mark.parametrize(("fault", "sent"), [(faults.silent(0.3), 0), (faults.stall(50, 0.3), 50)])
def test_silence_lasts_as_long_as_told_or_until_the_client_goes(proxy, fault, sent):
    proxy.inject(fault)
    begun = time.monotonic()
    if sent:
        assert ask(proxy).body == BODY[:sent]
    else:
        with pytest.raises(http.client.RemoteDisconnected):
            ask(proxy)
    assert time.monotonic() - begun >= 0.3
    assert proxy.log[0].sent_bytes == sent


def test_the_proxy_stops_while_a_client_still_waits(upstream):
    with FaultProxy(upstream.url) as proxy:
        proxy.inject(faults.silent())
        connection = http.client.HTTPConnection(urlsplit(proxy.url).netloc, timeout=5)
        connection.request("GET", "/bucket/d/a.bin")
        while not proxy.log:
            time.sleep(0.005)
    connection.close()


def test_a_drip_takes_its_time(proxy):
    proxy.inject(faults.drip(40_000, 0.05))
    begun = time.monotonic()
    answer = ask(proxy)
    assert (answer.body, answer.cut) == (BODY, False)
    assert time.monotonic() - begun >= len(BODY) / 40_000 - 0.05


def test_an_object_that_was_replaced_answers_as_another_one(proxy):
    proxy.inject(faults.replaced(b"another"), Where(key="a.bin"), times=ALWAYS)
    before = ask(proxy, "/bucket?list-type=2&prefix=d/")
    etag = re.findall(rb"a\.bin</Key>.*?<ETag>(?:&quot;|\")?([0-9a-f]+)", before.body, re.DOTALL)[0]

    conditional = ask(proxy, if_match=f'"{etag.decode()}"')
    plain, part, head = ask(proxy), ask(proxy, range="bytes=2-3"), ask(proxy, method="HEAD")

    assert conditional.status == 412
    assert (plain.body, plain.headers["etag"]) == (
        b"another",
        f'"{hashlib.md5(b"another", usedforsecurity=False).hexdigest()}"',
    )
    assert (part.status, part.body, part.headers["content-range"]) == (206, b"ot", "bytes 2-3/7")
    assert head.headers["content-length"] == "7"
    assert ask(proxy, range="bytes=7-9").status == 416


def test_a_page_of_a_listing_comes_twice(upstream):
    for number in range(30):
        upstream.objects[f"many/{number:02d}"] = b""
    with FaultProxy(upstream.url) as proxy:
        proxy.inject(faults.repeated_page(), faults.NEXT_PAGES)
        first = ask(proxy, "/bucket?list-type=2&prefix=many/&max-keys=10")
        second = ask(proxy, "/bucket?list-type=2&prefix=many/&max-keys=10&start-after=many/09")
        third = ask(proxy, "/bucket?list-type=2&prefix=many/&max-keys=10&start-after=many/09")
    assert first.body == second.body
    assert b"<Key>many/10</Key>" in third.body
    assert b"<Key>many/00</Key>" not in third.body


class TestSeaweed:
    """Before a real server: signatures hold, and what is applied is applied."""

    @pytest.fixture
    def place(self, weed_endpoint, make_bucket, aws_environment):
        bucket = make_bucket(weed_endpoint)
        direct = open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=weed_endpoint))
        with FaultProxy(weed_endpoint) as proxy:
            store = open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=proxy.url))
            yield proxy, store, direct, bucket

    def test_clients_work_through_it(self, place):
        proxy, store, direct, bucket = place
        for number in range(5):
            store.put(f"d/{number}", BODY)
        client = s3_client(proxy.url)
        client.put_object(Bucket=bucket, Key="d/boto", Body=BODY)  # Expect: 100-continue
        client.close()

        assert b"".join(store.get("d/boto")) == BODY
        assert [info.key for info in store.list("d/")] == [*(f"d/{n}" for n in range(5)), "d/boto"]
        assert [info.key for info in direct.list("d/")] == [info.key for info in store.list("d/")]
        assert not proxy.fired

    @pytest.mark.parametrize(
        ("fault", "applied", "present"),
        [
            (faults.reset_before(), 0, False),
            (faults.reply_lost(), 1, True),
            (faults.reply_lost(silent_seconds=0.1), 1, True),
        ],
    )
    def test_a_lost_reply_is_of_a_put_that_was_applied(self, place, fault, applied, present):
        proxy, store, direct, _ = place
        store.put("warm", b"")
        proxy.inject(fault, Where("PUT", "k$"))

        with pytest.raises(OSError, match="k"):
            store.put("k", b"value")

        assert proxy.log[-1].applied == applied
        assert [info.key for info in direct.list("k")] == ["k"] * present

    def test_a_request_may_be_applied_late_or_twice(self, place):
        proxy, store, direct, _ = place
        proxy.inject(faults.applied_late(0.2), Where("PUT"))
        with pytest.raises(OSError, match="late"):
            store.put("late", b"value")
        assert not list(direct.list("late"))
        deadline = time.monotonic() + 10
        while not list(direct.list("late")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        proxy.inject(faults.applied_twice(), Where("PUT"))

        store.put("twice", b"value")

        assert proxy.log[-1].applied == 2

    def test_something_real_may_happen_first(self, place):
        proxy, store, direct, _ = place
        store.put("gone", b"value")
        proxy.inject(faults.first(lambda: direct.delete("gone")), Where("GET"))
        with pytest.raises(FileNotFoundError):
            store.get("gone")


def test_every_fault_has_a_name_of_its_own():
    names = [getattr(kind.make(), "fault_name", "") for kind in faults.FAULTS.values()]
    assert all(names)
    assert len(set(names)) == len(names)
