"""`attach`, `finetune` and `evaluate` on an ssh host: the program, a real server, real runs."""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from brain.ml.checkpoint_files import list_checkpoints
from resource_manager.runs import read_run
from tests import training
from tests.resource_manager.launch_targets import test_ssh_sentences
from tests.resource_manager.launch_targets.test_ssh_sentences import PROGRAM

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]
project = test_ssh_sentences.project
quark = test_ssh_sentences.quark


@contextmanager
def attached(project: Path, said: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`quark attach fox-1` of a terminal of its own; what it says goes into a file."""
    with (
        said.open("wb") as file,
        subprocess.Popen(
            [*PROGRAM, "attach fox-1"], cwd=project, stdout=file, stderr=subprocess.STDOUT
        ) as looking,
    ):
        try:
            yield looking
        finally:
            looking.kill()


def says(file: Path, text: str) -> Callable[[], bool]:
    return lambda: text in file.read_text()


def step_behind(run_dir: Path) -> Callable[[], bool]:
    """Whether the run has made a step that was not here when this was called."""
    before = read_run(run_dir).step
    return lambda: read_run(run_dir).step > before


def test_a_run_is_attached_to_through_cuts_and_again(project, quark, store, machine, tmp_path):
    data = f"{store.uri}/d/train/"
    begun = quark(
        f"train quark with {data} for 1M steps on ssh host gpu-box named fox-1 and detach"
    )
    assert begun.returncode == 0, begun.stderr
    run_dir = project / "runs/fox-1"

    first = tmp_path / "first"
    with attached(project, first) as looking:
        training.wait_for(says(first, "fox-1: step"), 120)
        machine.break_connections()
        training.wait_for(says(first, "the run goes on there, trying again"), 60)
        training.wait_for(says(first, "connected again"), 60)
        training.wait_for(step_behind(run_dir), 60)
        looking.kill()  # the terminal is gone, without a word

    second = tmp_path / "second"
    with attached(project, second) as looking:
        training.wait_for(says(second, "fox-1: step"), 120)
        training.wait_for(step_behind(run_dir), 60)
        looking.send_signal(signal.SIGINT)
        assert looking.wait(60) == 0
    assert "fox-1 goes on in the background" in second.read_text()
    assert "running" in quark("list").stdout

    third = tmp_path / "third"
    with attached(project, third) as looking:
        training.wait_for(says(third, "fox-1: step"), 120)
        stopped = quark("stop fox-1", "--yes")
        assert stopped.returncode == 0, stopped.stderr
        assert looking.wait(120) == 130
    assert "fox-1: saved step" in third.read_text()
    assert list_checkpoints(run_dir / "checkpoints")

    steps = [event["step"] for event in training.events(run_dir, "step")]
    assert steps == list(range(1, len(steps) + 1))  # nothing is missing, nothing came twice
    refused = quark("attach fox-1")
    assert refused.returncode == 2
    assert "fox-1 is not running: interrupted" in refused.stderr


def test_a_run_is_finetuned_and_measured_there(project, quark, store, machine):
    data = f"{store.uri}/d/train/"
    made = quark(f"train quark with {data} for 6 steps named fox-1")
    assert made.returncode == 0, made.stderr

    tuned = quark(
        f"finetune quark on {data} starting from fox-1 for 4 steps on ssh host gpu-box named owl-1"
    )
    assert tuned.returncode == 0, tuned.stderr
    assert "starts from the weights of fox-1" in tuned.stderr
    owl = read_run(project / "runs/owl-1")
    assert (owl.status, owl.where, owl.step) == ("finished", "ssh:gpu-box", 4)
    assert list_checkpoints(project / "runs/owl-1/checkpoints")
    [start] = training.events(project / "runs/owl-1", "start")
    assert start["resumed_from_step"] is None

    held = f"{store.uri}/d/val/"
    there = quark(f"evaluate fox-1 on {held} on ssh host gpu-box named elk-1")
    assert there.returncode == 0, there.stderr
    here = quark(f"evaluate fox-1 on {held} named elk-2")
    assert here.returncode == 0, here.stderr
    far, near = read_run(project / "runs/elk-1"), read_run(project / "runs/elk-2")
    assert (far.where, near.where) == ("ssh:gpu-box", "local")
    assert far.val_loss == pytest.approx(near.val_loss, rel=1e-6)
    assert "validation" in there.stdout
    again = quark("again elk-1 named elk-3")
    assert again.returncode == 0, again.stderr
    assert read_run(project / "runs/elk-3").val_loss == far.val_loss

    # Of one that nobody watched: what it saved is brought first.
    begun = quark(f"train quark with {data} for 5 steps on ssh host gpu-box named yak-1 and detach")
    assert begun.returncode == 0, begun.stderr
    training.wait_for(lambda: "finished" in quark("list").stdout.partition("yak-1")[2][:60], 120)
    assert not list_checkpoints(project / "runs/yak-1/checkpoints")
    measured = quark(f"evaluate yak-1 on {held} named elk-5 --override where=local")
    assert measured.returncode == 0, measured.stderr
    assert "ssh:gpu-box: bringing the checkpoints of yak-1" in measured.stderr
    assert read_run(project / "runs/elk-5").val_loss

    # Of a run that was there: what it saved is here, and is sent back.
    back = quark(f"evaluate owl-1 on {held} named elk-4")
    assert back.returncode == 0, back.stderr
    assert read_run(project / "runs/elk-4").where == "ssh:gpu-box"
