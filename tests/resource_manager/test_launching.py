"""Launching: nothing is made of a job that the target refuses; what is said of a run that was stopped."""

import io
import os
import signal

import pytest

from brain.ml.training_job import TrainingJob
from resource_manager.launch_target import LaunchPlan
from resource_manager.launching import start_run
from tests.projects import END, EndedRun, RecordingTarget, Said, make_manager, write_group
from tools_utilities.console import Console, Surroundings
from tools_utilities.errors import UsageError

START = {"event": "start", "run": "fox-1", "total_steps": 9, "resumed_from_step": None, "time": 1.0}
SAVED = {"event": "checkpoint", "step": 5, "path": "s3://b/x", "seconds": 0.1, "time": 1.5}
STOPPED = {**END, "reason": "interrupt", "exit_code": 130, "step": 5}


@pytest.fixture
def project(tmp_path, aws_environment):
    write_group(tmp_path / "data/one")
    (tmp_path / "quark.yaml").write_text("layers: 1\ndevice: cpu\n")
    aws_environment.chdir(tmp_path)
    return tmp_path


def trained(project, *events, code, target=RecordingTarget) -> tuple[int, str, str]:
    """Return the exit code of a first start, and what it wrote to both streams."""
    manager, _, out, err = make_manager(project, target(*events, code=code))
    ended = manager.train(Said(data=["data/one"], name="fox-1", max_steps=9))
    return ended, out.getvalue(), err.getvalue()


class _Refusing(RecordingTarget):
    """As the local target, where a batch cannot be dealt to all processes."""

    def plan(self, job: TrainingJob) -> LaunchPlan:
        raise UsageError(f"batch_size={job.batch_size} cannot be dealt to 6 processes")


def test_a_job_that_the_target_refuses_leaves_no_run(project):
    with pytest.raises(UsageError, match="cannot be dealt"):
        trained(project, code=0, target=_Refusing)
    assert not list(project.glob("runs/*"))


def test_a_run_stopped_before_its_first_step_has_saved_nothing(project):
    code, _, err = trained(project, START, {**STOPPED, "step": 0}, code=130)
    assert code == 130
    assert "stopped before the first step; nothing to save" in err
    assert "quark delete fox-1" in err


@pytest.mark.parametrize("started", [(), ({**START, "resumed_from_step": 5},)])
def test_a_resumed_run_stopped_before_another_step_still_has_what_was_saved(project, started):
    """Such as in its last evaluation, or before it has begun at all."""
    code, _, err = trained(project, START, SAVED, STOPPED, code=130)
    assert code == 130
    assert "fox-1: saved step 5" in err
    manager, _, _, err = make_manager(project, RecordingTarget(*started, STOPPED, code=130))
    assert manager.resume(Said(run="fox-1")) == 130
    assert "fox-1: stopped before another step; step 5 is saved" in err.getvalue()
    assert "quark resume fox-1" in err.getvalue()
    assert "delete" not in err.getvalue()


class _Late(EndedRun):
    """A run that ends by itself while Ctrl-C is on its way."""

    def poll(self) -> int | None:
        if not hasattr(self, "asked"):
            os.kill(os.getpid(), signal.SIGINT)
            return None
        return self.code

    def interrupt(self) -> None:
        self.asked = True


class _EndsByItself(RecordingTarget):
    def launch(self, plan: LaunchPlan) -> _Late:
        super().launch(plan)
        return _Late(self.code)


def test_a_run_that_ended_before_it_heard_of_a_signal_has_ended(project):
    code, out, err = trained(project, START, SAVED, END, code=0, target=_EndsByItself)
    assert code == 0
    assert "fox-1  ended: done" in out
    assert "nothing to save" not in out + err


@pytest.mark.parametrize("evaluates", [False, True])
def test_only_a_run_that_saves_says_that_it_is_saving(project, evaluates):
    folder = project / "runs/fox-1"
    folder.mkdir(parents=True)
    err = io.StringIO()
    console = Console(Surroundings(), stdin=io.StringIO(), stdout=io.StringIO(), stderr=err)
    job = TrainingJob(name="fox-1", run_dir=str(folder), train=(), evaluate_only=evaluates)
    target = _EndsByItself(START, {**STOPPED, "step": 0}, code=130)
    assert start_run(job, None, target, console) == 130
    said = err.getvalue()
    assert ("Stopping. Ctrl-C again stops at once." in said) is evaluates
    assert ("Saving, then stopping." in said) is not evaluates
    assert ("quark again fox-1" in said) is evaluates
    assert ("quark resume fox-1" in said) is not evaluates
