"""A run that only evaluates: the same loss as training measured, limits, and what it leaves."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from brain.ml.evaluation import EvaluationLimit
from brain.ml.training_job import TrainingJob, save_job
from resource_manager.runs import read_run
from tests.training import events, make_job, text_shards, train_here, write_shards
from tools_utilities.errors import UsageError


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> TrainingJob:
    folder = tmp_path_factory.mktemp("trained")
    job = make_job(folder / "runs/fox-1", write_shards(folder, text_shards()), max_steps=4)
    assert train_here(job) == 0
    return job


def evaluation(job: TrainingJob, name: str, **changes) -> TrainingJob:
    run_dir = Path(job.run_dir).with_name(name)
    run_dir.mkdir()
    made = msgspec.structs.replace(
        job, name=name, run_dir=str(run_dir), train=(), init_from=job.run_dir, max_steps=None,
        evaluate_only=True, **changes,
    )  # fmt: skip
    save_job(made, run_dir / "job.yaml")
    return made


def test_it_measures_what_training_measured_and_writes_no_checkpoint(trained):
    job = evaluation(trained, "eval-1")
    assert train_here(job) == 0
    [before] = events(Path(trained.run_dir), "eval")
    [found] = events(Path(job.run_dir), "eval")
    assert found["loss"] == pytest.approx(before["loss"], rel=1e-6)
    assert (found["samples"], found["tokens"]) == (before["samples"], before["tokens"])
    [end] = events(Path(job.run_dir), "end")
    assert (end["reason"], end["exit_code"], end["val_loss"]) == ("evaluated", 0, found["loss"])
    assert not (Path(job.run_dir) / "checkpoints").exists()
    info = read_run(Path(job.run_dir))
    assert (info.status, info.val_loss) == ("finished", found["loss"])


def test_it_ends_after_the_batch_that_reaches_a_limit(trained):
    job = evaluation(trained, "eval-2", max_samples=9, batch_size=4)
    assert train_here(job) == 0
    [found] = events(Path(job.run_dir), "eval")
    assert found["samples"] == 12


def test_what_is_missing_is_told(trained):
    job = evaluation(trained, "eval-3", val=())
    assert train_here(job) == UsageError.exit_code
    [error] = events(Path(job.run_dir), "error")
    assert "init_from" in error["message"]
    other = evaluation(trained, "eval-4", layers=2)
    assert train_here(other) == 6


@pytest.mark.parametrize("name", ["batches", "samples", "tokens", "seconds"])
def test_limits(name):
    limit = EvaluationLimit(**{name: 5})
    seen: dict[str, Any] = {"batches": 4, "samples": 4, "tokens": 4, "seconds": 4.9}
    assert not limit.reached(**seen)
    assert limit.reached(**{**seen, name: 5})
