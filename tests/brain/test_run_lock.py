"""One start of a run at a time."""

import os
from pathlib import Path

import pytest

from brain.ml.run_lock import only_start
from tests.training import ForkServer, events, make_job, text_shards, wait_for_step, write_shards
from tools_utilities.errors import UsageError


def test_second_start_is_refused_until_the_first_has_ended(tmp_path: Path):
    slept: list[float] = []
    with (
        only_start(tmp_path, 0),
        pytest.raises(UsageError, match=f"trained already .process {os.getpid()} on "),
        only_start(tmp_path, 0.01, sleep=slept.append),
    ):
        pytest.fail("two at once")
    assert slept
    with only_start(tmp_path, 0):
        pass


def test_run_that_is_started_twice_goes_on_undisturbed(tmp_path: Path, training_forks: ForkServer):
    """The second start is told so in the log; the first one's record says nothing of it."""
    run_dir = tmp_path / "run"
    store = write_shards(tmp_path / "data", text_shards())
    job = make_job(run_dir, store, max_steps=1_000_000, resume="auto")
    first = training_forks.start(job)
    wait_for_step(run_dir, 1)
    second = training_forks.start(job)
    assert training_forks.wait(second, 20) == 2
    assert f"trained already (process {first} on" in (run_dir / "log").read_text()
    os.kill(first, 15)
    assert training_forks.wait(first, 20) == 143
    assert len(events(run_dir, "start")) == 1
    assert not events(run_dir, "error")
