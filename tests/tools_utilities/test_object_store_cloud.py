"""Google Cloud Storage and Azure, against a stub that speaks enough of both."""

import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from tests.cloud_credentials import point_clouds_to
from tests.fakes import Reply, Request, StubCloud, xml_error
from tools_utilities.claim_probe import probe_conditions
from tools_utilities.errors import (
    AccessError,
    ConditionFailedError,
    DataNotFoundError,
    ObjectNotFoundError,
    ObjectReplacedError,
    StoreError,
    UsageError,
)
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store
from tools_utilities.shard_lease import Clock, ShardLease


@pytest.fixture
def server():
    with StubCloud({}) as stub:
        yield stub


@pytest.fixture(params=["gs", "az"])
def scheme(request, server, monkeypatch, tmp_path) -> str:
    """Set up the credentials of a provider, which point to the stub."""
    monkeypatch.setenv("HOME", str(tmp_path))
    point_clouds_to(server.url, tmp_path, monkeypatch)
    return str(request.param)


@pytest.fixture
def store(scheme, server) -> ObjectStore:
    return open_store(StoreSpec(uri=f"{scheme}://bucket", endpoint_url=server.url))


def test_objects_are_put_got_and_deleted(store):
    info = store.put("a/b c+%2F.bin", b"0123456789")
    assert b"".join(store.get("a/b c+%2F.bin")) == b"0123456789"
    assert store.head("a/b c+%2F.bin") == info
    assert b"".join(store.get("a/b c+%2F.bin", start=2, end=5)) == b"234"
    assert b"".join(store.get("a/b c+%2F.bin", start=8, end=99)) == b"89"
    assert b"".join(store.get("a/b c+%2F.bin", start=10)) == b""
    assert b"".join(store.get("a/b c+%2F.bin", if_etag=info.etag)) == b"0123456789"
    store.delete("a/b c+%2F.bin")
    store.delete("a/b c+%2F.bin")
    with pytest.raises(ObjectNotFoundError):
        store.get("a/b c+%2F.bin")


def test_conditions_hold(store):
    first = store.put_if_absent("k", b"one")
    with pytest.raises(ConditionFailedError):
        store.put_if_absent("k", b"two")
    second = store.put_if_match("k", b"two", str(first.etag))
    with pytest.raises(ConditionFailedError):
        store.put_if_match("k", b"three", str(first.etag))
    with pytest.raises(ConditionFailedError):
        store.put_if_match("missing", b"three", str(first.etag))
    with pytest.raises(ObjectReplacedError):
        store.get("k", if_etag=first.etag)
    assert b"".join(store.get("k", if_etag=second.etag)) == b"two"


def test_google_compares_the_generation_at_the_write(store, server, scheme):
    if scheme == "az":
        return  # Azure compares etags alone, see above
    etag = str(store.put("k", b"one").etag)

    def meanwhile(request: Request) -> Reply | None:
        if request.method == "PUT" and "x-goog-if-generation-match" in request.headers:
            server.script = None
            store.put("k", b"somebody else")
        return None

    server.script = meanwhile
    with pytest.raises(ConditionFailedError):
        store.put_if_match("k", b"two", etag)
    assert b"".join(store.get("k")) == b"somebody else"


def test_google_is_asked_for_no_generation_that_was_read_or_written_here(store, server, scheme):
    if scheme == "az":
        return  # etags alone
    etag = str(store.put_if_absent("k", b"one").etag)
    etag = str(store.put_if_match("k", b"two", etag).etag)
    other = open_store(store.spec)
    body = other.get("k")
    assert b"".join(body) == b"two"
    other.put_if_match("k", b"three", str(body.info.etag))

    assert server.sent("HEAD") == []
    sent = [request.headers["x-goog-if-generation-match"] for request in server.sent("PUT", "k")]
    assert sent == ["0", "1", "2"]
    # The content came back, the generation did not: the version that was read is stale.
    store.put("k", b"two")
    with pytest.raises(ConditionFailedError):
        other.put_if_match("k", b"four", etag)


def test_a_store_that_keeps_its_conditions_may_hold_claims(store):
    probe_conditions(store, "data/", uuid4())
    assert list(store.list("data/")) == []


@pytest.mark.parametrize("ignored", ["create", "replace"])
def test_a_store_that_ignores_conditions_is_refused_at_start(store, server, ignored):
    server.ignores = frozenset({ignored})
    with pytest.raises(UsageError, match="cannot hold claims"):
        probe_conditions(store, "data/", uuid4())


def test_claims_are_made_taken_over_and_completed(store):
    now = [0.0]

    def lease(owner: str) -> ShardLease:
        clock = Clock(now=lambda: now[0], sleep=lambda _: None)
        return ShardLease(store, "d/shard_000/claim.json", owner, lease_seconds=10, clock=clock)

    first, second = lease("h/1/a"), lease("h/2/b")
    assert first.try_claim()
    assert not second.try_claim()
    now[0] = 5.0
    assert first.renew()
    assert not second.try_claim()
    now[0] = 18.0
    assert second.try_claim()
    assert not first.complete(output="stale")
    assert second.complete(output="out")
    record = lease("h/3/c").look()
    assert record is not None
    assert (record.gen, record.owner, record.output) == (2, "h/2/b", "out")


def test_of_16_claimants_one_wins(store):
    leases = [ShardLease(store, "claim.json", f"h/{n}/x") for n in range(16)]
    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(lambda lease: lease.try_claim(), leases))
    assert won.count(True) == 1


def test_listing_is_literal_ordered_and_knows_markers(store, server, scheme):
    names = ["d/train-1", "d/train-2", "d/train.x", "d/train/1", "d/training", "d-", "e/f/g"]
    server.objects.update(dict.fromkeys(names, b"1") | {"d/": b"", "d/train/": b"", "d/none": b""})
    everything = sorted(server.objects)
    assert [info.key for info in store.list("")] == everything
    for prefix in ("d/train-", "d/train", "d/train/", "d/", "d", "nothing", "e/f/g"):
        # Azure's client leaves out the marker of the very folder that is listed.
        own = {prefix} if scheme == "az" else set()
        expected = [name for name in everything if name.startswith(prefix) and name not in own]
        if prefix == "e/f/g":
            expected = ["e/f/g"]
        assert [info.key for info in store.list(prefix)] == expected
    later = [info.key for info in store.list("d/", start_after="d/train-2")]
    assert later == ["d/train.x", "d/train/", "d/train/1", "d/training"]
    [page] = store.list_folder("d/")
    assert page.prefixes == ("d/train/",)
    assert {info.key for info in page.objects} >= {"d/train-1", "d/train-2", "d/training", "d/none"}


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (xml_error(403, "AccessDenied", "no"), AccessError),
        (xml_error(401, "Unauthenticated", "who"), AccessError),
        (xml_error(404, "NoSuchBucket", "none"), DataNotFoundError),
        (xml_error(503, "ServerBusy", "later"), StoreError),
    ],
)
def test_refusals_are_told_apart(store, server, reply, kind):
    server.script = lambda _: reply
    for ask in (
        lambda: list(store.list("d/")),
        lambda: store.get("k"),
        lambda: store.put("k", b"1"),
    ):
        with pytest.raises(kind) as caught:
            ask()
        assert bool(caught.value.detail.get("transient")) == (kind is StoreError)
        assert "s3:" not in str(caught.value) + caught.value.hint
    assert len(server.requests) == 3


@pytest.mark.parametrize("key", ["a//b", "a/../b", "t\tb", "a/"])
def test_keys_that_cannot_be_carried_are_refused_by_name(store, key):
    for act in (store.get, store.head, lambda key: store.put(key, b"1")):
        with pytest.raises(UsageError, match="cannot be used"):
            act(key)


def test_a_container_without_account_is_a_usage_error(server, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UsageError) as caught:
        open_store(StoreSpec(uri="az://container", endpoint_url=server.url)).head("k")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in caught.value.hint


def test_anonymous_reading(server):
    server.objects["k"] = b"open"
    store = open_store(StoreSpec(uri="gs://bucket", endpoint_url=server.url, anonymous=True))
    assert b"".join(store.get("k")) == b"open"
    assert "authorization" not in server.requests[-1].headers
    assert not store.writable


FORK_SCRIPT = """
import multiprocessing, sys
from tools_utilities.errors import StoreError
from tools_utilities.object_store import StoreSpec, open_store

store = open_store(StoreSpec(uri="gs://bucket", endpoint_url=sys.argv[1], anonymous=True))

def child(results):
    try:
        store.get("k")
    except StoreError as error:
        results.put(error.hint)

assert b"".join(store.get("k")) == b"open"
context = multiprocessing.get_context("fork")
results = context.Queue()
process = context.Process(target=child, args=(results,))
process.start()
print(results.get(timeout=30))
process.join()
"""


def test_a_forked_process_is_refused_instead_of_hanging(server, tmp_path):
    server.objects["k"] = b"open"
    script = tmp_path / "fork.py"
    script.write_text(textwrap.dedent(FORK_SCRIPT))
    start = time.monotonic()
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(script), server.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "forkserver" in done.stdout, done.stderr
    assert time.monotonic() - start < 30


@pytest.mark.parametrize(
    ("uri", "endpoint", "refused"),
    [
        ("gs://bucket", "https://storage.example.org", True),
        ("gs://bucket", "https://googleapis.com.example.org", True),
        ("gs://bucket", "https://notgoogleapis.com", True),
        ("gs://bucket", "http://storage.googleapis.com", True),
        ("gs://bucket", "https://storage-x.p.googleapis.com", False),
        ("az://container", "https://core.windows.net.example.org", True),
        ("az://container", "http://x.blob.core.windows.net", True),
        ("az://container", "https://x.blob.core.windows.net", False),
    ],
)
def test_a_token_is_sent_to_its_provider_alone(uri, endpoint, refused, tmp_path, monkeypatch):
    """The endpoint may stand in a quark.yaml or a job of somebody else."""
    monkeypatch.setenv("HOME", str(tmp_path))
    point_clouds_to("http://127.0.0.1:9", tmp_path, monkeypatch)
    for name in ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AZURE_STORAGE_TOKEN", "a-token")
    store: Any = open_store(StoreSpec(uri=uri, endpoint_url=endpoint))
    if refused:
        with pytest.raises(AccessError, match=r"a token of .* is not sent to"):
            store.head("k")
        store = open_store(StoreSpec(uri=uri, endpoint_url=endpoint, anonymous=True))
    store._open()  # nothing is sent by that


def test_a_key_that_signs_may_be_used_anywhere(tmp_path, monkeypatch):
    point_clouds_to("http://127.0.0.1:9", tmp_path, monkeypatch)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5a2V5a2V5a2V5")
    store: Any = open_store(StoreSpec(uri="az://container", endpoint_url="http://azurite:10000"))
    store._open()
