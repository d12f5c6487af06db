"""Case B41 as it is written: leases of 6 s, real processes, signals and time. The short forms run in CI."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fault_proxy import FaultProxy, Where
from tests.faults import slow_down
from tests.scripts.test_shard_manager import make_dataset
from tests.tools_utilities.test_claim_races import CHECKOUT, HOLDER, copy_dataset
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.scripts.process_shards import POLL_SECONDS
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.shard_lease import Clock

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(300)]
LEASE_SECONDS = 6.0
PAUSE_SECONDS = 20.0
FUNCTION = """
import time
def slow(samples):
    with open("worked", "a") as file:
        file.write(f"{time.time()}\\n")
    time.sleep(0.1)
    return samples
"""


def start_holder(dataset: Path) -> subprocess.Popen[str]:
    """Start A: it claims shard 0 and renews it every 2 s until it is told to complete."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(dataset), str(LEASE_SECONDS), str(dataset.parent / "A")],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "holding\n"
    return process


def observer_of(dataset: Path, skew: float) -> ShardManager:
    """Return B, whose clocks are off by so many seconds."""
    return ShardManager(
        dataset,
        "B",
        lease_seconds=LEASE_SECONDS,
        state_dir=dataset.parent / "B",
        clock=Clock(now=lambda: time.monotonic() + skew),
        wall_clock=lambda: time.time() + skew,
    )


def record_of(dataset: Path) -> dict[str, object]:
    found = json.loads((dataset / "shard_000/claim.json").read_text())
    assert isinstance(found, dict)
    return found


def shown(dataset: Path) -> tuple[str, str]:
    found = json.loads((dataset / "shard_000/metadata.json").read_text())
    return found["status"], found["assigned_to"]


def wait_for_renewal(dataset: Path) -> None:
    before, deadline = record_of(dataset)["seq"], time.monotonic() + 30
    while record_of(dataset)["seq"] == before:
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("skew", [600.0, -600.0])
def test_b41_a_healthy_holder_keeps_its_shard_and_a_killed_one_is_followed(tmp_path, skew):
    dataset = make_dataset(tmp_path, samples=8, num_shards=1)
    holder, observer = start_holder(dataset), observer_of(dataset, skew)
    try:
        assert observer.claim_shard(wait_seconds=4 * LEASE_SECONDS, poll_seconds=1) is None
        assert record_of(dataset)["owner"] != observer.owner
        wait_for_renewal(dataset)

        holder.kill()
        killed = time.monotonic()
        claim = observer.claim_shard(wait_seconds=60)

        assert claim is not None
        seconds = time.monotonic() - killed
        sys.stdout.write(f"B41 skew={skew:g} takeover={seconds:.1f}s\n")
        assert 6 <= seconds <= 16
        assert shown(dataset) == ("in_use", "B")
    finally:
        holder.kill()
        holder.communicate()


def test_a_killed_worker_is_followed_by_one_that_waits(tmp_path):
    """Five workers, three shards: two wait. The bound is one poll, 1.25 leases and a round trip."""
    dataset = make_dataset(tmp_path, samples=120, num_shards=3)
    (tmp_path / "user_code.py").write_text(FUNCTION)
    program = str(CHECKOUT / "tools_utilities/scripts/process_shards.py")
    workers = [
        subprocess.Popen(
            [
                *(sys.executable, program, "--dataset_dir", str(dataset), "--worker_id", f"w{n}"),
                *("--function", "user_code:slow", "--lease", "4", "--batch_size", "1"),
            ],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(tmp_path)},
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        for n in range(5)
    ]
    try:
        deadline = time.monotonic() + 120
        while len(list(dataset.glob("shard_*/claim.json"))) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(0.5)  # those without a shard have looked, and wait
        before = record_of(dataset)
        victim = next(w for w in workers if str(w.pid) == str(before["owner"]).split("/")[1])

        victim.kill()
        killed = time.monotonic()
        while record_of(dataset)["gen"] == before["gen"]:
            assert time.monotonic() < deadline
            time.sleep(0.02)

        seconds = time.monotonic() - killed
        sys.stdout.write(f"takeover by one that waits: {seconds:.1f} s\n")
        assert before["state"] == "leased"
        assert seconds <= 1.25 * 4 + POLL_SECONDS + 2
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def test_b41_a_holder_that_slept_20_s_completes_nothing(tmp_path):
    dataset = make_dataset(tmp_path, samples=8, num_shards=1)
    holder, observer = start_holder(dataset), observer_of(dataset, 0.0)
    try:
        holder.send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        claim = observer.claim_shard(0, wait_seconds=PAUSE_SECONDS)
        assert claim is not None
        with observer.hold(claim) as hold:
            time.sleep(max(0.0, PAUSE_SECONDS - (time.monotonic() - stopped)))
            holder.send_signal(signal.SIGCONT)
            out, _ = holder.communicate("complete\n", timeout=60)

            assert (out, holder.returncode) == ("refused\n", 5)
            record = record_of(dataset)
            assert (record["owner"], record["state"], record["gen"]) == (
                observer.owner,
                "leased",
                2,
            )
            assert shown(dataset) == ("in_use", "B")
            hold.complete(output="out of B")
        assert record_of(dataset)["output"] == "out of B"
    finally:
        holder.kill()
        holder.communicate()


def test_b41_a_worker_whose_renewals_get_503_stops_within_its_lease(
    tmp_path, weed_endpoint, make_bucket, aws_environment
):
    bucket = make_bucket(weed_endpoint)
    made = make_dataset(tmp_path / "made", samples=300, num_shards=1)
    direct = open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=weed_endpoint))
    copy_dataset(made, direct, "d/")
    (tmp_path / "user_code.py").write_text(FUNCTION)
    worked = tmp_path / "worked"
    program = str(CHECKOUT / "tools_utilities/scripts/process_shards.py")
    with FaultProxy(weed_endpoint) as proxy:
        worker = subprocess.Popen(
            [
                *(sys.executable, program, "--dataset_dir", f"s3://{bucket}/d"),
                *("--function", "user_code:slow", "--endpoint_url", proxy.url),
                *("--lease", str(LEASE_SECONDS), "--batch_size", "1", "--worker_id", "A"),
            ],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            deadline = time.monotonic() + 60
            while not worked.exists() or len(worked.read_text().splitlines()) < 20:
                assert worker.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            proxy.inject(slow_down(), Where("PUT", r"claim\.json$"), times=10_000)
            begun = time.time()
            _, told = worker.communicate(timeout=120)
        finally:
            worker.kill()
            worker.communicate()
    last = float(worked.read_text().splitlines()[-1])
    sys.stdout.write(
        f"B41 renewals fail: worked for {last - begun:.1f}s, exit {worker.returncode}\n"
    )
    assert 0 < last - begun <= LEASE_SECONDS
    assert worker.returncode not in {0, -9}
    assert told.startswith("error: ") or "\nerror: " in told
    record = json.loads(b"".join(direct.get("d/shard_000/claim.json")))
    assert record["state"] == "leased"  # nobody could give it back; nothing was completed
