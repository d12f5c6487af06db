"""A run left running at one terminal and looked at from another: real programs, real terminals."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resource_manager.runs import read_run, step_events
from tests.end_to_end.test_terminal_pty import (
    CHECKOUT,
    Screen,
    events_of,
    wait_for_none_left,
    write_group,
)

LIMIT_SECONDS = 60
TRAIN = "train quark with data/datasets/one for 100000 steps"


@pytest.fixture
def project(tmp_path):
    """A project whose runs are ended, whatever a test does."""
    (tmp_path / "quark.yaml").write_text(
        "layers: 1\nseq_len: 64\nbatch_size: 8\ndevice: cpu\nname: fox-1\n"
    )
    write_group(tmp_path / "data/datasets/one")
    yield tmp_path
    subprocess.run(
        [sys.executable, str(CHECKOUT / "quark_cli.py"), "stop everything", "--yes"],
        cwd=tmp_path, capture_output=True, check=False,
    )  # fmt: skip
    wait_for_none_left(tmp_path, 10)


def status_of(project: Path) -> str:
    return read_run(project / "runs/fox-1").status


def goes_on(project: Path, seconds: float = LIMIT_SECONDS) -> bool:
    """Wait for another ten steps; returns whether they came."""
    run_dir = project / "runs/fox-1"
    wanted = len(step_events(run_dir)) + 10
    deadline = time.monotonic() + seconds
    while len(step_events(run_dir)) < wanted:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.slow
def test_a_run_is_left_looked_at_and_stopped_from_other_terminals(project):
    first = Screen(project, TRAIN, "--yes")
    first.until("d leaves it running in the background")
    first.until("grad norm")
    first.send("d")
    assert first.end() == 0
    assert "fox-1 goes on in the background next quark attach fox-1" in first.text
    # The terminal is gone, and with it everything that belonged to it.
    first.child.close(force=True)
    time.sleep(1.5)  # the run looks for its launcher twice a second
    assert goes_on(project)

    second = Screen(project, "attach fox-1")
    second.until("Ctrl-C ends the view; the run goes on")
    second.until("grad norm")
    second.send("\x03")
    assert second.end() == 0
    assert "quark attach fox-1" in second.text
    assert "Traceback" not in second.text
    assert goes_on(project)

    third = Screen(project, "attach fox-1", size=(12, 40))
    third.until("grad norm")
    stop = Screen(project, "stop fox-1")
    stop.until("Stop fox-1? [y/N]")
    stop.send("y\n")
    assert stop.end() == 0
    assert third.end() == 130
    assert "saved step" in third.text
    assert "quark resume fox-1" in third.text
    assert events_of(project)[-1]["reason"] == "interrupt"


@pytest.mark.slow
def test_a_run_in_the_background_outlives_its_terminal_and_is_seen_off_one(project):
    line = "train quark with data/datasets/one for 100000 steps in the background"
    first = Screen(project, line, "--yes")
    assert first.end() == 0
    first.child.close(force=True)  # SIGHUP to whatever is left of it
    assert goes_on(project)
    attached = subprocess.Popen(
        [sys.executable, str(CHECKOUT / "quark_cli.py"), "attach fox-1", "--json"],
        cwd=project, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert attached.stdout is not None
    started = json.loads(attached.stdout.readline())
    assert (started["event"], started["run"]) == ("start", "fox-1")
    seen = json.loads(attached.stdout.readline())
    assert seen["event"] == "step"
    os.kill(attached.pid, signal.SIGINT)
    out, err = attached.communicate(timeout=30)
    assert attached.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == {"schema": 1, "run": "fox-1", "left": True}
    assert status_of(project) == "running"
    assert goes_on(project)


@pytest.mark.slow
@pytest.mark.nightly
def test_ranks_under_an_agent_go_on_too(project):
    first = Screen(project, f"{TRAIN} on 2 gpus", "--yes")
    first.until("grad norm")
    first.send("d")
    assert first.end() == 0
    first.child.close(force=True)
    time.sleep(3)
    assert goes_on(project)
    assert {event["event"] for event in events_of(project)} & {"error", "stopping"} == set()


@pytest.mark.slow
@pytest.mark.nightly
def test_a_watcher_that_is_killed_without_leaving_still_ends_the_run(project):
    """The bond holds for a start whose earlier one was left running."""
    first = Screen(project, TRAIN, "--yes")
    first.until("grad norm")
    first.send("d")
    assert first.end() == 0
    stop = Screen(project, "stop fox-1", "--yes")
    assert stop.end() == 0
    again = Screen(project, "resume fox-1 for 200000 steps", "--yes")
    again.until("grad norm")
    os.kill(again.child.pid, signal.SIGKILL)
    wait_for_none_left(project, 30)
    assert status_of(project) == "interrupted"
