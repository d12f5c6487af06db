"""`… on ssh host gpu-box`, as a person types it: the program, a real ssh server, a real run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from brain.ml.checkpoint_files import list_checkpoints
from brain.ml.training_job import Remote
from resource_manager.runs import read_run
from tests import training
from tests.resource_manager.launch_targets.conftest import CANARY, ODD_FOLDER
from tools_utilities.object_store import StoreSpec

pytestmark = pytest.mark.timeout(300)
Quark = Callable[..., "subprocess.CompletedProcess[str]"]
PROGRAM = [sys.executable, "-m", "tools_utilities.scripts.quark_cli"]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def project(tmp_path: Path, store: StoreSpec, remote: Remote, ssh_path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    settings = {
        "layers": 1, "seq_len": 32, "batch_size": 8, "device": "cpu", "min_size_kb": 0.1,
        "min_objects": 1, "endpoint_url": store.endpoint_url, "region": store.region,
        "remote_python": remote.python, "remote_packages": "inherit", "remote_folder": ODD_FOLDER,
    }  # fmt: skip
    (folder / "quark.yaml").write_text(json.dumps(settings))
    ssh_path.setenv("PYTHONPATH", str(ROOT))
    return folder


@pytest.fixture
def quark(project: Path) -> Quark:
    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        done = subprocess.run(
            [*PROGRAM, *arguments], cwd=project, capture_output=True, text=True, check=False
        )
        assert CANARY not in done.stdout + done.stderr
        return done

    return run


def test_a_sentence_trains_elsewhere_and_what_comes_of_it_is_here(project, quark, store, machine):
    sentence = f"train quark with {store.uri}/d/train/ for 6 steps on ssh host gpu-box named fox-1"

    planned = quark(sentence, "--plan")
    assert planned.returncode == 0, planned.stderr
    assert "compute     ssh:gpu-box · cpu" in planned.stdout
    assert "long-lived: AWS_ACCESS_KEY_ID" in planned.stdout
    assert not (project / "runs").exists()

    done = quark("--json", sentence)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["step"] for event in events if event.get("event") == "step"] == [*range(1, 7)]

    run_dir = project / "runs/fox-1"
    assert len(list_checkpoints(run_dir / "checkpoints")) == 1
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    secrets = (CANARY.encode(), json.dumps(CANARY)[1:-1].encode())
    assert not [path for path in files if any(text in path.read_bytes() for text in secrets)]
    listed = json.loads(quark("--json", "list").stdout)["runs"]
    assert [(run["name"], run["status"], run["where"]) for run in listed] == [
        ("fox-1", "finished", "ssh:gpu-box")
    ]
    there = machine.home / ODD_FOLDER.removeprefix("~/") / "runs"
    assert list(there.glob("fox-1-*"))
    assert quark("delete fox-1", "--yes").returncode == 0
    assert not list(there.glob("fox-1-*"))


def test_what_cannot_go_there_is_refused_before_anything_is_made(project, quark):
    data = project / "data set"
    training.write_shards(data, training.text_shards())
    refused = quark('train quark with "data set/d/train" on ssh host gpu-box')
    assert refused.returncode == 2
    assert "this data is only on this machine, and the run is on ssh:gpu-box" in refused.stderr
    assert "s3://BUCKET/PREFIX" in refused.stderr
    assert not (project / "runs").exists()


@pytest.mark.nightly
def test_ctrl_c_saves_the_run_elsewhere_and_it_goes_on_here(project, quark, store):
    sentence = f"train quark with {store.uri}/d/train/ for 1M steps on ssh host gpu-box named fox-1"
    with subprocess.Popen(
        [*PROGRAM, sentence], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as program:
        training.wait_for(lambda: training.losses(project / "runs/fox-1"), 120)
        os.kill(program.pid, signal.SIGINT)
        said = program.communicate(timeout=120)[0].decode()
    assert program.returncode == 130, said
    assert "fox-1: saved step" in said
    saved = read_run(project / "runs/fox-1").checkpoint_step
    assert saved
    resumed = quark(f"resume fox-1 for {saved + 3} steps locally")
    assert resumed.returncode == 0, resumed.stderr
    assert "  local · cpu" in resumed.stderr
    assert "where: ssh:gpu-box → local" in resumed.stderr
    assert read_run(project / "runs/fox-1").step == saved + 3
    again = quark(f"resume fox-1 for {saved + 5} steps on ssh host gpu-box")
    assert again.returncode == 0, again.stderr
    assert read_run(project / "runs/fox-1").step == saved + 5


@pytest.mark.nightly
def test_a_detached_run_is_found_watched_and_stopped(project, quark, store):
    sentence = f"train quark with {store.uri}/d/train/ for 1M steps on ssh host gpu-box named fox-1"
    begun = quark(f"{sentence} and detach")
    assert begun.returncode == 0, begun.stderr
    assert "on ssh:gpu-box)" in begun.stdout
    training.wait_for(lambda: "running" in quark("list").stdout)
    training.wait_for(lambda: "INFO" in quark("logs of fox-1").stdout, 120)
    with subprocess.Popen(
        [*PROGRAM, "watch fox-1"], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as watching:
        training.wait_for(lambda: training.losses(project / "runs/fox-1"), 120)
        os.kill(watching.pid, signal.SIGINT)
        watching.communicate(timeout=60)
    assert read_run(project / "runs/fox-1").status == "running"
    stopped = quark("stop fox-1", "--yes")
    assert stopped.returncode == 0, stopped.stderr
    assert read_run(project / "runs/fox-1").status == "interrupted"
    assert list_checkpoints(project / "runs/fox-1/checkpoints")
