"""What lost claims left behind is found and removed; what anybody may still follow is not."""

import json
from pathlib import Path
from uuid import UUID

import pytest

from tests.scripts.test_process_shards import committed, double
from tests.scripts.test_shard_manager import make_dataset
from tools_utilities.scripts.process_shards import process_shards
from tools_utilities.scripts.shard_manager import ShardManager, main

DEAD = f"deadhost_4711_{UUID(int=5)}"


@pytest.fixture
def dataset(tmp_path: Path, aws_environment) -> Path:
    made = make_dataset(tmp_path, samples=16, num_shards=4)
    process_shards(str(made), double)
    # A shard that was taken over: its record is of the third generation.
    for number in (0, 1):
        path = made / f"shard_{number:03d}/claim.json"
        record = json.loads(path.read_text())
        owner = record["owner"].replace("/", "_")
        old, new = (made / f"out/shard_{number:03d}/{gen}-{owner}" for gen in (1, 3))
        old.rename(new)
        path.write_text(json.dumps(record | {"gen": 3, "output": f"file://{new}/"}))
    return made


def leave(dataset: Path, folder: str, *names: str) -> Path:
    path = dataset / "out" / folder
    path.mkdir(parents=True)
    for name in names or ("chunk_0000.jsonl", "chunk_0000.done.json"):
        (path / name).write_text("0123456789")
    return path


def sweep(dataset: Path, capsys, *flags: str) -> tuple[int, str]:
    code = main(["--dataset_dir", str(dataset), "--action", "sweep", *flags])
    return code, capsys.readouterr().out


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_orphans_are_listed_first_and_removed_only_when_told(dataset, capsys):
    before = files(dataset)
    first = leave(dataset, f"shard_000/1-{DEAD}")
    second = leave(dataset, f"shard_000/2-{DEAD}", "chunk_0000.jsonl")
    rows = committed(dataset)

    code, listed = sweep(dataset, capsys)
    assert code == 0
    assert listed.splitlines() == [
        f"file://{first}/  2 files, 20 bytes",
        f"file://{second}/  1 files, 10 bytes",
        "Left by lost claims (--delete removes them): 2 outputs, 30 bytes",
    ]
    assert files(dataset) > before

    code, removed = sweep(dataset, capsys, "--delete", "--json")
    told = json.loads(removed)
    assert (code, told["deleted"], told["num_bytes"]) == (0, True, 30)
    assert [(o["shard_id"], o["gen"], o["num_files"]) for o in told["orphans"]] == [
        (0, 1, 2),
        (0, 2, 1),
    ]
    assert {name for name in files(dataset) if "locks" not in name} == {
        name for name in before if "locks" not in name
    }
    assert committed(dataset) == rows
    assert sweep(dataset, capsys)[1].endswith("0 outputs, 0 bytes\n")


def test_what_may_still_be_somebodys_is_kept(dataset, capsys):
    manager = ShardManager(dataset, "operator", state_dir=dataset.parent / "state")
    manager.reset(2, force=True)
    kept = [
        leave(dataset, f"shard_002/1-{UUID(int=9)}"),  # its shard is not done
        leave(dataset, f"shard_002/2-{DEAD}"),
        leave(dataset, f"shard_001/4-{DEAD}"),  # later than the committed generation
        leave(dataset, "shard_001/1-notes"),  # not a claim's folder
        leave(dataset, f"shard_0010/1-{DEAD}"),
    ]

    assert sweep(dataset, capsys, "--delete")[1].endswith("0 outputs, 0 bytes\n")

    assert all((folder / "chunk_0000.jsonl").is_file() for folder in kept)


def test_an_output_named_by_hand_has_no_orphans_beside_it(dataset, capsys):
    path = dataset / "shard_000/claim.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"output": f"file://{dataset}/out/shard_000/mine/"}))
    leave(dataset, f"shard_000/1-{DEAD}")

    assert sweep(dataset, capsys, "--delete")[1].endswith("0 outputs, 0 bytes\n")
