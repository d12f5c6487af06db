"""What S3's refusals become: the kind, the words, the number of requests (B19, B22, B23)."""

import pickle
import time
from typing import Any

import pytest

from tests.fakes import Reply, Request, StubS3, xml_error
from tools_utilities.errors import (
    AccessError,
    ConditionFailedError,
    DataNotFoundError,
    ObjectNotFoundError,
    ObjectReplacedError,
    QuarkError,
    StoreError,
)
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store

pytestmark = pytest.mark.usefixtures("aws_environment")

SHARDS = {f"d/shard_{n:05}.jsonl": b'{"n": 1}\n' * 8 for n in range(8)}
BROKEN = "d/shard_00005.jsonl"


@pytest.fixture
def server():
    with StubS3(SHARDS) as stub:
        yield stub


def open_at(server: StubS3, **options) -> ObjectStore:
    return open_store(StoreSpec(uri="s3://my.bucket", endpoint_url=server.url, **options))


def refuse(server: StubS3, reply: Reply, *, method: str = "", key: str | None = None) -> None:
    """Answer matching requests with `reply`, everything else as usual."""

    def script(request: Request) -> Reply | None:
        matches = (not method or request.method == method) and (key is None or request.key == key)
        return reply if matches else None

    server.script = script


def fails(store: ObjectStore, action: str, key: str = BROKEN) -> QuarkError:
    """Return the error of an action."""
    actions: dict[str, Any] = {
        "list": lambda: list(store.list(key)),
        "list_folder": lambda: list(store.list_folder(key)),
        "head": lambda: store.head(key),
        "get": lambda: b"".join(store.get(key)),
        "put": lambda: store.put(key, b"1"),
        "create": lambda: store.put_if_absent(key, b"1"),
        "replace": lambda: store.put_if_match(key, b"1", "abc"),
        "delete": lambda: store.delete(key),
    }
    with pytest.raises(QuarkError) as caught:
        actions[action]()
    # As it arrives from a worker process.
    arrived: QuarkError = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    return arrived


@pytest.fixture(params=["first request", "through obstore"])
def warm(request, server):
    """Return a store whose next body comes through boto3, or through obstore."""
    store = open_at(server)
    if request.param == "through obstore":
        b"".join(store.get("d/shard_00000.jsonl"))
        b"".join(store.get("d/shard_00000.jsonl"))
        assert "object_store" in server.requests[-1].headers["user-agent"]
    server.requests.clear()
    return store


# Case B22: a refusal is not an absence.


def test_denied_get_names_key_permission_and_kms(server, warm):
    message = "User is not authorized to perform: kms:Decrypt on the key"
    refuse(server, xml_error(403, "AccessDenied", message), key=BROKEN)
    error = fails(warm, "get")
    assert isinstance(error, AccessError)
    assert "access denied" in str(error)
    assert BROKEN in str(error)
    assert "s3:GetObject" in str(error)
    assert "kms:Decrypt" in error.hint
    assert "exist" not in str(error)
    assert error.detail["code"] == "AccessDenied"
    assert error.detail["status"] == 403
    assert not error.detail.get("transient")
    assert len(server.sent("GET", BROKEN)) == 1


def test_denied_list_names_permission_and_prefix_and_gets_still_work(server):
    refuse(server, xml_error(403, "AccessDenied", "no"), method="GET", key="")
    store = open_at(server)
    for action in ("list", "list_folder"):
        error = fails(store, action, "data/x/")
        assert isinstance(error, AccessError)
        assert "s3:ListBucket" in str(error)
        assert "data/x/" in str(error)
    assert b"".join(store.get(BROKEN)) == SHARDS[BROKEN]


def test_denied_list_is_told_after_obstore_was_used(server, warm):
    refuse(server, xml_error(403, "AccessDenied", "no"), method="GET", key="")
    error = fails(warm, "list", "data/x/")
    assert isinstance(error, AccessError)
    assert "s3:ListBucket" in str(error)


def test_silent_403_of_a_head_may_be_absence(server):
    refuse(server, Reply(403), method="HEAD")
    error = fails(open_at(server), "head")
    assert isinstance(error, AccessError)
    assert "missing object or a missing permission" in str(error)
    assert not isinstance(error, FileNotFoundError)


@pytest.mark.parametrize("action", ["head", "get"])
def test_what_is_not_there_is_absent_to_who_may_list_a_prefix_alone(server, action):
    """S3 answers 403 for a missing key where the bucket may not be listed as a whole."""
    missing = f"{BROKEN}.json"

    def scoped(request: Request) -> Reply | None:
        below = request.key or request.query.get("prefix", "")
        if below.startswith("d/") and (not request.key or request.key in SHARDS):
            return None
        return xml_error(403, "AccessDenied", "no") if request.method == "GET" else Reply(403)

    server.script = scoped
    store = open_at(server)
    assert b"".join(store.get(BROKEN)) == SHARDS[BROKEN]
    with pytest.raises(ObjectNotFoundError):
        store.head(missing) if action == "head" else list(store.get(missing))
    with pytest.raises(AccessError):  # nobody may know
        store.head("e/x") if action == "head" else list(store.get("e/x"))


def test_denied_put_and_delete_name_their_permission(server):
    refuse(server, xml_error(403, "AccessDenied", "no"))
    store = open_at(server)
    assert "s3:PutObject" in str(fails(store, "put"))
    assert "s3:PutObject" in str(fails(store, "create"))
    assert "s3:DeleteObject" in str(fails(store, "delete"))


# Case B23: the clock.


# Not `head`: it has no body to say it in.
@pytest.mark.parametrize("action", ["list", "list_folder", "get", "create"])
def test_a_wrong_clock_is_told_with_its_seconds(server, warm, action):
    reply = xml_error(
        403,
        "RequestTimeTooSkewed",
        "The difference between the request time and the current time is too large.",
        RequestTime="20260101T000000Z",
        ServerTime="2026-01-01T00:21:40Z",
    )
    refuse(server, reply)
    error = fails(warm, action)
    assert isinstance(error, AccessError)
    assert "clock is behind the server by 1300 s" in str(error)
    assert "Correct the clock" in error.hint
    assert "denied" not in str(error)
    assert "key" not in error.hint
    assert error.detail["skew_seconds"] == 1300
    assert len(server.requests) <= 2


def test_a_clock_that_is_ahead(server):
    times = {"RequestTime": "20260101T001000Z", "ServerTime": "2026-01-01T00:00:00Z"}
    refuse(server, xml_error(403, "RequestTimeTooSkewed", "", **times))
    assert "ahead of the server by 600 s" in str(fails(open_at(server), "get"))


# Case B19: the endpoint is honoured.


def test_a_redirect_to_a_region_stays_at_the_endpoint(server):
    moved = xml_error(301, "PermanentRedirect", "elsewhere", Endpoint="my.bucket.s3.amazonaws.com")
    headers = {**moved.headers, "x-amz-bucket-region": "eu-west-1"}
    refuse(server, Reply(301, headers, moved.body))
    for action in ("list", "get", "create"):
        error = fails(open_at(server), action)
        assert isinstance(error, AccessError), action
        assert "eu-west-1" in str(error)
        assert "us-east-1" in str(error)
        assert error.exit_code == 4
    hosts = {request.headers["host"] for request in server.requests}
    assert hosts == {f"127.0.0.1:{server.port}"}
    assert all(request.path.startswith("/my.bucket") for request in server.requests)


def test_a_bucket_elsewhere_is_read_after_signing_for_its_region(server):
    moved = xml_error(301, "PermanentRedirect")

    def script(request: Request) -> Reply | None:
        if "/eu-west-1/s3/" in request.headers.get("authorization", ""):
            return None
        return Reply(301, {"x-amz-bucket-region": "eu-west-1"}, moved.body)

    server.script = script
    store = open_at(server)
    for _ in range(3):
        assert b"".join(store.get(BROKEN)) == SHARDS[BROKEN]
    assert len(list(store.list("d/"))) == 8
    assert {request.headers["host"] for request in server.requests} == {f"127.0.0.1:{server.port}"}
    # Found out once: after that, requests are signed for the right region at once.
    assert "/eu-west-1/" in server.requests[-1].headers["authorization"]
    assert "/eu-west-1/" in server.requests[-2].headers["authorization"]


def test_a_redirect_to_another_host_is_not_followed(server, warm):
    with StubS3(SHARDS) as other:
        away = f"http://localhost:{other.port}/my.bucket/{BROKEN}"
        refuse(server, Reply(307, {"location": away}, b""), key=BROKEN)
        error = fails(warm, "get")
        assert isinstance(error, StoreError | AccessError)
        assert other.requests == []


def test_path_style_and_host_of_every_request(server):
    store = open_at(server)
    list(store.list("d/"))
    for _ in range(2):
        b"".join(store.get(BROKEN))
    store.head(BROKEN)
    for request in server.requests:
        assert request.path.startswith("/my.bucket")
        assert request.headers["host"] == f"127.0.0.1:{server.port}"


# Other refusals.


@pytest.mark.parametrize("action", ["list", "head", "get", "put", "create", "delete"])
def test_a_missing_bucket_is_named(server, action):
    refuse(server, xml_error(404, "NoSuchBucket", "The specified bucket does not exist"))
    error = fails(open_at(server), action)
    assert isinstance(error, DataNotFoundError)
    assert "my.bucket" in str(error)


def test_a_missing_key_is_not_found(server, warm):
    error = fails(warm, "get", "d/gone")
    assert isinstance(error, ObjectNotFoundError)
    assert "d/gone" in str(error)
    assert len(server.sent("GET", "d/gone")) == 1


def test_a_replaced_object(server, warm):
    with pytest.raises(ObjectReplacedError):
        warm.get(BROKEN, if_etag="0123")


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (xml_error(503, "SlowDown", "Reduce your request rate."), "SlowDown"),
        (xml_error(500, "InternalError", "We encountered an internal error."), "InternalError"),
        (xml_error(429, "TooManyRequests"), "TooManyRequests"),
        (xml_error(400, "RequestTimeout", "Your socket connection was idle."), "RequestTimeout"),
        (Reply(502, {}, b"<html>bad gateway</html>"), ""),
    ],
)
def test_trouble_is_transient_and_a_body_is_asked_once(server, warm, reply, code):
    refuse(server, reply, key=BROKEN)
    error = fails(warm, "get")
    assert isinstance(error, StoreError)
    assert error.detail["transient"] is True
    assert error.detail["code"] == code
    assert error.detail["status"] == reply.status
    assert error.detail["key"] == BROKEN
    assert error.detail["phase"] == "get"
    assert len(server.sent("GET", BROKEN)) == 1


def test_listing_and_head_get_over_trouble(server):
    busy = [True, True]

    def script(request: Request) -> Reply | None:
        return xml_error(503, "SlowDown") if busy and busy.pop() else None

    server.script = script
    store = open_at(server)
    assert len(list(store.list("d/"))) == 8
    busy.extend([True, True])
    assert store.head(BROKEN).size_bytes == len(SHARDS[BROKEN])


def test_listing_gives_up_in_the_end(server):
    refuse(server, xml_error(503, "SlowDown"))
    error = fails(open_at(server), "list", "d/")
    assert error.detail["transient"] is True
    assert len(server.requests) == 1 + 4  # obstore begins, boto3 says what is wrong


def test_the_outcome_of_a_conditional_put_may_be_unknown(server):
    refuse(server, xml_error(500, "InternalError"))
    for action in ("create", "replace"):
        error = fails(open_at(server), action)
        assert isinstance(error, ConditionFailedError)
        assert error.detail["unknown"] is True
    assert len(server.sent("PUT")) == 2


@pytest.mark.parametrize(
    ("status", "code"),
    [(412, "PreconditionFailed"), (409, "ConditionalRequestConflict"), (404, "NoSuchKey")],
)
def test_a_lost_condition(server, status, code):
    refuse(server, xml_error(status, code))
    error = fails(open_at(server), "replace")
    assert isinstance(error, ConditionFailedError)
    assert "unknown" not in error.detail
    assert error.detail["status"] == status


@pytest.mark.parametrize("code", ["InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"])
def test_wrong_keys_are_not_a_missing_permission(server, warm, code):
    refuse(server, xml_error(403, code, "The AWS Access Key Id AKIA1234567890123456 …"))
    error = fails(warm, "get")
    assert isinstance(error, AccessError)
    assert "GetObject" not in str(error)
    assert "AKIA1234567890123456" not in str(error)


def test_nobody_listens():
    with StubS3({}) as gone:
        url = gone.url
    store = open_store(StoreSpec(uri="s3://b-b-b", endpoint_url=url))
    start = time.monotonic()
    error = fails(store, "get")
    assert isinstance(error, StoreError)
    assert error.detail["transient"] is True
    assert time.monotonic() - start < 5
    assert isinstance(fails(store, "create"), StoreError)


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_body_that_breaks_tells_how_much_came(server, warm, how):
    data = bytes(1 << 20)
    headers = {"etag": '"e"', "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    refuse(server, Reply(200, headers, data, send_bytes=700_000, then=how), key=BROKEN)
    body = warm.get(BROKEN)
    received = 0
    with pytest.raises(StoreError) as caught:
        for piece in body:
            received += len(piece)
    body.close()
    assert caught.value.detail["received_bytes"] == received
    assert caught.value.detail["transient"] is True
    assert caught.value.detail["phase"] == "body"


def test_an_answer_that_is_not_s3(server):
    refuse(server, Reply(200, {"content-type": "text/html"}, b"<html>log in here"))
    error = fails(open_at(server), "list", "d/")
    assert isinstance(error, StoreError)


# What is shown.


def test_error_bodies_are_shown_escaped_short_and_without_secrets(server, warm):
    nasty = "\x1b[31mred\x1b[0m [bold]x[/bold]\r\nquark-test-secret " + "long " * 500
    refuse(server, xml_error(403, "AccessDenied", nasty.replace("\x1b", "")), key=BROKEN)
    error = fails(warm, "get")
    shown = str(error) + error.hint + repr(error) + repr(error.detail)
    assert "quark-test-secret" not in shown
    assert "\r" not in shown
    assert "\n" not in str(error)
    assert len(str(error)) < 800


def test_keys_with_control_characters_are_shown_escaped(server):
    error = fails(open_at(server), "get", "d/\x1b[2J\u202e")
    assert "\x1b" not in str(error)
    assert "\u202e" not in str(error)
    assert error.detail["key"] == "d/\x1b[2J\u202e"
