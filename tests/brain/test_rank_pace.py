"""Slow ranks are shown: by name, by how much, and whether data or computing makes them slow."""

import json
import random
from pathlib import Path

import pytest

from brain.ml.event_text import EventText
from brain.ml.rank_pace import LEAST_STEPS, RankPace, slow_text
from resource_manager.live_view import LiveRun
from tests.end_to_end.test_training_ranks import free_port
from tests.training import ForkServer, events, make_job, write_shards
from tools_utilities.terminal_text import plain

MODEL = """
import os, time
import torch
from torch import nn

SLOW = {what!r}

def pause(what):
    if what == SLOW and os.environ.get("RANK") == "1":
        time.sleep(0.08)

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(1, 1)

    def forward(self, inputs):
        pause("computing")
        return self.linear(inputs)

def collate(records):
    pause("data")
    values = torch.tensor([[float(record["x"])] for record in records])
    return values, 2 * values

def build(config):
    return Slow(), nn.MSELoss(), collate
"""


def after(steps: list[list[float]], world_size: int) -> RankPace:
    pace = RankPace(0, world_size)
    for seconds in steps:
        pace.take(seconds)
    return pace


def test_slow_is_what_the_documented_health_calls_slow():
    usual, limit = [0.0] * 4, 1 / 0.8
    for times, slow in ((limit - 0.01, []), (limit + 0.01, [2])):
        pace = after([[*usual, 1.0, 1.0, times, 1.0]] * LEAST_STEPS, 4)
        assert [one["rank"] for one in pace.slow()] == slow


def test_the_cause_is_what_a_rank_spends_more_on_than_others():
    step = [0.1, 2.0, 0.1, 0.1, 1.0, 1.0, 1.0, 4.0]
    found = after([step] * LEAST_STEPS, 4).slow()
    assert [(one["rank"], one["waits"]) for one in found] == [(3, "computing"), (1, "data")]
    assert found[0]["times"] == pytest.approx(4.1 / 2.05, abs=0.01)
    assert slow_text(found) == "slow ranks 3 (2 times, computing), 1 (1.46 times, data)"


def test_one_slow_step_is_soon_forgotten_and_the_first_steps_say_nothing():
    even, once = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0, 1.0, 3.0]
    assert after([once] * (LEAST_STEPS - 1), 3).slow() == []
    assert after([even] * 9 + [once], 3).slow() == []
    assert after([*[once] * 9, *[even] * 40], 3).slow() == []


def test_alone_nothing_is_slow():
    pace = RankPace(0, 1)
    with pace.fetching(), pace.computing():
        pass
    assert pace.exchanged() == []
    pace.take([])
    assert pace.slow() == []


def test_live_view_and_log_show_a_slow_rank():
    step = {
        "event": "step", "step": 7, "loss": 1.0,
        "slow_ranks": [{"rank": 5, "times": 2.5, "waits": "data"}],
    }  # fmt: skip
    run = LiveRun("fox-1")
    run.take({"event": "start", "world_size": 8})
    run.take(step)
    assert "slow rank 5 (2.5 times, data)" in "\n".join(map(plain, run.lines(200, draw=False)))
    assert "slow rank 5 (2.5 times, data)" in run.log_line()
    assert "slow rank 5 (2.5 times, data)" in str(EventText().line("step", step))
    run.take({**step, "slow_ranks": []})
    assert "slow" not in run.log_line()


@pytest.mark.parametrize("what", ["data", "computing"])
def test_a_run_names_the_rank_that_is_slow_and_what_it_is_slow_at(
    tmp_path: Path, training_forks: ForkServer, what: str
):
    (tmp_path / f"slow_{what}.py").write_text(MODEL.format(what=what))
    source = random.Random(3)
    lines = [json.dumps({"x": source.random()}) for _ in range(200)]
    store = write_shards(
        tmp_path / "data", {"d/train/train-00000.jsonl": "\n".join(lines).encode()}
    )
    job = make_job(
        tmp_path / "run", store, model=f"slow_{what}:build", project_dir=str(tmp_path),
        max_steps=10, val=(), keep=1,
    )  # fmt: skip
    pids = training_forks.start_ranks(job, 2, free_port())
    assert [training_forks.wait(pid) for pid in pids] == [0, 0]
    steps = events(tmp_path / "run", "step")
    assert steps[0]["slow_ranks"] == []
    [slow] = steps[-1]["slow_ranks"]
    assert (slow["rank"], slow["waits"]) == (1, what)
    assert 1.25 < slow["times"] <= 2
