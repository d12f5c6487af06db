"""Runs as they are lived with: every stop rule and how often they save, lost ones, and slow data."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from brain.ml.training_job import Every
from resource_manager.run_figures import figures_of, is_slow_data, read_record
from resource_manager.runs import list_runs, read_run, stop_run
from resource_manager.show_command import wait_text
from tests.fakes import Request, StubS3
from tests.training import (
    ForkServer,
    events,
    losses,
    make_job,
    text_shards,
    train_here,
    wait_for,
    wait_for_step,
    write_shards,
)
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec

FOREVER = 1_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreSpec:
    return write_shards(tmp_path_factory.mktemp("data"), text_shards())


LOOSE: dict[str, Any] = {
    "max_steps": 1000, "max_samples": 10_000, "max_tokens": 10**7, "max_seconds": 600.0, "epochs": 99.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "value", "ends"),
    [
        ("max_steps", 3, {"step": 3}),
        ("max_samples", 20, {"step": 3, "samples": 24}),
        ("max_tokens", 300, {"step": 2}),
        ("max_seconds", 0.001, {"step": 1}),
        ("epochs", 1.0, {"epoch": 1.0}),
    ],
)
def test_of_all_stop_rules_the_first_reached_ends_the_run_and_is_named(
    tmp_path: Path, store: StoreSpec, rule: str, value: float, ends: dict[str, float]
):
    job = make_job(tmp_path / "run", store, val=(), **{**LOOSE, rule: value})
    assert train_here(job) == 0
    info = read_run(tmp_path / "run")
    assert (info.status, info.reason) == ("finished", rule)
    assert {name: getattr(info, name) for name in ends} == ends


@pytest.mark.parametrize(
    ("every", "steps"),
    [(Every(steps=4), [4, 8, 10]), (Every(samples=24), [3, 6, 9, 10])],
)
def test_checkpoints_come_every_so_many_steps_or_samples(
    tmp_path: Path, store: StoreSpec, every: Every, steps: list[int]
):
    job = make_job(tmp_path / "run", store, val=(), max_steps=10, keep=9, checkpoint_every=every)
    assert train_here(job) == 0
    assert [event["step"] for event in events(tmp_path / "run", "checkpoint")] == steps


def test_checkpoints_come_every_so_many_seconds(tmp_path: Path, training_forks: ForkServer):
    # So much data that no epoch ends, which would save too.
    store = write_shards(tmp_path / "data", text_shards(records=4000))
    run_dir = tmp_path / "run"
    job = make_job(
        run_dir, store, val=(), max_steps=FOREVER, keep=2, checkpoint_every=Every(seconds=0.2)
    )
    pid = training_forks.start(job)
    wait_for(lambda: len(events(run_dir, "checkpoint")) >= 3)
    stop_run(run_dir)
    assert training_forks.wait(pid, 20) == 130
    steps = events(run_dir, "step")
    assert max(step["epoch"] for step in steps) < 1
    assert len(events(run_dir, "checkpoint")) < len(steps)


def test_a_killed_run_is_lost_at_once_and_neither_stopped_nor_taken_for_running(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer
):
    run_dir = tmp_path / "run"
    pid = training_forks.start(make_job(run_dir, store, max_steps=FOREVER))
    wait_for_step(run_dir, 3)
    assert read_run(run_dir).status == "running"
    os.kill(pid, signal.SIGKILL)
    training_forks.wait(pid, 10)
    [info] = list_runs(tmp_path)
    assert info.status == "lost"
    assert info.step == len(losses(run_dir))
    with pytest.raises(UsageError, match="is not running"):
        stop_run(run_dir)


def test_a_loader_slower_than_the_model_is_reported_as_such(tmp_path: Path):
    """Each answer of the store takes longer than the steps that it feeds."""

    def slow(request: Request) -> None:
        if request.method == "GET" and ".jsonl" in request.path:
            time.sleep(0.15)

    shards = text_shards(shards=24, records=8)
    with StubS3(shards) as s3:
        s3.script = slow
        store = StoreSpec(uri="s3://bucket", endpoint_url=s3.url, anonymous=True)
        job = make_job(
            tmp_path / "run", store, val=(), max_steps=20, prefetch=0, fetch_concurrency=1,
            shuffle_mb=0.001,
        )  # fmt: skip
        assert train_here(job) == 0
    figures = figures_of(read_record(read_run(tmp_path / "run")))
    assert is_slow_data(figures)
    assert "the loader is slower than the model, most for" in wait_text(figures)
