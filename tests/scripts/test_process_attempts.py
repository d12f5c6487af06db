"""A shard that kills its workers is left alone after some; the rest goes on. Claims seen from elsewhere."""

import json
import sys
from pathlib import Path
from uuid import UUID

import pytest

from tests.fault_proxy import FaultProxy
from tests.scripts.test_process_shards import committed, double, start_worker
from tests.scripts.test_shard_manager import make_dataset
from tests.tools_utilities.test_claim_races import copy_dataset
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.scripts.process_shards import ProcessOptions, main, process_shards
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.shard_lease import Clock, ShardLease

POISON = """
import os, signal
def double(samples):
    if any(sample["id"] == 13 for sample in samples):
        os.kill(os.getpid(), signal.SIGKILL)
    return [{"id": sample["id"], "twice": 2 * sample["id"]} for sample in samples]
"""
QUICK = ProcessOptions(lease_seconds=0.6, batch_size=4)


@pytest.fixture
def dataset(tmp_path: Path, aws_environment, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return make_dataset(tmp_path)


class TestCount:
    """Crashes are counted in the record: by a lease that ran out, not by what was given back."""

    @pytest.fixture
    def lease(self):
        now = [0.0]
        store = MemoryStore(StoreSpec(uri="memory://crashes"))
        clock = Clock(now=lambda: now[0], sleep=lambda _: None)

        def make(owner: str) -> ShardLease:
            made = ShardLease(store, "k", owner, worker=owner, lease_seconds=8, clock=clock)
            made.look()
            now[0] += 11
            return made

        return make

    def test_every_death_in_a_row_counts(self, lease):
        for number in range(2):
            worker = lease(f"w{number}")
            assert worker.try_claim()
            assert worker.record.crashes == number
        last = lease("w2")
        assert last.try_claim()
        assert last.record.crashes == 2
        assert last.record.last_error == "w1 ended without a word (claim 2)"

    @pytest.mark.parametrize("error", [None, "ValueError: 13"])
    def test_who_can_give_it_back_has_not_crashed(self, lease, error):
        assert lease("first").try_claim()
        worker = lease("second")
        assert worker.try_claim()
        worker.release(error)

        again = lease("again")

        assert again.try_claim()
        assert (again.record.crashes, again.record.attempts) == (0, 3)

    def test_an_operator_sets_it_back(self, lease):
        for number in range(2):
            assert lease(f"w{number}").try_claim()
        assert lease("operator").reset()
        again = lease("again")
        assert again.try_claim()
        assert again.record.crashes == 0


def crashed(dataset: Path, shard: int, crashes: int, gen: int) -> None:
    """Write the record of a shard whose last worker is dead, and took `crashes` after others."""
    record = {
        "gen": gen,
        "owner": f"dead/1/{UUID(int=gen)}",
        "state": "leased",
        "seq": 3,
        "lease_seconds": 0.2,
        "worker": "dead",
        "attempts": gen,
        "crashes": crashes,
    }
    (dataset / f"shard_{shard:03d}/claim.json").write_text(json.dumps(record))


def finished(dataset: Path, shard: int, gen: int, *chunks: int) -> None:
    folder = dataset / f"out/shard_{shard:03d}/{gen}-dead_1_{UUID(int=gen)}"
    folder.mkdir(parents=True)
    for chunk in chunks:
        (folder / f"chunk_{chunk:04d}.done.json").write_text("{}")


def test_a_shard_that_killed_its_workers_is_left_alone_and_the_rest_is_done(dataset):
    crashed(dataset, 5, crashes=2, gen=3)
    finished(dataset, 5, 1, 0)
    finished(dataset, 5, 2, 0)

    summary = process_shards(str(dataset), double, options=QUICK)

    assert summary.shards == (0, 1, 2, 3, 4, 6, 7)
    assert "3 workers in a row ended without a word in shard_005/chunk_0001" in summary.failed[5]
    row = ShardManager(dataset).get_shard_status()["shards"][5]
    assert (row["status"], row["attempts"], row["crashes"]) == ("available", 4, 3)
    assert "chunk_0001" in row["last_error"]
    # Another worker comes to the same; until an operator says that it may be tried again.
    assert list(process_shards(str(dataset), double, options=QUICK).failed) == [5]
    ShardManager(dataset).reset(5)
    assert process_shards(str(dataset), double, options=QUICK).shards == (5,)
    assert sorted(row["id"] for row in committed(dataset)) == list(range(100))


def test_a_higher_limit_tries_it_again(dataset):
    crashed(dataset, 5, crashes=2, gen=3)
    options = ProcessOptions(lease_seconds=0.6, max_attempts=4)
    assert 5 in process_shards(str(dataset), double, options=options).shards
    with pytest.raises(UsageError, match="max_attempts=0"):
        process_shards(str(dataset), double, options=ProcessOptions(max_attempts=0))


def test_workers_that_die_while_their_shard_gets_on_are_not_its_fault(dataset):
    crashed(dataset, 5, crashes=4, gen=5)
    for gen in range(1, 5):
        finished(dataset, 5, gen, *range(gen))  # each finished one chunk more

    summary = process_shards(str(dataset), double, options=QUICK)

    assert summary.shards[-1] == 5
    assert not summary.failed


@pytest.mark.slow
def test_a_sample_that_kills_the_process_ends_two_workers_and_no_third(dataset, capsys):
    (dataset.parent / "poison.py").write_text(POISON)
    flags = ["--max_attempts", "2"]
    for _ in range(2):
        worker = start_worker(dataset, "poison:double", "victim", *flags)
        worker.communicate(timeout=60)
        assert worker.returncode == -9

    survivor = start_worker(dataset, "poison:double", "survivor", *flags)
    out, _ = survivor.communicate(timeout=60)

    summary = json.loads(out)
    assert survivor.returncode == 1
    assert list(summary["failed"]) == ["5"]
    status = ShardManager(dataset).get_shard_status()
    assert (status["completed"], status["available"]) == (7, 1)
    assert status["shards"][5]["crashes"] == 2


class TestElsewhere:
    """A job whose claims stand with its results."""

    def test_its_claims_are_shown_without_the_dataset(self, dataset, tmp_path):
        process_shards(str(dataset), double)
        out = tmp_path / "second"
        process_shards(str(dataset), lambda samples: samples, out=str(out))

        status = ShardManager(out).get_shard_status()

        assert (status["total"], status["completed"]) == (8, 8)
        assert [row["num_samples"] for row in status["shards"]] == [13] * 4 + [12] * 4
        with pytest.raises(UsageError, match="the claims of a job on") as caught:
            ShardManager(out).claim_shard()
        assert str(dataset) in str(caught.value)
        ShardManager(out).reset(3, force=True)
        assert ShardManager(out).get_shard_status()["available"] == 1

    def test_of_plain_files_too(self, tmp_path, aws_environment):
        folder, out = tmp_path / "plain", tmp_path / "out"
        folder.mkdir()
        for number in range(3):
            (folder / f"part-{number:05d}.jsonl").write_text('{"id": 1}\n' * number)
        process_shards(str(folder), double, out=str(out))

        status = ShardManager(out).get_shard_status()

        assert (status["total"], status["completed"], status["available"]) == (3, 3, 0)
        assert [row["attempts"] for row in status["shards"]] == [0, 1, 1]


def test_a_worker_fetches_only_its_own_shards_bytes(tmp_path, dataset, weed_endpoint, make_bucket):
    bucket = make_bucket(weed_endpoint)
    direct = open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=weed_endpoint))
    copy_dataset(dataset, direct, "d/")
    other = ShardManager(f"s3://{bucket}/d", "other", store=direct, state_dir=tmp_path / "other")
    for number in range(8):
        if number != 3:
            other.claim_shard(number)
            other.mark_completed(number)
    chunks = list(direct.list("d/shard_003/chunk_"))
    with FaultProxy(weed_endpoint) as proxy:
        summary = process_shards(
            f"s3://{bucket}/d", double, options=ProcessOptions(endpoint_url=proxy.url)
        )
        assert summary.shards == (3,)
        assert len(chunks) > 1
        assert proxy.sent_bytes(r"^d/shard_003/chunk_") == sum(c.size_bytes for c in chunks)
        assert proxy.sent_bytes(r"^d/shard_00[^3]/chunk_") == 0
        assert proxy.sent_bytes(r"^d/out/") == 0


def test_the_script_takes_the_limit(dataset, capsys):
    sys.modules.pop("poison", None)
    crashed(dataset, 5, crashes=0, gen=1)
    (dataset.parent / "fine.py").write_text("def same(samples):\n    return samples\n")
    arguments = ["--dataset_dir", str(dataset), "--function", "fine:same", "--lease", "0.6"]

    assert main([*arguments, "--max_attempts", "1"]) == 1
    assert "1 failed" in capsys.readouterr().out
    assert main([*arguments, "--max_attempts", "9"]) == 0
