"""`… on aws`, as a person types it: the program, a stand-in for SkyPilot's, and real training on its machines."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brain.ml.checkpoint_files import list_checkpoints
from resource_manager.rental.rental_record import read_rental
from resource_manager.runs import read_run
from tests import servers, sky_fake, training
from tests.end_to_end.test_terminal_pty import Screen
from tests.projects import Said, make_manager
from tests.resource_manager.sky.conftest import CANARY, ROOT
from tools_utilities.errors import InputNeededError
from tools_utilities.object_store import StoreSpec

PROGRAM = [sys.executable, "-m", "tools_utilities.scripts.quark_cli"]
Quark = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def project(tmp_path: Path, store: StoreSpec, machine: Path, sky: sky_fake.Fake, aws_environment):
    folder = tmp_path / "project"
    folder.mkdir()
    settings = {
        "layers": 1, "seq_len": 32, "batch_size": 8, "device": "cpu", "min_size_kb": 0.1,
        "min_objects": 1, "endpoint_url": store.endpoint_url, "region": store.region,
        "remote_folder": str(machine), "cache_gb": 1, "checkpoint_dir": f"{store.uri}/saved",
    }  # fmt: skip
    (folder / "quark.yaml").write_text(json.dumps(settings))
    aws_environment.setenv("PYTHONPATH", str(ROOT))
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


def sentence(store: StoreSpec, rest: str) -> str:
    data = f"{store.uri}/d/train/"
    return f"train quark with {data} {rest} on aws under $2 an hour, stop after $15, named fox-1"


# What is asked before money is spent; without a process of its own.


def test_off_a_terminal_money_is_spent_on_yes_alone(project, store, sky):
    manager, *_ = make_manager(project, target=None)
    manager._target = None
    said = Said(
        data=[f"{store.uri}/d/train/"], where="aws", max_price_hour=2.0, max_cost=15.0, max_steps=6
    )
    with pytest.raises(InputNeededError, match="on aws, which costs money"):
        manager.train(said)
    assert sky.machines() == []
    assert not (project / "runs").exists()


def test_without_the_program_the_command_is_said_and_no_run_is_made(
    project, store, sky, aws_environment, monkeypatch
):
    monkeypatch.chdir(project)
    aws_environment.setenv("PATH", "/usr/bin:/bin")
    manager, _, out, _ = make_manager(project, target=None)
    manager._target = None
    manager.console = type(manager.console)(
        type(manager.console.about)(yes=True), stdout=out, stderr=out
    )
    said = Said(
        data=[f"{store.uri}/d/train/"], where="aws", max_price_hour=2.0, max_cost=15.0,
        max_steps=6, name="fox-1",
    )  # fmt: skip
    assert manager.train(said) == 2
    assert "sky is not on the PATH: its task is written, nothing is started" in out.getvalue()
    assert "next: cd " in out.getvalue()
    assert "sky launch --cluster quark-fox-1 --secret AWS_ACCESS_KEY_ID" in out.getvalue()
    assert (project / "fox-1-task/task.yaml").exists()
    assert (sky.calls, (project / "runs").exists()) == ([], False)


# Whole runs, by the supervisor and the trainer that are sent.


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_sentence_trains_on_a_cluster_that_is_gone_afterwards(
    project, quark, store, sky, machine, moto_endpoint
):
    (machine / "real").touch()
    planned = quark(sentence(store, "for 6 steps"), "--plan")
    assert planned.returncode == 0, planned.stderr
    assert (
        "AWS (us-east-1) · m6i.large · no GPU · the cheapest that SkyPilot finds" in planned.stdout
    )
    assert (sky.machines(), (project / "runs").exists()) == ([], False)
    done = quark(sentence(store, "for 6 steps"), "--yes")
    assert done.returncode == 0, done.stderr
    assert "is gone, as read back" in done.stderr
    assert sky.machines() == []
    run_dir = project / "runs/fox-1"
    info = read_run(run_dir)
    assert (info.status, info.step, info.checkpoint_step) == ("finished", 6, 6)
    assert "aws ($0.0" in quark("list runs").stdout
    client = servers.s3_client(moto_endpoint)
    keys = [
        one["Key"]
        for one in client.list_objects_v2(Bucket=store.uri[5:], Prefix="saved/")["Contents"]
    ]
    client.close()
    assert [key for key in keys if "step-" in key]
    assert list_checkpoints(run_dir / "checkpoints") == []
    # It goes on there from what is in the store.
    resumed = quark("resume fox-1 for 12 steps", "--yes")
    assert resumed.returncode == 0, resumed.stderr
    assert read_run(run_dir).step == 12
    assert sky.machines() == []


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_two_nodes_are_one_run(project, quark, store, sky, machine, tmp_path):
    plain = tmp_path / "plain"  # a path that the stand-in can replace in a script
    shutil.copytree(machine, plain)
    python = plain / "environment/bin/python"
    python.write_text(f'#!/bin/sh\ntest "$2" = pip && exit 0\nexec "{sys.executable}" "$@"\n')
    settings = json.loads((project / "quark.yaml").read_text())
    (project / "quark.yaml").write_text(json.dumps({**settings, "remote_folder": str(plain)}))
    done = quark(sentence(store, "for 6 steps on 2 nodes"), "--yes")
    assert done.returncode == 0, done.stderr
    assert "2 nodes" in done.stderr
    assert "$0.20 an hour for 2 nodes as SkyPilot's catalogue has it" in done.stderr
    assert sky.machines() == []
    run_dir = project / "runs/fox-1"
    assert read_run(run_dir).step == 6
    assert training.events(run_dir, "start")[0]["world_size"] == 2
    [name] = [path.name for path in (sky.folder / "seen").iterdir()]
    task = sky.seen(name)["task"]
    assert (task["num_nodes"], task["resources"]["max_hourly_cost"]) == (2, 0.1025)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("spot", ["", " spot"])
def test_ctrl_c_ends_it_and_what_was_saved_stays(project, store, sky, machine, spot):
    (machine / "real").touch()
    command = [*PROGRAM, sentence(store, f"for 1000000 steps, save every 20 steps{spot}"), "--yes"]
    run_dir = project / "runs/fox-1"
    with subprocess.Popen(command, cwd=project, stderr=subprocess.PIPE, text=True) as started:
        training.wait_for(
            lambda: (run_dir / "job.yaml").is_file() and read_run(run_dir).step > 25, 120
        )
        started.send_signal(signal.SIGINT)
        _, said = started.communicate(timeout=120)
    assert started.returncode == 130, said
    assert sky.machines() == []
    step = read_run(run_dir).checkpoint_step
    assert step is not None
    assert step >= 20


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_ctrl_c_at_a_terminal_asks(project, store, sky, machine):
    (machine / "mode").write_text("long")
    keys = {name: os.environ[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
    screen = Screen(project, sentence(store, "for 6 steps"), **keys)
    screen.until("Start fox-1?")
    assert sky.machines() == []
    screen.send("y\n")
    screen.until("step 1/2")
    screen.send("\x03")
    screen.until("k keeps it running")
    screen.send("c")
    time.sleep(0.5)  # it goes on
    assert len(sky.machines()) == 1
    screen.send("\x03")
    time.sleep(0.5)
    screen.send("s")
    assert screen.end() == 130
    assert CANARY not in screen.text
    assert sky.machines() == []
    assert read_run(project / "runs/fox-1").status == "interrupted"


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_run_in_the_background_is_found_watched_stopped_and_ended(
    project, quark, store, sky, machine
):
    (machine / "mode").write_text("long")
    done = quark(sentence(store, "for 6 steps") + " and detach", "--yes")
    assert done.returncode == 0, done.stderr
    assert "fox-1 runs in the background (on aws)" in done.stdout
    run_dir = project / "runs/fox-1"
    assert "running" in quark("list runs").stdout
    assert read_run(run_dir).step == 1
    with subprocess.Popen(
        [*PROGRAM, "attach fox-1"], cwd=project, stderr=subprocess.PIPE, text=True
    ) as looking:
        training.wait_for(lambda: sky.called("logs", "--tail", "0", "--follow"), 60)
        looking.send_signal(signal.SIGINT)
        looking.communicate(timeout=60)
    assert len(sky.machines()) == 1
    assert "training begins" in quark("logs fox-1").stdout
    stopped = quark("stop fox-1", "--yes")
    assert stopped.returncode == 0, stopped.stderr
    assert sky.machines() == []
    assert read_run(run_dir).status == "interrupted"
    assert quark("delete fox-1", "--yes").returncode == 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_what_nobody_watched_is_known_after_its_machine_destroyed_itself(
    project, quark, store, sky, machine
):
    (machine / "real").touch()
    sky.write("downs", "when idle")
    done = quark(sentence(store, "for 6 steps") + " and detach", "--yes")
    assert done.returncode == 0, done.stderr
    training.wait_for(lambda: sky.machines() == [], 120)
    listed = quark("list runs")
    assert "finished" in listed.stdout, listed.stderr
    assert read_run(project / "runs/fox-1").step == 6
    assert "6/6" in listed.stdout
    assert len((project / "runs/fox-1/log").read_text()) > 0


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("calls", range(3, 7))
def test_a_launcher_that_is_killed_at_any_call_leaves_nothing_that_is_not_found(
    project, quark, store, sky, machine, calls
):
    (machine / "mode").write_text("long")
    run_dir = project / "runs/fox-1"
    command = [*PROGRAM, sentence(store, "for 6 steps"), "--yes"]
    with subprocess.Popen(command, cwd=project, stderr=subprocess.DEVNULL) as started:
        training.wait_for(lambda: len(sky.calls) >= calls or started.poll() is not None, 120)
        os.kill(started.pid, signal.SIGKILL)
    if (run_dir / "job.yaml").is_file() and read_run(run_dir).status == "running":
        training.wait_for(lambda: not sky.read("requests", []), 60)
        quark("list runs")
        if read_run(run_dir).status == "running":
            stopped = quark("stop fox-1", "--yes")
            # It may find, as it looks, that the run has ended by itself.
            assert stopped.returncode == 0 or "fox-1 is not running" in stopped.stderr
    assert sky.machines() == []
    record = read_rental(run_dir)
    assert record is None or record.is_over
