"""Progress, stop rules and learning rate as functions of what is recorded."""

from typing import Any

import pytest

from brain.ml.schedule import (
    Progress,
    RunLength,
    epochs_done,
    is_due,
    learning_rate,
    share_done,
    stop_rule,
    total_steps,
)
from brain.ml.training_job import DataSource, Every, TrainingJob
from tools_utilities.object_store import StoreSpec

LENGTH = RunLength(source_samples=(300, 100))


def _job(**changes: Any) -> TrainingJob:
    source = DataSource(store=StoreSpec(uri="memory://m"), prefix="")
    fields = {"epochs": None, "lr": 1.0, "batch_size": 10, "seq_len": 8, **changes}
    return TrainingJob(name="n", run_dir="/r", train=(source,), **fields)


def test_warm_up_rises_linearly_and_the_schedule_ends_at_its_share():
    job = _job(max_steps=100, warmup_steps=4, schedule="linear")
    rates = [learning_rate(job, Progress(step=step), LENGTH) for step in range(100)]
    assert rates[0] == pytest.approx(0.25)
    assert rates[1] == pytest.approx(0.5 * (1 - 0.9 / 100))
    assert max(rates) == rates[3]
    assert rates[99] == pytest.approx(0.1 + 0.9 / 100)


@pytest.mark.parametrize(("name", "half"), [("cosine", 0.55), ("linear", 0.55), ("constant", 1.0)])
def test_schedules_at_half_time(name: str, half: float):
    job = _job(max_steps=100, schedule=name)
    assert learning_rate(job, Progress(step=50), LENGTH) == pytest.approx(half)
    assert learning_rate(job, Progress(step=0), LENGTH) == pytest.approx(1.0)


def test_rate_never_depends_on_the_clock_when_there_is_another_rule():
    job = _job(max_steps=100, max_seconds=10.0)
    early, late = Progress(step=5, seconds=0.1), Progress(step=5, seconds=9.0)
    assert learning_rate(job, early, LENGTH) == learning_rate(job, late, LENGTH)
    assert share_done(_job(max_seconds=10.0), late, LENGTH) == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("progress", "reached"),
    [
        (Progress(step=7), None),
        (Progress(step=8), "max_steps"),
        (Progress(samples=100), "max_samples"),
        (Progress(tokens=1000), "max_tokens"),
        (Progress(seconds=60), "max_seconds"),
        (Progress(epoch=2), "epochs"),
        (Progress(epoch=1, epoch_samples=399), None),
    ],
)
def test_first_rule_reached_is_named(progress: Progress, reached: str | None):
    job = _job(max_steps=8, max_samples=100, max_tokens=1000, max_seconds=60.0, epochs=2.0)
    assert stop_rule(job, progress, LENGTH) == reached


def test_whole_epochs_end_with_their_data_not_with_the_estimate():
    more = Progress(epoch=0, epoch_samples=5000)
    assert epochs_done(more, LENGTH) < 1
    assert stop_rule(_job(epochs=1.0), more, LENGTH) is None
    assert stop_rule(_job(epochs=0.5), Progress(epoch_samples=200), LENGTH) == "epochs"


def test_total_steps_is_the_smallest_of_the_rules():
    assert total_steps(_job(max_steps=7, max_samples=1000), LENGTH) == 7
    assert total_steps(_job(max_samples=25), LENGTH) == 3
    assert total_steps(_job(max_tokens=161), LENGTH) == 3
    assert total_steps(_job(epochs=2.0), LENGTH) == 80
    assert total_steps(_job(max_seconds=5.0), LENGTH) is None


def test_repeated_things_come_due_by_steps_samples_or_seconds():
    progress = Progress(step=6, samples=60, seconds=12.0)
    assert is_due(Every(steps=3), progress, 50, 0.0)
    assert not is_due(Every(steps=4), progress, 50, 0.0)
    assert is_due(Every(samples=55), progress, 50, 0.0)
    assert not is_due(Every(samples=100), progress, 50, 0.0)
    assert is_due(Every(seconds=5.0), progress, 50, 7.0)
    assert not is_due(Every(seconds=5.0), progress, 50, 8.0)
    assert not is_due(None, progress, 50, 0.0)
