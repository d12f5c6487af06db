"""A function over every sample by claims: everything once, whoever dies, in the claim's own folder."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.scripts.test_shard_manager import make_dataset
from tools_utilities.errors import DataError, UsageError
from tools_utilities.scripts.process_shards import ProcessOptions, main, process_shards
from tools_utilities.scripts.shard_manager import ShardManager

CHECKOUT = Path(__file__).resolve().parents[2]

FUNCTION = """
import time
def double(samples):
    return [{"id": sample["id"], "twice": 2 * sample["id"]} for sample in samples]
def slow(samples):
    time.sleep(0.15)
    return double(samples)
def boom(samples):
    if any(sample["id"] == 13 for sample in samples):
        raise ValueError("boom 13")
    return double(samples)
"""


def double(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": sample["id"], "twice": 2 * sample["id"]} for sample in samples]


@pytest.fixture
def dataset(tmp_path: Path, aws_environment, monkeypatch) -> Path:
    (tmp_path / "user_code.py").write_text(FUNCTION)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "user_code", raising=False)
    return make_dataset(tmp_path)


def committed(dataset: Path) -> list[Any]:
    """Return every row in the outputs of completed records, and nothing else."""
    rows: list[Any] = []
    for path in sorted(dataset.glob("shard_*/claim.json")):
        record = json.loads(path.read_text())
        assert record["state"] == "done"
        files = sorted(Path(record["output"].removeprefix("file://")).glob("*.jsonl"))
        shard = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        assert len(shard) == record["num_samples"]
        rows += shard
    return rows


def start_worker(dataset: Path, function: str, name: str) -> subprocess.Popen[str]:
    program = str(CHECKOUT / "tools_utilities/scripts/process_shards.py")
    return subprocess.Popen(
        [
            *(sys.executable, program, "--dataset_dir", str(dataset), "--worker_id", name),
            *("--function", function, "--lease", "1.2", "--batch_size", "4", "--json"),
        ],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        cwd=dataset.parent,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_every_sample_is_worked_once_and_in_order(dataset):
    summary = process_shards(str(dataset), double, options=ProcessOptions(batch_size=3))

    rows = committed(dataset)
    assert sorted(row["id"] for row in rows) == list(range(100))
    assert all(row["twice"] == 2 * row["id"] for row in rows)
    assert [row["id"] for row in rows[:3]] == [0, 8, 16]
    assert (summary.shards, summary.num_samples) == (tuple(range(8)), 100)
    status = ShardManager(dataset).get_shard_status()
    assert status["completed"] == 8
    assert "progress" not in json.loads((dataset / "shard_000/metadata.json").read_text())


def test_outputs_lie_in_the_fenced_folder(dataset):
    process_shards(str(dataset), double, out=str(dataset.parent / "elsewhere"))

    record = json.loads((dataset / "shard_005/claim.json").read_text())
    owner = record["owner"].replace("/", "_")
    folder = dataset.parent / f"elsewhere/shard_005/1-{owner}"
    assert record["output"] == f"file://{dataset.parent}/elsewhere/shard_005/1-{owner}/"
    assert (folder / "chunk_0000.jsonl").is_file()


def test_batches_have_the_size_asked_for_and_arrays_become_lists(dataset):
    sizes = []

    def embed(samples: list[dict[str, Any]]) -> list[Any]:
        sizes.append(len(samples))
        return [np.full(2, sample["id"], np.float32) for sample in samples]

    process_shards(str(dataset), embed, options=ProcessOptions(batch_size=2))

    assert max(sizes) == 2
    assert sum(sizes) == 100
    assert [float(n) for n in range(100)] == sorted(row[0] for row in committed(dataset))


def test_the_script_runs_a_named_function(dataset, capsys):
    code = main(["--dataset_dir", str(dataset), "--function", "user_code:double"])

    assert (code, capsys.readouterr().out) == (0, "100 samples in 8 shards\n")
    again = main(["--dataset_dir", str(dataset), "--function", "user_code:double"])
    assert (again, capsys.readouterr().out) == (0, "0 samples in 0 shards\n")


@pytest.mark.parametrize("name", ["user_code", "user_code:none", "nowhere.at:all", ":f"])
def test_a_function_that_is_not_there_is_a_usage_error(dataset, name):
    with pytest.raises(UsageError, match=name):
        process_shards(str(dataset), name)
    assert not list(dataset.glob("*/claim.json"))


def test_a_failing_function_frees_its_shard_with_the_reason_and_the_rest_goes_on(dataset, capsys):
    code = main(["--dataset_dir", str(dataset), "--function", "user_code:boom", "--json"])

    summary = json.loads(capsys.readouterr().out)
    row = ShardManager(dataset).get_shard_status()["shards"][5]
    assert code == 1
    assert len(summary["shards"]) == 7
    assert "boom 13" in summary["failed"]["5"]
    assert "chunk_0000" in summary["failed"]["5"]
    assert (row["status"], row["attempts"]) == ("available", 1)
    assert "boom 13" in row["last_error"]
    assert main(["--dataset_dir", str(dataset), "--function", "user_code:double"]) == 0
    assert len(committed(dataset)) == 100


def test_too_few_results_are_an_error_not_a_shorter_output(dataset):
    summary = process_shards(str(dataset), lambda samples: samples[1:])

    assert len(summary.failed) == 8
    assert "for" in summary.failed[0]


def test_a_damaged_chunk_is_never_worked(dataset):
    path = next(dataset.glob("shard_000/chunk_0000*"))
    path.write_bytes(path.read_bytes()[:-1])

    with pytest.raises(DataError, match="the manifest says"):
        process_shards(str(dataset), double)


@pytest.mark.slow
def test_a_killed_worker_is_followed_and_at_most_one_chunk_is_worked_twice(dataset):
    worker = start_worker(dataset, "user_code:slow", "killed")
    deadline = time.monotonic() + 30
    while not list(dataset.glob("out/shard_000/1-*/chunk_0001.done.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    worker.send_signal(signal.SIGKILL)
    worker.communicate()
    done = len(list(dataset.glob("out/shard_000/1-*/*.done.json")))
    seen: Counter[int] = Counter()

    def count(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        seen.update(sample["id"] for sample in samples)
        return double(samples)

    count.__module__, count.__qualname__ = "user_code", "slow"
    summary = process_shards(
        str(dataset), count, options=ProcessOptions(lease_seconds=1.2, batch_size=4)
    )

    rows = committed(dataset)
    assert sorted(row["id"] for row in rows) == list(range(100))
    record = json.loads((dataset / "shard_000/claim.json").read_text())
    assert record["gen"] == 2
    chunks = len(list(dataset.glob("shard_000/chunk_*")))
    worked_here = sum(seen[number] for number in range(0, 100, 8))
    assert done >= 2
    assert worked_here <= 13 - 2 * (13 // chunks)
    assert summary.num_chunks_worked < sum(1 for _ in dataset.glob("shard_*/chunk_*"))


@pytest.mark.slow
def test_two_workers_with_a_kill_leave_no_sample_twice(dataset):
    first = start_worker(dataset, "user_code:slow", "a")
    second = start_worker(dataset, "user_code:slow", "b")
    deadline = time.monotonic() + 30
    while not list(dataset.glob("out/*/*")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    first.kill()
    first.communicate()

    out, _ = second.communicate(timeout=60)

    assert second.returncode == 0, out
    assert sorted(row["id"] for row in committed(dataset)) == list(range(100))
