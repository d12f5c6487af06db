"""Every documented use, as printed, with moto's server standing in for the bucket."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
SETTINGS = ["--override", "layers=1", "--override", "seq_len=32", "--override", "device=cpu"]
ROOT = "data/datasets/alphagenome/"


def records(shard: int, count: int = 40) -> bytes:
    """One JSONL shard of more than 1 KiB."""
    rows = (
        {"id": shard * count + n, "text": f"sample {n} of shard {shard}, " * 2}
        for n in range(count)
    )
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def shards(prefix: str, count: int = 8) -> dict[str, bytes]:
    return {
        f"{prefix}{number:05d}-of-{count:05d}.jsonl": records(number) for number in range(count)
    }


@pytest.fixture
def project(tmp_path, aws_environment, moto_endpoint):
    """A project folder: what a user's checkout is."""
    folder = tmp_path / "quark"
    folder.mkdir()
    (folder / "quark.yaml").write_text("seed: 7\n")
    aws_environment.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    aws_environment.setenv("CACHE_DIR", str(tmp_path / "cache"))
    aws_environment.chdir(folder)
    return folder


@pytest.fixture
def bucket(moto_endpoint, make_bucket, put_objects):
    name = make_bucket(moto_endpoint)
    put_objects(moto_endpoint, name, shards(f"{ROOT}train-"))
    return name


def run(*argv: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        check=False,
    )


def steps_of(folder: Path) -> int:
    """Return the last step that the only run in a project took."""
    (metrics,) = folder.glob("runs/*/metrics.jsonl")
    events = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert events[-1]["event"] == "end"
    return int(events[-1]["step"])


@pytest.mark.slow
@pytest.mark.parametrize("program", ["quark_cli.py", "tools_utilities/scripts/quark_cli.py"])
def test_the_sentence_trains_from_the_bucket(program, project, bucket):
    sentence = f"train quark with {project}/data/datasets/alphagenome for 3 steps"

    done = run(
        str(CHECKOUT / program), sentence, "--override", f"bucket={bucket}", *SETTINGS, "--yes",
        cwd=project,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert steps_of(project) == 3
    assert ROOT in done.stderr


@pytest.mark.slow
def test_train_prefix_and_data_mode_override_the_path(project, bucket, put_objects, moto_endpoint):
    put_objects(moto_endpoint, bucket, shards("elsewhere/train-", 3))

    done = run(
        str(CHECKOUT / "quark_cli.py"),
        "train quark for 2 steps",
        "--override", f"bucket={bucket}",
        "--override", "train_prefix=elsewhere/train-",
        "--override", "data_mode=streaming",
        *SETTINGS,
        cwd=project,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert steps_of(project) == 2


@pytest.mark.slow
def test_a_path_of_another_machine_is_found_in_the_bucket_and_said(project, bucket):
    done = run(
        str(CHECKOUT / "quark_cli.py"),
        "train quark with /Users/someone/quark/data/datasets/alphagenome for 2 steps",
        "--override", f"bucket={bucket}", *SETTINGS,
        cwd=project,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    shown = done.stderr + done.stdout
    assert "/Users/someone/quark/data/datasets/alphagenome" in shown
    assert ROOT in shown


def test_several_groups_without_a_terminal_are_listed_with_the_flag(
    project, bucket, put_objects, moto_endpoint
):
    put_objects(moto_endpoint, bucket, shards(f"{ROOT}other/part-"))

    done = run(
        str(CHECKOUT / "quark_cli.py"),
        f"train quark with {project}/data/datasets/alphagenome for 2 steps",
        "--override", f"bucket={bucket}", *SETTINGS,
        cwd=project,
    )  # fmt: skip

    assert done.returncode == 2
    assert f"{ROOT}other/" in done.stderr
    assert "--groups" in done.stderr
    assert not (project / "runs").exists()


def test_no_group_shows_the_folders_and_why_each_failed(
    project, moto_endpoint, make_bucket, put_objects
):
    name = make_bucket(moto_endpoint)
    put_objects(moto_endpoint, name, {f"{ROOT}deep/er/a-{n}.jsonl": records(n) for n in range(3)})

    done = run(
        str(CHECKOUT / "quark_cli.py"),
        f"train quark with {project}/data/datasets/alphagenome for 2 steps",
        "--override", f"bucket={name}", *SETTINGS,
        cwd=project,
    )  # fmt: skip

    assert done.returncode == 3
    assert f"{ROOT}deep/er/" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_discovery_script_lists_groups_for_people_and_programs(project, bucket):
    script = str(CHECKOUT / "tools_utilities/scripts/dataset_discovery.py")
    where = ["--bucket", bucket, "--root", "data/datasets/alphagenome", "--auto-shards"]

    human = run(script, *where, "--human", cwd=project)
    machine = run(script, *where, "--json", "--depth", "3", "--min-objects", "8", cwd=project)

    assert human.returncode == 0, human.stderr
    assert f"{ROOT}" in human.stdout
    assert "KiB" in human.stdout
    found = json.loads(machine.stdout)
    groups = found["groups"] if isinstance(found, dict) else found
    assert groups[0]["num_objects"] == 8
    assert groups[0]["format"] == "jsonl"


QUICK_START = """
import json, sys
from torch.utils.data import DataLoader
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from brain.ml.dataset_shards.stream_dataset import StreamDataset

sm = StreamingManager(bucket=sys.argv[1])
dataset = StreamDataset(sm, prefix="data/datasets/alphagenome/train-", deserialize=json.loads)
loader = DataLoader(dataset, batch_size=None)
ids = [sample["id"] for sample in loader]
batches = [batch["id"].tolist() for batch in DataLoader(dataset, batch_size=4)]
print(json.dumps({"ids": ids, "batched": sum(batches, []), "stats": sm.get_stats()}, default=str))
with sm.open("data/datasets/alphagenome/train-00000-of-00008.jsonl") as file:
    assert json.loads(file.readline())["id"] == 0
"""


@pytest.mark.slow
def test_the_quick_start_delivers_every_sample_once_in_a_plain_dataloader(project, bucket):
    done = run("-W", "error", "-c", QUICK_START, bucket, cwd=project)

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert sorted(result["ids"]) == list(range(320))
    assert sorted(result["batched"]) == list(range(320))
    assert result["ids"] != sorted(result["ids"])  # epoch 0 is shuffled too
    assert result["ids"] != result["batched"]  # every epoch differs


def test_the_documented_functions_find_groups(project, bucket):
    from tools_utilities.scripts.dataset_discovery import discover, discover_shard_groups

    prefixes = discover(bucket, depth=3, root_prefix="data/datasets/alphagenome/")
    groups = discover_shard_groups(bucket, "data/datasets/alphagenome/", min_objects=8)

    assert prefixes[ROOT]["objects"] == 8
    assert prefixes[ROOT]["bytes"] == sum(len(records(n)) for n in range(8))
    assert [group.num_objects for group in groups] == [8]


@pytest.mark.slow
def test_the_resource_manager_and_the_hub_run_from_python(project, bucket):
    code = """
import sys
from resource_manager.manager import ResourceManager
sys.exit(ResourceManager().run_training_job(
    dataset_local_path="data/datasets/alphagenome",
    overrides={"bucket": sys.argv[1], "max_steps": "2", "layers": "1", "seq_len": "32", "device": "cpu"},
))
"""
    done = run("-c", code, bucket, cwd=project)

    assert done.returncode == 0, done.stderr
    assert steps_of(project) == 2
