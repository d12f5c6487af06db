"""Ranks and machines that are lost: every sample of every epoch is used once, in the end."""

import json
import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest

from brain.ml.failure import claim_of, failed_for_good, may_pass
from brain.ml.process_group import START_VARIABLE, attempt_of
from brain.ml.sample_log import final_samples, hash_of
from brain.ml.training_job import Every, TrainingJob
from resource_manager.launch_targets.local import LAUNCH_TARGET
from tests.end_to_end.test_training_ranks import free_port
from tests.training import ForkServer, events, make_job, wait_for, wait_for_step, write_shards
from tools_utilities.errors import RecordError, StoreError, UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.process_identity import descendants

ROWS, SHARDS, BATCH = 48, 4, 8
STEPS_AN_EPOCH = ROWS * SHARDS // BATCH


def _tokens(row: int) -> list[int]:
    return [3 + row // 200, 3 + row % 200, *range(10, 10 + row % 7)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreSpec:
    """Rows of tokens, no two alike, a whole number of batches."""
    shards = {}
    for shard in range(SHARDS):
        rows = range(shard * ROWS, (shard + 1) * ROWS)
        lines = [json.dumps({"input_ids": _tokens(row)}) for row in rows]
        shards[f"d/train/train-{shard:05d}.jsonl"] = ("\n".join(lines) + "\n").encode()
    return write_shards(tmp_path_factory.mktemp("data"), shards)


def _job(run_dir: Path, store: StoreSpec, **changes: object) -> TrainingJob:
    fields = {
        "epochs": 2.0, "max_steps": None, "val": (), "batch_size": BATCH, "sample_log": True,
        "checkpoint_every": Every(steps=5), **changes,
    }  # fmt: skip
    return make_job(run_dir, store, **fields)


def _every_sample_once_an_epoch(run_dir: Path, epochs: int = 2) -> None:
    steps = final_samples(run_dir)
    assert list(steps) == list(range(1, epochs * STEPS_AN_EPOCH + 1))
    expected = Counter(hash_of(_tokens(row)) for row in range(ROWS * SHARDS))
    for epoch in range(epochs):
        first = epoch * STEPS_AN_EPOCH + 1
        made = [steps[step] for step in range(first, first + STEPS_AN_EPOCH)]
        assert Counter(sample for samples in made for sample in samples) == expected, epoch


def test_killed_ranks_and_other_worlds_use_every_sample_once(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer
):
    """4, 2 and 4 ranks: each start but the last loses one rank at random, and all end for it."""
    run_dir = tmp_path / "run"
    source = random.Random(int.from_bytes(os.urandom(4)))
    job = _job(run_dir, store)
    for start, world_size, until in ((1, 4, 8), (2, 2, 30), (3, 4, None)):
        changes = {START_VARIABLE: str(start)}
        pids = training_forks.start_ranks(job, world_size, free_port(), **changes)
        if until is None:
            assert [training_forks.wait(pid) for pid in pids] == [0] * world_size
            continue
        wait_for_step(run_dir, until)
        os.kill(source.choice(pids), signal.SIGKILL)
        assert all(training_forks.wait(pid, 10) for pid in pids)
    _every_sample_once_an_epoch(run_dir)
    starts = events(run_dir, "start")
    assert [event["world_size"] for event in starts] == [4, 2, 4]
    assert [event["start"] for event in starts] == [1, 2, 3]
    assert {event["kind"] for event in events(run_dir, "error")} == {"RankLostError"}


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (RecordError("row 3"), False),
        (UsageError("batch_size=7"), False),
        (StoreError("503"), True),
        (RuntimeError("CUDA error: unspecified launch failure"), True),
        (AssertionError("in a model"), False),
    ],
)
def test_only_failures_that_may_pass_are_tried_again(error: Exception, passes: bool):  # noqa: FBT001 - a case
    assert may_pass(error) is passes


def test_claim_says_whether_a_start_failed_for_good(tmp_path: Path):
    assert not failed_for_good(tmp_path, 1)
    claim_of(tmp_path, attempt_of(1)).write_bytes(b"")
    claim_of(tmp_path, attempt_of(2)).write_bytes(b"final")
    assert [failed_for_good(tmp_path, start) for start in (1, 2)] == [False, True]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_agent_that_is_killed_comes_back_4_2_4(tmp_path: Path, store: StoreSpec):
    """Two agents of two ranks; nothing is started by hand."""
    run_dir = tmp_path / "run"
    job = _job(run_dir, store, nodes=2, processes=2, epochs=60.0, rejoin_seconds=15.0)
    handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))
    try:
        wait_for_step_of(run_dir, 20, 300)
        os.kill(_agents(handle.pid)[1], signal.SIGKILL)
        assert handle.wait(600) == 0
    finally:
        handle.kill()
    sizes = [event["world_size"] for event in events(run_dir, "start")]
    assert sizes[0] == sizes[-1] == 4
    assert 2 in sizes
    _every_sample_once_an_epoch(run_dir, 60)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_rank_killed_twenty_times_at_random(tmp_path: Path, store: StoreSpec):
    run_dir = tmp_path / "run"
    source = random.Random(int.from_bytes(os.urandom(4)))
    job = _job(run_dir, store, processes=2, epochs=60.0, max_restarts=20)
    handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))
    try:
        for kill in range(20):
            wait_for_step_of(run_dir, (kill + 1) * 60, 120)
            os.kill(source.choice(descendants(handle.pid)), signal.SIGKILL)
            wait_for(lambda number=kill: len(events(run_dir, "error")) > number, 15)
        assert handle.wait(300) == 0
    finally:
        handle.kill()
    assert len(events(run_dir, "error")) == 20
    _every_sample_once_an_epoch(run_dir, 60)


def wait_for_step_of(run_dir: Path, step: int, seconds: float) -> None:
    """Wait until a run has made a step, whatever it repeated."""
    wait_for(lambda: (events(run_dir, "step") or [{"step": 0}])[-1]["step"] >= step, seconds)


def _agents(pid: int) -> list[int]:
    below = descendants(pid)
    return [one for one in below if b"elastic_agent" in Path(f"/proc/{one}/cmdline").read_bytes()]
