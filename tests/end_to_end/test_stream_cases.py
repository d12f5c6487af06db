"""Streaming cases from the field, as their outcome is told: B17, B19, B35 (tests/cases/cases.md)."""

import json
import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.stream_data import ids, memory_manager, shard
from tests.fakes import Reply, Request, StubS3
from tests.stream_parts import QUICK, stub_manager
from tools_utilities.errors import StoreError

CHECKOUT = Path(__file__).resolve().parents[2]
BROKEN = "d/shard_00002.jsonl"
SHARDS = {
    f"d/shard_{number:05d}.jsonl": shard(range(1000 * number, 1000 * number + 1000))
    for number in range(4)
}
# Half of it must fill more than a client's first read.
SHARDS[BROKEN] += b'{"id": 0, "text": "%s"}\n' % (b"x" * 4_000_000)


def resets(stub: StubS3, times: int) -> None:
    """Send half of what is asked for of one shard and reset the connection, so many times."""

    def script(request: Request) -> Reply | None:
        if request.method != "GET" or request.key != BROKEN:
            return None
        if len(stub.sent("GET", BROKEN)) > times:
            return None
        reply = stub._object(request)
        half = len(reply.body) // 2
        return Reply(reply.status, reply.headers, reply.body, send_bytes=half, then="reset")

    stub.script = script


def sequence(stub: StubS3, cache: Path) -> list[int]:
    return ids(StreamDataset(stub_manager(stub, cache), "d/", rank=0, world_size=1))


def test_b17_two_resets_in_a_body_change_no_sample_and_cost_two_requests(aws_environment, tmp_path):
    with StubS3(SHARDS) as stub:
        expected = sequence(stub, tmp_path / "a")
        stub.requests.clear()
        resets(stub, 2)
        assert sequence(stub, tmp_path / "b") == expected
        assert len(stub.sent("GET", BROKEN)) == 3


def test_b17_a_body_that_never_comes_whole_ends_with_key_attempts_and_bytes(
    aws_environment, tmp_path
):
    with StubS3(SHARDS) as stub:
        resets(stub, 99)
        with pytest.raises(StoreError) as caught:
            sequence(stub, tmp_path)
        error = caught.value
        assert error.exit_code == 1
        assert BROKEN in str(error)
        assert f"{QUICK.max_attempts} attempts" in str(error)
        assert error.detail["key"] == BROKEN
        assert error.detail["attempts"] == QUICK.max_attempts
        assert 0 < error.detail["received_bytes"] < error.detail["expected_bytes"]
        assert error.detail["expected_bytes"] == len(SHARDS[BROKEN])


WATCHED = """
import json, sys
seen = []
def watch(event, arguments):
    if event == "socket.connect":
        seen.append(str(arguments[1][0]))
    elif event in {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}:
        seen.append(str(arguments[0]))
sys.addaudithook(watch)
from tools_utilities.errors import AccessError
from tools_utilities.object_store import StoreSpec, open_store
store = open_store(StoreSpec(uri="s3://my.bucket", endpoint_url=sys.argv[1]))
told = set()
for act in (lambda: list(store.list("d/")), *[lambda: b"".join(store.get(sys.argv[2]))] * 3):
    try:
        act()
    except AccessError as error:
        told.add(f"{error.exit_code} {error}")
print(json.dumps({"seen": sorted(set(seen)), "told": sorted(told)}))
"""


def hosts_asked(stub: StubS3) -> dict[str, list[str]]:
    """Return every host that a process looks up or connects to, and what it is told."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, stub.url, BROKEN],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("redirects", [True, False])
def test_b19_no_other_host_is_looked_up_or_connected_to(aws_environment, redirects):
    def moved(request: Request) -> Reply:
        headers = {"x-amz-bucket-region": "eu-west-1", "content-type": "application/xml"}
        away = "<Endpoint>my.bucket.s3.eu-west-1.amazonaws.com</Endpoint>"
        body = f"<Error><Code>PermanentRedirect</Code>{away}</Error>"
        return Reply(301, headers, body.encode())

    with StubS3(SHARDS, moved if redirects else None) as stub:
        found = hosts_asked(stub)
        # One of the two clients is not Python's: the host of what it asks is seen at the server.
        assert set(found["seen"]) <= {"127.0.0.1"}
        assert all(request.path.startswith("/my.bucket") for request in stub.requests)
        hosts = {request.headers["host"] for request in stub.requests}
        assert hosts == {f"127.0.0.1:{stub.port}"}
    for words in ("4 ", "us-east-1", "eu-west-1"):
        assert all(words in told for told in found["told"])
    assert bool(found["told"]) == redirects


def test_b35_every_epoch_has_an_order_of_its_own_and_a_rank_may_keep_its_files():
    manager = memory_manager([10] * 8)

    def epochs(**settings: object) -> list[list[int]]:
        given = {"rank": 0, "world_size": 1, "seed": 42, **settings}
        stream = StreamDataset(manager, "data/x/", **given)  # type: ignore[arg-type] # of a test
        return [ids(stream) for _ in range(3)]

    alone = epochs()
    assert all(one != other for one, other in combinations(alone, 2))
    assert all(sorted(order) == list(range(80)) for order in alone)
    assert epochs() == alone
    fresh = StreamDataset(manager, "data/x/", rank=0, world_size=1, seed=42)
    fresh.set_epoch(1)
    assert ids(fresh) == alone[1]
    for settings in ({}, {"partition": "files"}):
        ranks = [epochs(rank=rank, world_size=2, **settings) for rank in range(2)]
        for one, other in zip(*ranks, strict=True):
            assert sorted(one + other) == list(range(80))
        if settings:
            files = [[{number // 10 for number in order} for order in rank] for rank in ranks]
            assert all(kept == rank[0] for rank in files for kept in rank)
            assert files[0][0].isdisjoint(files[1][0])
            assert all(one != other for rank in ranks for one, other in combinations(rank, 2))
