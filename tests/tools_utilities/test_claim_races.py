"""Claims under real races and real deaths: threads, processes, SIGKILL, SIGSTOP (B40, B41)."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, cast

import pytest

from tests.scripts.test_shard_manager import make_dataset
from tools_utilities.errors import ClaimError, StoreError
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.shard_lease import Clock

CHECKOUT = Path(__file__).resolve().parents[2]
RACERS = 16
LEASE_SECONDS = 1.2

# Sixteen workers as processes, forked from one that has the imports: for each line (a dataset) they
# meet at a barrier, claim one shard each, and say together what they got.
RACERS_PROGRAM = """
import json, multiprocessing, sys
from pathlib import Path
import boto3
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.object_store import open_store
from tools_utilities.scripts.shard_manager import ShardManager

endpoint, state, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])

def race(number, pipe, barrier):
    stores = {}
    while True:
        dataset = pipe.recv()
        spec, _ = locate_dataset(dataset, endpoint_url=endpoint or None)
        store = stores.setdefault(spec.uri, open_store(spec))
        manager = ShardManager(dataset, f"w{number}", store=store, state_dir=state / str(number))
        manager._probed = True  # the race is what counts here
        manager.manifest
        barrier.wait()
        claim = manager.claim_shard()
        pipe.send("none" if claim is None else str(claim.shard_id))

fork = multiprocessing.get_context("fork")
barrier = fork.Barrier(count)
pipes = []
for number in range(count):
    ours, theirs = fork.Pipe()
    fork.Process(target=race, args=(number, theirs, barrier), daemon=True).start()
    pipes.append(ours)
for line in sys.stdin:
    for pipe in pipes:
        pipe.send(line.strip())
    print(json.dumps([pipe.recv() for pipe in pipes]), flush=True)
"""

# A worker that holds a shard and works on it until told otherwise.
HOLDER = """
import sys, time
from pathlib import Path
from tools_utilities.errors import ClaimError
from tools_utilities.scripts.shard_manager import ShardManager
folder, lease, state = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
manager = ShardManager(folder, "A", lease_seconds=lease, state_dir=state)
claim = manager.claim_shard(0)
try:
    with manager.hold(claim) as hold:
        print("holding", flush=True)
        sys.stdin.readline()
        hold.complete(output="out of A")
    print("completed", flush=True)
except ClaimError as error:
    print("refused", flush=True)
    sys.exit(5)
"""


def check_round(store: ObjectStore, prefix: str, got: list[str], num_shards: int) -> None:
    """Every shard has one winner, everybody else got nothing, and the records say the same."""
    shards = [name for name in got if name != "none"]
    assert Counter(shards) == Counter(str(number) for number in range(num_shards))
    assert got.count("none") == len(got) - num_shards
    records = [
        json.loads(b"".join(store.get(f"{prefix}shard_{number:03d}/claim.json")))
        for number in range(num_shards)
    ]
    assert [record["state"] for record in records] == ["leased"] * num_shards
    assert len({record["worker"] for record in records}) == num_shards
    shown = [
        json.loads(b"".join(store.get(f"{prefix}shard_{number:03d}/metadata.json")))
        for number in range(num_shards)
    ]
    assert [shard["status"] for shard in shown] == ["in_use"] * num_shards
    assert [shard["assigned_to"] for shard in shown] == [record["worker"] for record in records]


def copy_dataset(source: Path, store: ObjectStore, prefix: str) -> None:
    for path in source.rglob("*.json*"):
        if "claim" not in path.name:
            store.put(f"{prefix}{path.relative_to(source)}", path.read_bytes())


def race_threads(tmp_path: Path, store: ObjectStore, dataset: str) -> list[str]:
    barrier = threading.Barrier(RACERS)

    def race(number: int) -> str:
        state = tmp_path / f"state{number}"
        manager = ShardManager(dataset, f"w{number}", store=store, state_dir=state)
        manager._probed = True
        assert manager.manifest.num_samples
        barrier.wait()
        claim = manager.claim_shard()
        return "none" if claim is None else str(claim.shard_id)

    with ThreadPoolExecutor(RACERS) as pool:
        return list(pool.map(race, range(RACERS)))


class Racers:
    """Sixteen processes that race as often as they are asked."""

    def __init__(self, endpoint: str, state: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RACERS_PROGRAM, endpoint, str(state), str(RACERS)],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # one of them may have died, and the others wait for it
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def race(self, dataset: str) -> list[str]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{dataset}\n")
        self.process.stdin.flush()
        return cast("list[str]", json.loads(self.process.stdout.readline()))


@pytest.fixture
def places(tmp_path, weed_endpoint, make_bucket, aws_environment):
    """Return `place(kind, round) -> (store, dataset, prefix)` of a new copy of one dataset."""
    source = make_dataset(tmp_path / "made", samples=16)
    bucket = make_bucket(weed_endpoint)

    def place(kind: str, number: int) -> tuple[ObjectStore, str, str]:
        if kind == "local":
            folder = tmp_path / f"copy{number}"
            store = open_store(StoreSpec(uri=f"file://{folder}"))
            dataset, prefix = str(folder), ""
        else:
            store = open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=weed_endpoint))
            dataset, prefix = f"s3://{bucket}/copy{number}", f"copy{number}/"
        copy_dataset(source, store, prefix)
        return store, dataset, prefix

    return place


def race_threads_often(
    places: Callable[..., tuple[ObjectStore, str, str]], kind: str, rounds: int, tmp_path: Path
) -> None:
    for number in range(rounds):
        store, dataset, prefix = places(kind, number)
        check_round(store, prefix, race_threads(tmp_path, store, dataset), num_shards=8)


@pytest.mark.parametrize(("kind", "rounds"), [("local", 6), ("weed", 1)])
def test_b40_sixteen_threads_race_and_each_shard_has_one_winner(tmp_path, places, kind, rounds):
    race_threads_often(places, kind, rounds, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("kind", "rounds"), [("local", 250), ("weed", 50)])
def test_b40_sixteen_threads_race_at_length(tmp_path, places, kind, rounds):
    race_threads_often(places, kind, rounds, tmp_path)


def race_processes(
    places: Callable[..., tuple[ObjectStore, str, str]],
    endpoint: str,
    kind: str,
    rounds: int,
    tmp_path: Path,
) -> None:
    with Racers(endpoint if kind == "weed" else "", tmp_path / "racers") as racers:
        for number in range(rounds):
            store, dataset, prefix = places(kind, number)
            check_round(store, prefix, racers.race(dataset), num_shards=8)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "rounds"), [("local", 12), ("weed", 2)])
def test_b40_sixteen_processes_race_and_each_shard_has_one_winner(
    tmp_path, places, weed_endpoint, kind, rounds
):
    race_processes(places, weed_endpoint, kind, rounds, tmp_path)


@pytest.mark.nightly
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("kind", "rounds"), [("local", 500), ("weed", 100)])
def test_b40_sixteen_processes_race_at_length(tmp_path, places, weed_endpoint, kind, rounds):
    race_processes(places, weed_endpoint, kind, rounds, tmp_path)


@pytest.mark.parametrize(("skew", "rate"), [(600.0, 1.0), (-600.0, 1.0), (0.0, 1.2), (0.0, 0.8)])
def test_b41_a_healthy_holder_is_never_robbed_whatever_the_clocks_say(tmp_path, skew, rate):
    now = [0.0]
    dataset = make_dataset(tmp_path, num_shards=1)
    holder = ShardManager(
        dataset, "A", lease_seconds=6, state_dir=tmp_path / "A", clock=Clock(now=lambda: now[0])
    )
    observer = ShardManager(
        dataset,
        "B",
        lease_seconds=6,
        state_dir=tmp_path / "B",
        clock=Clock(now=lambda: now[0] * rate + skew),
        wall_clock=lambda: time.time() + skew,
    )
    holder.claim_shard(0)
    for _ in range(30):
        now[0] += 2
        holder.renew(0)
        assert observer.claim_shard() is None
    beaten = now[0]

    while observer.claim_shard() is None:
        now[0] += 0.25

    assert 6 <= now[0] - beaten <= 16
    with pytest.raises(ClaimError, match="another worker holds it"):
        holder.mark_completed(0)
    shown = json.loads((dataset / "shard_000/metadata.json").read_text())
    assert shown["assigned_to"] == "B"


@pytest.fixture
def holder(tmp_path):
    """A process that holds shard 0 of a dataset and renews its lease."""
    dataset = make_dataset(tmp_path, samples=8, num_shards=1)
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(dataset), str(LEASE_SECONDS), str(tmp_path / "A")],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    yield dataset, process
    process.kill()
    process.communicate()


def observer_of(dataset: Path) -> ShardManager:
    state = dataset.parent / "B"
    return ShardManager(dataset, "B", lease_seconds=LEASE_SECONDS, state_dir=state)


def test_b41_a_killed_holder_is_followed_in_time(holder):
    dataset, process = holder
    observer = observer_of(dataset)
    assert observer.claim_shard(wait_seconds=2 * LEASE_SECONDS, poll_seconds=0.2) is None

    process.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    claim = observer.claim_shard(wait_seconds=30, poll_seconds=0.2)

    assert claim is not None
    assert claim.gen == 2
    # 1.25 lease since the last renewal was seen, one poll, and room for a slow machine.
    assert time.monotonic() - killed <= 1.25 * LEASE_SECONDS + 0.2 + 2


def test_b41_a_paused_holder_wakes_up_to_a_refusal(holder):
    dataset, process = holder
    observer = observer_of(dataset)
    process.send_signal(signal.SIGSTOP)
    assert observer.claim_shard(wait_seconds=30, poll_seconds=0.2) is not None
    observer.mark_completed(0, output="out of B")

    process.send_signal(signal.SIGCONT)
    out, _ = process.communicate("complete\n", timeout=30)

    assert (out, process.returncode) == ("refused\n", 5)
    record = json.loads((dataset / "shard_000/claim.json").read_text())
    assert (record["worker"], record["output"]) == ("B", "out of B")
    assert json.loads((dataset / "shard_000/metadata.json").read_text())["assigned_to"] == "B"


class FailingStore(MemoryStore):
    """Puts fail with 503 once told to."""

    failing = False

    def put_if_match(self, key, data, etag):
        if self.failing:
            raise StoreError(f"{key}: 503 SlowDown", status=503, transient=True)
        return super().put_if_match(key, data, etag)


def test_b41_a_holder_whose_renewals_fail_stops_within_its_lease(tmp_path):
    dataset = make_dataset(tmp_path, samples=8, num_shards=1)
    store = FailingStore(StoreSpec(uri="memory://failing"))
    copy_dataset(dataset, store, "")
    manager = ShardManager(
        "memory://failing", "A", lease_seconds=LEASE_SECONDS, store=store, state_dir=tmp_path
    )
    claim = manager.claim_shard()
    assert claim is not None
    store.failing = True
    begun = worked = time.monotonic()

    def work() -> None:
        nonlocal worked
        with manager.hold(claim) as hold:
            while time.monotonic() - begun < 10:
                hold.check()
                worked = time.monotonic()
                time.sleep(0.02)

    with pytest.raises(ClaimError, match="could not be renewed"):
        work()

    assert worked - begun <= LEASE_SECONDS
    # One more second is for a renewal that the store does not answer.
    assert time.monotonic() - begun <= LEASE_SECONDS + 2
