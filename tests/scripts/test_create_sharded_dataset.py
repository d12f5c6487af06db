"""Sharded datasets: balanced, complete, in the documented layout, the same bytes after any kill."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tools_utilities.dataset_creation import OutputOptions
from tools_utilities.errors import ChangedError, RecordError, UsageError
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.sample_source import SourceOptions, open_source
from tools_utilities.scripts.create_sharded_dataset import create_sharded_dataset, main
from tools_utilities.sharding_plan import ShardingPlan

CHECKOUT = Path(__file__).resolve().parents[2]
CASES = CHECKOUT / "tests/cases/files"


def write_tasks(path: Path, count: int, *, num_bytes: int = 200) -> Path:
    with path.open("w") as file:
        for number in range(count):
            file.write(
                json.dumps({"id": number, "text": "é" * (number % 7) + "x" * num_bytes}) + "\n"
            )
    return path


def samples_of(folder: Path | str) -> list[dict[str, Any]]:
    source = open_source(str(folder), SourceOptions())
    return [
        cast("dict[str, Any]", row) for block in source.blocks(0, None) for row in block.records
    ]


def digest(folder: Path) -> dict[str, str]:
    """Return the content of every file that is not the program's own."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    }


def test_a_hundred_lines_over_eight_shards_write_a_hundred(tmp_path):
    source = write_tasks(tmp_path / "tasks.jsonl", 100)

    master = create_sharded_dataset(
        str(source), str(tmp_path / "out"), ShardingPlan(num_shards=8, chunk_bytes=1000)
    )

    manifest = load_manifest(open_store(StoreSpec(uri=f"file://{tmp_path}/out")), "")
    assert manifest is not None
    assert [shard.num_samples for shard in manifest.shards] == [13] * 4 + [12] * 4
    assert master["total_tasks"] == 100
    assert sorted(sample["id"] for sample in samples_of(tmp_path / "out")) == list(range(100))


def test_seven_lines_over_eight_shards_write_seven(tmp_path):
    source = write_tasks(tmp_path / "tasks.jsonl", 7)

    create_sharded_dataset(str(source), str(tmp_path / "out"), ShardingPlan(num_shards=8))

    metadata = json.loads((tmp_path / "out/shard_007/metadata.json").read_text())
    assert (metadata["total_tasks"], metadata["chunks"]) == (0, [])
    assert len(samples_of(tmp_path / "out")) == 7


def test_metadata_has_the_documented_fields(tmp_path):
    source = write_tasks(tmp_path / "tasks.jsonl", 16)

    create_sharded_dataset(
        str(source), str(tmp_path / "out"), ShardingPlan(num_shards=2, chunk_bytes=100_000)
    )

    master = json.loads((tmp_path / "out/master_metadata.json").read_text())
    shard = json.loads((tmp_path / "out/shard_001/metadata.json").read_text())
    data = (tmp_path / "out/shard_001/chunk_0000.jsonl").read_bytes()
    assert master == {
        "total_tasks": 16,
        "num_shards": 2,
        "chunk_size_mb": 0.1,
        "shards": [
            {"shard_id": 0, "directory": "shard_000", "status": "available"},
            {"shard_id": 1, "directory": "shard_001", "status": "available"},
        ],
        # Beyond the documents:
        "total_bytes": sum(path.stat().st_size for path in (tmp_path / "out").rglob("*.jsonl")),
        "schema": {"id": "integer", "text": "string"},
    }
    assert {name: shard[name] for name in shard if name != "chunks"} == {
        "shard_id": 1,
        "total_shards": 2,
        "status": "available",
        "total_tasks": 8,
        "num_chunks": 1,
        "assigned_to": None,
        "started_at": None,
        "completed_at": None,
    }
    (chunk,) = shard["chunks"]
    assert chunk["file"] == "chunk_0000.jsonl"
    assert (chunk["num_tasks"], chunk["bytes"]) == (8, len(data))
    assert chunk["sha256"] == hashlib.sha256(data).hexdigest()


def test_lines_are_copied_byte_for_byte(tmp_path):
    line = b'{"b" : 1.50, "a":"\\u00e9 \xe2\x80\xa8"}'
    (tmp_path / "in.jsonl").write_bytes(line + b"\r\n\n" + line)

    create_sharded_dataset(
        str(tmp_path / "in.jsonl"), str(tmp_path / "out"), ShardingPlan(num_shards=1)
    )

    assert (tmp_path / "out/shard_000/chunk_0000.jsonl").read_bytes() == line + b"\n" + line + b"\n"


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("made/b26_separators.jsonl", 4),
        ("made/b26_crlf.jsonl", 3),
        ("jsonl/example_n.ndjson", 5),
        ("jsonl/example_rn.ndjson", 5),
        ("jsonl/example_rn.ndjson.gz", 5),
    ],
)
def test_stored_counts_are_those_of_the_reader(tmp_path, name, count):
    master = create_sharded_dataset(
        str(CASES / name), str(tmp_path / "out"), ShardingPlan(num_shards=2)
    )

    assert master["total_tasks"] == count


@pytest.mark.parametrize(
    ("shard_format", "compression"),
    [("jsonl", None), ("jsonl", "zstd"), ("jsonl", "gzip"), ("parquet", None)],
)
def test_every_output_reads_back_exactly(tmp_path, shard_format, compression):
    source = write_tasks(tmp_path / "tasks.jsonl", 1000)
    plan = ShardingPlan(
        num_shards=3, chunk_bytes=20_000, format=shard_format, compression=compression
    )

    create_sharded_dataset(str(source), str(tmp_path / "out"), plan)

    back = sorted(samples_of(tmp_path / "out"), key=lambda sample: sample["id"])
    assert back == samples_of(tmp_path / "tasks.jsonl")


def test_an_empty_input_is_refused_and_writes_nothing(tmp_path, capsys):
    (tmp_path / "none.jsonl").write_bytes(b"\n\n")

    code = main(
        ["--input_file", str(tmp_path / "none.jsonl"), "--output_dir", str(tmp_path / "out")]
    )

    assert code == 2
    assert not (tmp_path / "out").exists()
    assert "no records" in capsys.readouterr().err


def test_a_bad_record_stops_with_its_place_and_keeps_what_was_finished(tmp_path):
    source = write_tasks(tmp_path / "tasks.jsonl", 9000)
    with source.open("a") as file:
        file.write("{broken\n")
    plan = ShardingPlan(num_shards=2, chunk_bytes=200_000)

    with pytest.raises(RecordError, match="line 9001"):
        create_sharded_dataset(str(source), str(tmp_path / "out"), plan)

    assert not (tmp_path / "out/master_metadata.json").exists()
    assert (tmp_path / "out/shard_000/chunk_0000.jsonl").exists()


def test_a_run_begun_from_another_source_is_refused(tmp_path):
    source = write_tasks(tmp_path / "tasks.jsonl", 9000)
    source.write_bytes(source.read_bytes() + b"{broken\n")
    plan = ShardingPlan(num_shards=2, chunk_bytes=200_000)
    with pytest.raises(RecordError):
        create_sharded_dataset(str(source), str(tmp_path / "out"), plan)

    write_tasks(source, 9001)

    with pytest.raises(ChangedError, match="before it changed"):
        create_sharded_dataset(str(source), str(tmp_path / "out"), plan)


def test_a_finished_dataset_is_left_alone_and_never_overwritten(tmp_path):
    source = write_tasks(tmp_path / "tasks.jsonl", 100)
    plan = ShardingPlan(num_shards=2)
    create_sharded_dataset(str(source), str(tmp_path / "out"), plan)
    before = digest(tmp_path / "out")

    again = create_sharded_dataset(str(source), str(tmp_path / "out"), plan)

    assert again["total_tasks"] == 100
    assert digest(tmp_path / "out") == before
    with pytest.raises(UsageError, match="other settings"):
        create_sharded_dataset(str(source), str(tmp_path / "out"), ShardingPlan(num_shards=3))


@pytest.mark.slow
def test_killed_at_any_moment_and_run_again_gives_the_same_bytes(tmp_path):
    source = write_tasks(tmp_path / "tasks.jsonl", 60_000)
    arguments = ["--input_file", str(source), "--num_shards", "4", "--chunk_size_mb", "0.2"]
    assert main([*arguments, "--output_dir", str(tmp_path / "whole")]) == 0
    begin = [
        sys.executable,
        str(CHECKOUT / "tools_utilities/scripts/create_sharded_dataset.py"),
        *arguments,
        "--output_dir",
        str(tmp_path / "killed"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}

    for delay in (0.35, 0.45, 0.55, 0.4, 0.5):
        process = subprocess.Popen(begin, env=environment, stdout=subprocess.DEVNULL)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = subprocess.run(begin, env=environment, stdout=subprocess.DEVNULL, check=False)

    assert done.returncode == 0
    assert digest(tmp_path / "killed") == digest(tmp_path / "whole")


def test_a_store_on_both_sides(tmp_path):
    store = open_store(StoreSpec(uri="memory://sharding"))
    rows = [json.dumps({"id": number}).encode() for number in range(50)]
    store.put("in/a.jsonl", b"\n".join(rows[:20]))
    store.put("in/b.jsonl", b"\n".join(rows[20:]))

    create_sharded_dataset(
        "memory://sharding/in/",
        "memory://sharding/out",
        ShardingPlan(num_shards=4, chunk_bytes=100),
        output=OutputOptions(state_dir=tmp_path),
    )

    manifest = load_manifest(store, "out/")
    assert manifest is not None
    assert manifest.num_samples == 50
    back = samples_of("memory://sharding/out/")
    assert sorted(sample["id"] for sample in back) == list(range(50))
    assert not any(tmp_path.rglob("*.tmp"))
