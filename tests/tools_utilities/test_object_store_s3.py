"""S3: endpoints, credentials, forks, and which client carries what."""

import json
import pickle
import subprocess
import sys
import textwrap
import time
from datetime import UTC, datetime, timedelta
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import servers
from tests.fakes import Reply, Request, StubS3, xml_error
from tools_utilities.errors import AccessError, UsageError
from tools_utilities.object_store import ObjectInfo, ObjectStore, StoreSpec, open_store
from tools_utilities.object_stores._s3_listing import in_byte_order, passed_over

pytestmark = pytest.mark.usefixtures("aws_environment")


@pytest.fixture
def server():
    with StubS3({"d/k": b"body", "d/empty": b"", "top": b"1"}) as stub:
        yield stub


def open_at(server: StubS3, **options) -> ObjectStore:
    return open_store(StoreSpec(uri="s3://my.bucket", endpoint_url=server.url, **options))


def read(store: ObjectStore, key: str = "d/k") -> bytes:
    return b"".join(store.get(key))


def signed_with(request: Request) -> str:
    return request.headers.get("authorization", "").partition("Credential=")[2].partition("/")[0]


# Endpoints.


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_the_environments_endpoint_is_used(server, aws_environment, name):
    aws_environment.setenv(name, server.url)
    store = open_store(StoreSpec(uri="s3://my.bucket"))
    assert store.endpoint_id == f"s3://my.bucket@127.0.0.1:{server.port}"
    for _ in range(2):
        assert read(store) == b"body"
    assert [info.key for info in store.list("d/")] == ["d/empty", "d/k"]
    assert all(request.path.startswith("/my.bucket") for request in server.requests)


def test_a_profiles_endpoint_region_and_keys_are_used(server, aws_environment, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        aws_environment.delenv(name)
    (tmp_path / "home/.aws").mkdir()
    (tmp_path / "home/.aws/config").write_text(
        "[profile other]\naws_access_key_id = PROFILEKEY\naws_secret_access_key = profile-secret\n"
        f"region = eu-north-1\nendpoint_url = {server.url}\n"
    )
    store = open_store(StoreSpec(uri="s3://my.bucket", profile="other"))
    for _ in range(2):
        assert read(store) == b"body"
    for request in server.requests:
        assert signed_with(request) == "PROFILEKEY"
        assert "/eu-north-1/s3/" in request.headers["authorization"]


def test_a_store_without_endpoint_is_amazons():
    assert open_store(StoreSpec(uri="s3://b")).endpoint_id == "s3://b"


def test_r2_needs_an_endpoint(server, aws_environment):
    with pytest.raises(UsageError) as caught:
        open_store(StoreSpec(uri="r2://bucket"))
    assert "endpoint" in str(caught.value)
    assert "r2.cloudflarestorage.com" in caught.value.hint
    aws_environment.setenv("AWS_ENDPOINT_URL_S3", server.url)
    assert read(open_store(StoreSpec(uri="r2://bucket"))) == b"body"
    assert read(open_store(StoreSpec(uri="r2://bucket", endpoint_url=server.url))) == b"body"


@pytest.mark.parametrize("uri", ["s3://", "s3://bucket/path", "s3://bucket/"])
def test_a_bucket_has_no_path(uri):
    with pytest.raises(UsageError):
        open_store(StoreSpec(uri=uri))


def test_an_endpoint_may_not_hold_a_password():
    with pytest.raises(UsageError) as caught:
        open_store(StoreSpec(uri="s3://b", endpoint_url="http://me:hunter2@127.0.0.1:1"))
    assert "hunter2" not in str(caught.value)


def test_a_bad_bucket_name_is_a_usage_error(server):
    with pytest.raises(UsageError):
        open_store(StoreSpec(uri="s3://no spaces", endpoint_url=server.url)).head("k")


# Credentials.


def test_anonymous_requests_are_not_signed(server):
    store = open_at(server, anonymous=True)
    for _ in range(2):
        assert read(store) == b"body"
    list(store.list("d/"))
    assert not any("authorization" in request.headers for request in server.requests)


def test_requester_pays_is_said_by_both_clients(server):
    store = open_at(server, requester_pays=True)
    for _ in range(2):
        assert read(store) == b"body"
    store.head("d/k")
    list(store.list("d/"))
    payers = [request.headers.get("x-amz-request-payer") for request in server.requests]
    assert payers
    assert set(payers) == {"requester"}


@pytest.mark.parametrize(
    "action", [read, lambda store: list(store.list("")), lambda s: s.head("k")]
)
def test_without_credentials_the_next_step_is_told(server, aws_environment, action):
    aws_environment.delenv("AWS_ACCESS_KEY_ID")
    aws_environment.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(AccessError) as caught:
        action(open_at(server))
    assert "no credentials" in str(caught.value)
    assert "aws sso login" in caught.value.hint
    assert server.requests == []


def test_an_unknown_profile_is_named(server):
    with pytest.raises(AccessError) as caught:
        read(open_at(server, profile="nobody"))
    assert "nobody" in str(caught.value)


class Issuer:
    """A credential process of a profile, and a server that knows which key is good."""

    def __init__(self, folder, aws_environment) -> None:
        self.answer = folder / "answer.json"
        self.good = "KEY-A"
        config = folder / "config"
        config.write_text(
            f"[profile p]\nregion = us-east-1\ncredential_process = cat {self.answer}\n"
        )
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            aws_environment.delenv(name)
        aws_environment.setenv("AWS_CONFIG_FILE", str(config))

    def issue(self, key: str, *, lasts_seconds: float = 3600) -> None:
        expiry = datetime.now(UTC) + timedelta(seconds=lasts_seconds)
        self.answer.write_text(
            json.dumps(
                {
                    "Version": 1,
                    "AccessKeyId": key,
                    "SecretAccessKey": f"secret-of-{key}",
                    "SessionToken": f"token-of-{key}",
                    "Expiration": expiry.isoformat(),
                }
            )
        )

    def check(self, request: Request) -> Reply | None:
        if signed_with(request) == self.good:
            return None
        if request.method == "HEAD":
            return Reply(400)
        return xml_error(400, "ExpiredToken", "The provided token has expired.")


@pytest.fixture
def issuer(server, tmp_path, aws_environment):
    found = Issuer(tmp_path, aws_environment)
    server.script = found.check
    return found


def test_expired_credentials_are_read_anew_once(server, issuer):
    """B20: the keys are never frozen into a client."""
    issuer.issue("KEY-A")
    store = open_at(server, profile="p")
    for _ in range(2):
        assert read(store) == b"body"
    issuer.good = "KEY-B"
    issuer.issue("KEY-B")
    server.requests.clear()
    assert read(store) == b"body"
    assert [signed_with(request) for request in server.requests] == ["KEY-A", "KEY-B"]
    assert server.requests[-1].headers["x-amz-security-token"] == "token-of-KEY-B"
    issuer.good = "KEY-C"
    issuer.issue("KEY-C")
    assert store.head("d/k").size_bytes == 4
    assert read(store) == b"body"
    issuer.good = "KEY-D"
    issuer.issue("KEY-D")
    assert len(list(store.list("d/"))) == 2


def test_credentials_near_their_end_are_fetched_again_without_a_refusal(server, issuer):
    issuer.issue("KEY-A", lasts_seconds=2)
    store = open_at(server, profile="p")
    for _ in range(2):
        assert read(store) == b"body"
    issuer.good = "KEY-B"
    issuer.issue("KEY-B")
    time.sleep(2.1)
    server.requests.clear()
    assert read(store) == b"body"
    assert [signed_with(request) for request in server.requests] == ["KEY-B"]


@pytest.mark.parametrize("action", [read, lambda s: s.head("d/k"), lambda s: list(s.list("d/"))])
def test_credentials_that_stay_expired_are_told_as_such(server, issuer, action):
    issuer.issue("KEY-A")
    store = open_at(server, profile="p")
    for _ in range(2):
        assert read(store) == b"body"
    issuer.good = "nobody"
    server.requests.clear()
    with pytest.raises(AccessError) as caught:
        action(store)
    shown = str(caught.value) + caught.value.hint + repr(caught.value.detail)
    assert "expired" in str(caught.value)
    assert "bad request" not in shown.lower()
    assert "secret-of" not in shown
    assert "token-of" not in shown
    assert len(server.requests) <= 4  # boto3 asks the bucket about a silent HEAD


def test_a_failing_credential_process_is_no_connection_trouble(server, issuer):
    issuer.issue("KEY-A", lasts_seconds=3)
    store = open_at(server, profile="p")
    for _ in range(2):
        assert read(store) == b"body"
    issuer.answer.unlink()
    time.sleep(3.1)
    with pytest.raises(AccessError) as caught:
        read(store)
    assert "credentials" in str(caught.value)
    assert not caught.value.detail.get("transient")


@pytest.mark.parametrize("used_before", [False, True])
def test_a_credential_process_that_gives_expired_keys_is_named(server, issuer, used_before):
    issuer.issue("KEY-A", lasts_seconds=3600 if used_before else -60)
    store = open_at(server, profile="p")
    if used_before:
        for _ in range(2):
            assert read(store) == b"body"
        issuer.issue("KEY-B", lasts_seconds=-60)
        server.script = lambda request: xml_error(400, "ExpiredToken", "It has.")
    with pytest.raises(AccessError, match="expired") as caught:
        read(store)
    assert not caught.value.detail.get("transient")


def test_specs_and_stores_show_no_secret(server):
    store = open_at(server)
    for _ in range(2):
        read(store)
    shown = repr(store) + repr(store.spec) + repr(pickle.dumps(store.spec)) + store.endpoint_id
    assert servers.SECRET_KEY not in shown
    assert servers.ACCESS_KEY not in shown


# Who carries what.


def carriers(server: StubS3) -> list[str]:
    return [
        "obstore" if request.headers["user-agent"].startswith("object_store") else "boto3"
        for request in server.requests
    ]


def test_bodies_go_through_obstore_once_boto3_had_an_answer(server):
    store = open_at(server)
    for _ in range(3):
        read(store)
    assert carriers(server) == ["boto3", "obstore", "obstore"]


def test_a_listing_needs_no_answer_from_boto3_and_is_one_itself(server):
    store = open_at(server)
    assert [info.key for info in store.list("t")] == ["top"]
    read(store)
    assert set(carriers(server)) == {"obstore"}


def test_behind_a_proxy_boto3_lists_first(server, monkeypatch):
    # There obstore could be sent to another host, our token with it.
    monkeypatch.setenv("http_proxy", server.url)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    store = open_at(server)
    assert len(list(store.list("t"))) == 1
    assert carriers(server)[0] == "boto3"


def test_a_missing_object_is_an_answer_too(server):
    store = open_at(server)
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            store.get("gone")
    assert carriers(server)[-1] == "obstore"


def test_long_listings_go_through_obstore_and_odd_keys_through_boto3():
    keys = {f"d/{number:05}": b"x" for number in range(5000)}
    with StubS3({**keys, "d/02500/": b"", "d/03100\t": b"x"}) as server:
        store = open_at(server)
        found = [info.key for info in store.list("d/")]
        assert found == sorted([*keys, "d/02500/", "d/03100\t"])
        used = carriers(server)
        assert used[0] == "obstore"
        assert used.count("obstore") >= 2
        assert "boto3" in used
        server.requests.clear()
        part = [info.key for info in store.list("d/01")]
        assert part == [f"d/{number:05}" for number in range(1000, 2000)]
        assert set(carriers(server)) == {"obstore"}


FORK_SCRIPT = """
import multiprocessing, sys
from tools_utilities.object_store import StoreSpec, open_store

spec = StoreSpec(uri="s3://my.bucket", endpoint_url=sys.argv[1])
store = open_store(spec)

def child(results, kept):
    if kept:
        target = store
    else:
        target = open_store(spec)
    for _ in range(2):
        assert b"".join(target.get("d/k")) == b"body"
    assert [info.key for info in target.list("d/")] == ["d/empty", "d/k"]
    results.put("done")

def main():
    for _ in range(2):
        assert b"".join(store.get("d/k")) == b"body"
    context = multiprocessing.get_context(sys.argv[2])
    for kept in (True, False):
        results = context.Queue()
        process = context.Process(target=child, args=(results, kept))
        process.start()
        assert results.get(timeout=60) == "done"
        process.join()
    assert b"".join(store.get("d/k")) == b"body"

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_forked_child_of_a_process_that_used_obstore_works(server, tmp_path, method):
    script = tmp_path / "forks.py"
    script.write_text(textwrap.dedent(FORK_SCRIPT))
    # Newer Pythons warn of forking with threads around, which is the point here.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script), server.url, method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    used = carriers(server)
    assert used[1] == used[-1] == "obstore"
    children = used[2:-1]
    assert ("obstore" in children) == (method == "forkserver")


# Stores that list folder by folder.

KEYS = st.lists(st.text("ab-./0é", min_size=1, max_size=7), unique=True, max_size=25)


def by_folder(keys: list[str]) -> list[str]:
    return sorted(keys, key=lambda key: key.split("/"))


@given(KEYS, st.sampled_from(["", "a", "a/"]), st.integers(1, 4), st.booleans())
def test_any_listing_is_put_into_byte_order(keys, prefix, hold_keys, folder_wise):
    there = [key for key in keys if key.startswith(prefix)]
    listed = by_folder(there) if folder_wise else sorted(there)

    def has_neighbours(stem: str) -> bool:
        return any(key.startswith(stem) and "" < key[len(stem) :][:1] < "/" for key in keys)

    infos = [ObjectInfo(key=key, size_bytes=1) for key in listed]
    ordered = in_byte_order(infos, prefix, has_neighbours, hold_keys=hold_keys)
    assert [info.key for info in ordered] == sorted(there)


# A store of folders has no empty names.
PATHS = st.lists(st.text("ab-.0é", min_size=1, max_size=3), min_size=1, max_size=3).map("/".join)


@given(
    st.lists(PATHS, unique=True, max_size=25),
    st.text("ab-./0é", min_size=1, max_size=7),
    st.sampled_from(["", "a", "a/"]),
)
def test_nothing_is_lost_after_a_start(keys, after, prefix):
    # SeaweedFS compares part by part, and skips the folder whose name is the start.
    start = after.rstrip("/").split("/") if after.strip("/") else [""]
    main = {
        key
        for key in keys
        if (not start[0] and len(start) == 1)
        or (key.split("/") > start and key.split("/")[: len(start)] != start)
    }
    beside = {
        key for key in keys for folder in passed_over(after, prefix) if key.startswith(folder)
    }
    wanted = {key for key in keys if key > after and key.startswith(prefix)}
    assert wanted <= main | beside


def test_the_first_keys_of_a_large_bucket_cost_few_requests():
    keys = {f"d/train/{number:05}": b"x" for number in range(9000)}
    with StubS3(keys) as server:
        store = open_at(server)
        found = [info.key for info in islice(store.list("d/"), 3)]
        assert found == ["d/train/00000", "d/train/00001", "d/train/00002"]
        assert len(server.requests) <= 5
