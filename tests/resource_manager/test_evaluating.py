"""`evaluate`: which checkpoint is measured, how, and on what."""

from typing import Any

import pytest

from resource_manager.remote_settings import TermsNeededError
from tests.projects import END, RecordingTarget, Said, make_manager
from tests.resource_manager.test_repeating import ONE, add_checkpoint, plan_of
from tools_utilities.errors import DataNotFoundError, UsageError

EVALUATED = {**END, "reason": "evaluated", "step": 0, "epoch": 0.0, "loss": None, "val_loss": 2.5}


@pytest.fixture
def trained(project):
    manager, target, out, err = make_manager(project, RecordingTarget(EVALUATED))
    given = Said(
        data=ONE, name="fox-1", epochs=2, layers=3, seq_len=64, batch_size=16, text_key="text"
    )
    manager.train(given)
    out.truncate(0)
    return project, manager, target, out, err


def test_the_newest_checkpoint_with_the_runs_own_settings(trained):
    project, manager, target, out, err = trained
    with pytest.raises(DataNotFoundError, match="checkpoint"):
        manager.evaluate(Said(data=ONE))
    with pytest.raises(DataNotFoundError, match="no checkpoint yet"):
        manager.evaluate(Said(data=ONE, run="fox-1"))
    add_checkpoint(project, "fox-1")
    assert manager.evaluate(Said(data=["data/datasets/two"], groups={"pick": [1]})) == 0
    job = target.jobs[-1]
    assert job.evaluate_only
    assert job.init_from == str(project / "runs/fox-1")
    assert (job.layers, job.seq_len, job.batch_size, job.text_key) == (3, 64, 16, "text")
    assert (job.train, job.epochs, job.weights) == ((), None, None)
    assert [source.prefix for source in job.val] == ["data/datasets/two/a/"]
    assert "measures fox-1 as saved at step 2" in err.getvalue()
    assert "2.5" in out.getvalue()
    assert "resume" not in out.getvalue()
    assert plan_of(job).task == "evaluate"


def test_hold_outs_first_and_limits_of_its_own_only(trained):
    project, manager, target, _, err = trained
    add_checkpoint(project, "fox-1")
    manager.evaluate(Said(data=ONE, run="fox-1", max_samples=10, batch_size={"scale": 0.5}))
    job = target.jobs[-1]
    assert [source.prefix for source in job.val] == ["data/datasets/one/val-"]
    assert (job.max_samples, job.epochs, job.batch_size) == (10, None, 8)
    assert "every sample once, at most 10 samples" in err.getvalue()


def test_an_evaluation_is_no_run_to_go_on_from(trained):
    project, manager, target, _, _ = trained
    add_checkpoint(project, "fox-1")
    manager.evaluate(Said(data=ONE, name="eval-1"))
    with pytest.raises(UsageError, match="is an evaluation"):
        manager.evaluate(Said(data=ONE, run="eval-1"))
    with pytest.raises(UsageError, match="is an evaluation"):
        manager.resume(Said(run="eval-1", max_steps=5))
    manager.again(Said())  # the last run that trained
    assert not target.jobs[-1].evaluate_only
    manager.evaluate(Said(data=ONE, model="quark"))
    assert target.jobs[-1].init_from == str(project / "runs/fox-1")
    with pytest.raises(DataNotFoundError, match="model other"):
        manager.evaluate(Said(data=ONE, model="other"))


def test_nothing_is_rented_because_its_run_was_on_a_rented_machine(project):
    rented: dict[str, Any] = {"where": "vast", "max_price_hour": 2.0, "max_cost": 15.0}
    manager, target, *_ = make_manager(project, RecordingTarget(EVALUATED), yes=True)
    manager.train(Said(data=ONE, name="fox-1", **rented))
    assert target.jobs[0].remote.terms.max_cost == 15.0
    add_checkpoint(project, "fox-1")
    assert manager.evaluate(Said(data=ONE, run="fox-1")) == 0
    assert [job.remote is None for job in target.jobs] == [False, True]
    with pytest.raises(TermsNeededError):  # it is another sum of money
        manager.evaluate(Said(data=ONE, run="fox-1", where="vast"))
    assert manager.evaluate(Said(data=ONE, run="fox-1", **{**rented, "max_cost": 1.0})) == 0
    assert target.jobs[-1].remote.terms.max_cost == 1.0


def test_a_plan_starts_nothing(trained):
    project, manager, target, out, _ = trained
    add_checkpoint(project, "fox-1")
    before = len(target.jobs)
    assert manager.evaluate(Said(data=ONE, plan_only=True)) == 0
    assert len(target.jobs) == before
    assert "evaluate quark" in out.getvalue()
