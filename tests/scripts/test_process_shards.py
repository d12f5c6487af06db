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
from tools_utilities.errors import AccessError, UsageError
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.object_stores import memory
from tools_utilities.object_stores.memory import MemoryStore
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
    monkeypatch.syspath_prepend(tmp_path)
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


def start_worker(dataset: Path, function: str, name: str, *flags: str) -> subprocess.Popen[str]:
    program = str(CHECKOUT / "tools_utilities/scripts/process_shards.py")
    return subprocess.Popen(
        [
            *(sys.executable, program, "--dataset_dir", str(dataset), "--worker_id", name),
            *("--function", function, "--lease", "1.2", "--batch_size", "4", "--json"),
            *flags,
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


def test_a_failing_function_frees_its_shard_with_the_reason_and_the_rest_goes_on(
    dataset, capsys, monkeypatch
):
    code = main(["--dataset_dir", str(dataset), "--function", "user_code:boom", "--json"])

    summary = json.loads(capsys.readouterr().out)
    row = ShardManager(dataset).get_shard_status()["shards"][5]
    assert code == 1
    assert len(summary["shards"]) == 7
    assert "boom 13" in summary["failed"]["5"]
    assert "chunk_0000" in summary["failed"]["5"]
    assert (row["status"], row["attempts"]) == ("available", 1)
    assert "boom 13" in row["last_error"]
    # Corrected: the same command goes on.
    corrected = (dataset.parent / "user_code.py").read_text().replace("== 13", "== -1000")
    (dataset.parent / "user_code.py").write_text(corrected)
    monkeypatch.delitem(sys.modules, "user_code")
    assert main(["--dataset_dir", str(dataset), "--function", "user_code:boom"]) == 0
    assert len(committed(dataset)) == 100


def test_too_few_results_are_an_error_not_a_shorter_output(dataset):
    summary = process_shards(str(dataset), lambda samples: samples[1:])

    assert len(summary.failed) == 8
    assert "for" in summary.failed[0]


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def miscount(path: Path) -> None:
    """Let the metadata tell another number of samples than the chunk holds."""
    metadata = json.loads((path.parent / "metadata.json").read_text())
    for name in ("num_tasks", "num_samples"):
        if name in metadata["chunks"][0]:
            metadata["chunks"][0][name] += 1
    (path.parent / "metadata.json").write_text(json.dumps(metadata))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shorten, "the manifest says"),
        (flip, "chunk_0000"),
        (Path.unlink, "chunk_0000"),
        (miscount, "the manifest says"),
    ],
)
def test_a_damaged_chunk_fails_its_shard_and_the_others_go_on(dataset, capsys, damage, said):
    path = next(dataset.glob("shard_002/chunk_0000*"))
    whole = {file: file.read_bytes() for file in (path, path.parent / "metadata.json")}
    damage(path)
    arguments = ["--dataset_dir", str(dataset), "--function", "user_code:double", "--json"]

    code = main(arguments)

    summary = json.loads(capsys.readouterr().out)
    assert (code, summary["shards"]) == (1, [0, 1, 3, 4, 5, 6, 7])
    assert list(summary["failed"]) == ["2"]
    assert said in summary["failed"]["2"]
    row = ShardManager(dataset).get_shard_status()["shards"][2]
    assert (row["status"], row["attempts"], row["crashes"]) == ("available", 1, 0)
    assert row["last_error"] == f"ChunkError: {summary['failed']['2']}"
    assert not list(dataset.glob("out/shard_002/*/chunk_0000*"))
    if damage is miscount:
        return  # another count is another job
    # Put back, the same command does what was left.
    for file, data in whole.items():
        file.write_bytes(data)
    assert main(arguments) == 0
    assert json.loads(capsys.readouterr().out)["shards"] == [2]
    assert sorted(row["id"] for row in committed(dataset)) == list(range(100))


def test_a_store_that_refuses_the_reader_ends_it(dataset, monkeypatch):
    """What is wrong with every shard alike is no damage of one."""
    store = open_store(StoreSpec(uri=f"file://{dataset}"))
    refusing = RefusingReads(StoreSpec(uri="memory://refusing-reads"))
    for info in store.list(""):
        refusing.put(info.key, b"".join(store.get(info.key)))
    monkeypatch.setitem(memory._STORES, "memory://refusing-reads", refusing)

    with pytest.raises(AccessError, match="403"):
        process_shards("memory://refusing-reads", double)


class RefusingReads(MemoryStore):
    """Lets nobody read the data."""

    def get(self, key, *, start=0, end=None, if_etag=None):
        if "/chunk_" in key:
            raise AccessError(f"{key}: 403")
        return super().get(key, start=start, end=end, if_etag=if_etag)


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


def test_another_function_never_mixes_its_results_with_the_first_ones(dataset):
    process_shards(str(dataset), double)

    with pytest.raises(UsageError, match="another job") as caught:
        process_shards(str(dataset), lambda samples: samples)
    elsewhere = dataset.parent / "second"
    summary = process_shards(str(dataset), lambda samples: samples, out=str(elsewhere))

    assert "to FOLDER" in caught.value.hint
    assert summary.num_samples == 100
    assert len(list(elsewhere.glob("shard_*/claim.json"))) == 8
    assert all(row["twice"] == 2 * row["id"] for row in committed(dataset))
    assert sorted(row["id"] for row in committed(elsewhere)) == list(range(100))


def test_files_that_were_never_sharded_are_a_shard_each(tmp_path, aws_environment):
    folder = tmp_path / "plain"
    folder.mkdir()
    for number in range(3):
        lines = "".join(json.dumps({"id": 10 * number + n}) + "\n" for n in range(10))
        (folder / f"part-{number:05d}.jsonl").write_text(lines)

    summary = process_shards(str(folder), double, out=str(tmp_path / "out"))

    assert (summary.shards, summary.num_samples) == ((0, 1, 2), 30)
    assert [row["id"] for row in committed(tmp_path / "out")] == list(range(30))
    assert sorted(path.name for path in folder.iterdir()) == [
        f"part-0000{n}.jsonl" for n in range(3)
    ]


@pytest.mark.parametrize("sharded", [True, False])
def test_only_the_first_samples(dataset, tmp_path, sharded):
    source = dataset if sharded else dataset.parent / "tasks.jsonl"
    out = tmp_path / "few"

    summary = process_shards(
        str(source), double, out=str(out), options=ProcessOptions(max_samples=15, batch_size=4)
    )

    assert summary.num_samples == 15
    if not sharded:
        assert [row["id"] for row in committed(out)] == list(range(15))


def test_a_poisoned_sample_is_named_and_may_be_left_out(dataset, capsys):
    arguments = ["--dataset_dir", str(dataset), "--function", "user_code:boom", "--batch_size", "8"]
    skipping = [*arguments, "--on_bad", "skip", "--output_dir", str(dataset.parent / "skipped")]

    failed = main([*arguments, "--json"])
    message = json.loads(capsys.readouterr().out)["failed"]["5"]
    skipped = main(skipping)
    refused = main([*skipping[:-1], str(dataset.parent / "none"), "--bad_budget", "0"])

    printed = capsys.readouterr().out
    assert (failed, skipped, refused) == (1, 0, 1)
    assert "sample 1)" in message  # ids 5, 13, 21 … are samples 0, 1, 2 … of shard 5
    assert "99 samples in 8 shards, 1 samples left out" in printed
    rows = committed(dataset.parent / "skipped")
    assert sorted(row["id"] for row in rows) == [n for n in range(100) if n != 13]


def test_results_as_parquet(dataset):
    import pyarrow.parquet as pq

    def vectors(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{"id": s["id"], "v": np.full((2, 2), s["id"], np.float32)} for s in samples]

    process_shards(str(dataset), vectors, options=ProcessOptions(output_format="parquet"))

    rows = [
        row for path in dataset.glob("out/*/*/*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    assert sorted(row["id"] for row in rows) == list(range(100))
    assert all(row["v"] == [[row["id"]] * 2] * 2 for row in rows)


def test_a_class_is_made_once_and_gets_the_device(dataset):
    (dataset.parent / "user_class.py").write_text(
        "class Embed:\n"
        "    made = 0\n"
        "    def __init__(self, device):\n"
        "        Embed.made += 1\n"
        "        self.device = device\n"
        "    def __call__(self, samples):\n"
        "        return [{'id': s['id'], 'device': self.device, 'made': Embed.made} for s in samples]\n"
    )

    process_shards(str(dataset), "user_class:Embed", options=ProcessOptions(device="cpu"))

    assert {(row["device"], row["made"]) for row in committed(dataset)} == {("cpu", 1)}


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_worker_gives_its_shard_back(dataset, number, code):
    worker = start_worker(dataset, "user_code:slow", "stopped")
    deadline = time.monotonic() + 60
    while not list(dataset.glob("out/shard_000/1-*/chunk_0001.done.json")):
        assert time.monotonic() < deadline
        time.sleep(0.01)

    worker.send_signal(number)
    worker.communicate(timeout=30)

    records = [json.loads(path.read_text()) for path in dataset.glob("shard_*/claim.json")]
    assert worker.returncode == code
    assert {record["state"] for record in records} <= {"free", "done"}
    assert all(record["last_error"] is None for record in records)
    began = time.monotonic()
    process_shards(str(dataset), "user_code:slow", options=ProcessOptions(batch_size=4))
    assert sorted(row["id"] for row in committed(dataset)) == list(range(100))
    assert time.monotonic() - began < 60
