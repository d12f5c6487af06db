"""Datasets made of datasets: what their index names is read, and nothing that lies beside it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.test_create_sharded_dataset import samples_of, write_tasks
from tools_utilities.errors import DataNotFoundError
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.scripts.create_sharded_dataset import main
from tools_utilities.scripts.process_shards import process_shards

COUNT = 20


def made(source: Path, out: Path, *flags: str) -> list[int]:
    """Make a dataset and return its ids, sorted."""
    files = ["--input_file", str(source), "--output_dir", str(out), "--num_shards", "4"]
    assert main([*files, *flags]) == 0
    return sorted(row["id"] for row in samples_of(out))


def results(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"id": 1000 + sample["id"]} for sample in samples]


@pytest.mark.parametrize("layout", ["folders", "flat", "none"])
def test_results_of_batch_jobs_are_no_samples(tmp_path, aws_environment, caplog, layout):
    data = tmp_path / "data"
    if layout == "none":
        data.mkdir()
        for number in range(2):
            write_tasks(data / f"{number}.jsonl", COUNT)
    else:
        made(write_tasks(tmp_path / "in.jsonl", COUNT), data, "--layout", layout)
    process_shards(str(data), results)
    assert list(data.rglob("*.done.json"))
    caplog.clear()

    again = made(data, tmp_path / "again")

    assert again == sorted(list(range(COUNT)) * (2 if layout == "none" else 1))
    (told,) = {record.getMessage().partition(": left out: ")[2] for record in caplog.records}
    count = {"folders": 8, "flat": 8, "none": 4}[layout]  # each result with its `.done.json`
    what = "results of batch jobs" if layout == "none" else "files that its index does not name"
    assert told == f"{count} {what}"


def test_results_are_read_by_what_the_claims_say(tmp_path, aws_environment, capsys):
    data = tmp_path / "data"
    made(write_tasks(tmp_path / "in.jsonl", COUNT), data)
    process_shards(str(data), results)

    assert main(["--input_file", str(data / "out"), "--output_dir", str(tmp_path / "o")]) == 3
    assert "results of batch jobs, and not all of them count" in capsys.readouterr().err
    outputs = [
        json.loads(path.read_text())["output"].removeprefix("file://")
        for path in data.glob("shard_*/claim.json")
    ]
    assert all(row["id"] >= 1000 for row in samples_of(f"{outputs[0]}chunk_0000.jsonl"))


def test_what_was_added_and_not_merged_is_left_out(tmp_path, caplog):
    data = tmp_path / "data"
    made(write_tasks(tmp_path / "in.jsonl", COUNT), data)
    more = ["--input_file", str(write_tasks(tmp_path / "b.jsonl", 4)), "--output_dir", str(data)]
    assert main([*more, "--num_shards", "2", "--append"]) == 0
    caplog.clear()

    assert made(data, tmp_path / "again") == list(range(COUNT))
    assert "left out: 2 files that its index does not name" in caplog.text
    assert main(["--output_dir", str(data), "--merge"]) == 0
    assert len(made(data, tmp_path / "merged")) == COUNT + 4


def test_a_chunk_that_is_gone_is_an_error_not_a_smaller_dataset(tmp_path, capsys):
    data = tmp_path / "data"
    made(write_tasks(tmp_path / "in.jsonl", COUNT), data)
    (data / "shard_002/chunk_0000.jsonl").unlink()

    assert main(["--input_file", str(data), "--output_dir", str(tmp_path / "again")]) == 3

    assert "shard_002/chunk_0000.jsonl is not there" in capsys.readouterr().err


def test_sides_indexes_of_others_and_prefixes(tmp_path):
    source = write_tasks(tmp_path / "in.jsonl", COUNT)
    made(source, tmp_path / "sides", "--val_fraction", "0.3")
    assert made(tmp_path / "sides", tmp_path / "joined") == list(range(COUNT))
    (tmp_path / "other").mkdir()
    (tmp_path / "other/manifest.json").write_text('{"name": "a web page"}')
    write_tasks(tmp_path / "other/a.jsonl", COUNT)
    assert made(tmp_path / "other", tmp_path / "o") == list(range(COUNT))
    made(source, tmp_path / "flat", "--layout", "flat", "--val_fraction", "0.3")
    held_out = len(samples_of(tmp_path / "flat/val-"))
    assert len(samples_of(tmp_path / "flat/train-")) == COUNT - held_out
    assert held_out


def test_a_bucket_is_read_by_its_index_too(tmp_path):
    store = open_store(StoreSpec(uri=f"memory://{tmp_path.name}"))
    made(write_tasks(tmp_path / "in.jsonl", COUNT), tmp_path / "data")
    for path in (tmp_path / "data").rglob("*.json*"):
        store.put(f"in/{path.relative_to(tmp_path / 'data')}", path.read_bytes())
    store.put("in/shard_000/stray.jsonl", b'{"id": 99}\n')

    assert len(samples_of(f"{store.spec.uri}/in")) == COUNT
    store.delete("in/shard_001/chunk_0000.jsonl")
    with pytest.raises(DataNotFoundError, match=r"shard_001/chunk_0000\.jsonl is not there"):
        samples_of(f"{store.spec.uri}/in")
