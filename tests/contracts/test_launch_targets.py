"""Every launch target: the plan is pure, and what it says is what would be started."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brain.ml.training_job import CheckpointTarget, DataSource, Remote, RentalTerms, TrainingJob
from resource_manager.launch_places import target_of
from resource_manager.launch_target import LaunchTarget
from resource_manager.launch_targets.local import LAUNCH_TARGET as LOCAL
from tests.training import wait_for
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.plugins import load_plugins

TARGETS = load_plugins("resource_manager.launch_targets", "LAUNCH_TARGET")


TERMS = RentalTerms(max_price_hour=2.0, max_cost=15.0, image="pytorch", disk_gb=50.0)
WHERE = {
    "local": None,
    "ssh": Remote(where="ssh:gpu-box"),
    "sky": Remote(where="sky:somewhere", terms=TERMS),
    "vast": Remote(where="vast", terms=TERMS),
}
"""A place of each target."""


def _job(run_dir: Path, **changes: Any) -> TrainingJob:
    source = DataSource(store=StoreSpec(uri="s3://bucket"), prefix="d/")
    return TrainingJob(name="r", run_dir=str(run_dir), train=(source,), **changes)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("processes", [1, 4])
def test_plan_is_pure(tmp_path: Path, target: LaunchTarget, processes: int):
    saved = CheckpointTarget(store=StoreSpec(uri="s3://bucket"), prefix="saved/")
    job = _job(tmp_path / "run", processes=processes, remote=WHERE[target.name], checkpoints=saved)
    variables = dict(os.environ)
    plan = target.plan(job)
    assert plan == target.plan(job)
    assert plan.job == job
    assert list(tmp_path.iterdir()) == []
    assert dict(os.environ) == variables
    assert plan.argv[-1].endswith("/job.yaml")
    # Nobody bills what is one's own.
    assert (plan.price is not None) == (target.name in ("vast", "sky"))
    if plan.price is not None:
        assert (plan.price.dollars_per_hour, plan.price.max_dollars) == (2.0, 15.0)
        assert plan.price.max_seconds == 7.5 * 3600


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_no_secret_is_planned(
    tmp_path: Path, target: LaunchTarget, aws_environment: pytest.MonkeyPatch
):
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    saved = CheckpointTarget(store=StoreSpec(uri="s3://bucket"), prefix="saved/")
    plan = target.plan(_job(tmp_path, remote=WHERE[target.name], checkpoints=saved))
    assert secret not in repr(plan)
    assert not [name for name in plan.environment if name.startswith("AWS_")]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_target_is_found_by_the_word_before_the_colon(target: LaunchTarget):
    assert target_of("local" if target.name == "local" else f"{target.name}:somewhere") is target


def test_a_place_that_nothing_goes_to_names_those_that_something_does():
    with pytest.raises(UsageError, match="where=moon") as caught:
        target_of("moon")
    assert "local, sky, ssh" in caught.value.hint


def test_one_process_is_started_directly(tmp_path: Path):
    plan = LOCAL.plan(_job(tmp_path))
    assert plan.argv == (sys.executable, "-P", "-m", "brain.ml.train", str(tmp_path / "job.yaml"))


@pytest.mark.parametrize("changes", [{"processes": 4}, {"nodes": 2}, {"processes": 2, "nodes": 2}])
def test_several_ranks_go_through_an_agent(tmp_path: Path, changes: dict[str, int]):
    plan = LOCAL.plan(_job(tmp_path, **changes))
    agent = (sys.executable, "-P", "-m", "brain.ml.elastic_agent", str(tmp_path / "job.yaml"))
    assert plan.argv == agent
    assert plan.environment["GLOO_SOCKET_IFNAME"] == "lo"


def test_machines_that_meet_somewhere_choose_their_own_interface(tmp_path: Path):
    plan = LOCAL.plan(_job(tmp_path, nodes=2, rendezvous="first:29400"))
    assert "GLOO_SOCKET_IFNAME" not in plan.environment


@pytest.mark.parametrize(
    ("changes", "said", "hint"),
    [
        ({"processes": 3, "nodes": 2}, "32 cannot be dealt to 6 processes", "a multiple of 6"),
        ({"grad_accum": 3}, "32 cannot be dealt to 1 process in 3 micro-batches", "multiple of 3"),
        ({"processes": 4, "grad_accum": 16}, "32 cannot be dealt to 4 processes in 16", "of 64"),
        ({"parallel": "tp"}, "parallel=tp: unknown", "ddp, fsdp"),
        ({"weights": (0.5, 0.5)}, "one above 0 for each of 1 groups", "as many weights as groups"),
    ],
)
def test_settings_that_training_would_refuse_are_refused_before_the_start(
    tmp_path: Path, changes: dict[str, Any], said: str, hint: str
):
    with pytest.raises(UsageError, match=re.escape(said)) as caught:
        LOCAL.plan(_job(tmp_path, **changes))
    assert hint in caught.value.hint
    assert LOCAL.plan(_job(tmp_path, processes=4, grad_accum=8)).job.batch_size == 32


def _launch(tmp_path: Path, program: str, **changes: Any) -> Any:
    plan = LOCAL.plan(_job(tmp_path, **changes))
    argv = (sys.executable, "-c", program)
    return LOCAL.launch(msgspec.structs.replace(plan, argv=argv))


def test_handle_gives_the_exit_code_and_output_goes_to_the_log(tmp_path: Path):
    handle = _launch(tmp_path, "import sys; print('out'); sys.stderr.write('err'); sys.exit(7)")
    assert handle.wait(30) == 7
    assert handle.poll() == 7
    assert (tmp_path / "log").read_text() in {"errout\n", "out\nerr"}


def test_own_exit_code_of_a_run_beats_the_launchers(tmp_path: Path):
    program = f"""
import json, sys, time
with open({str(tmp_path / "metrics.jsonl")!r}, "w") as file:
    file.write(json.dumps({{"event": "error", "time": time.time(), "exit_code": 4}}) + "\\n")
sys.exit(1)"""
    assert _launch(tmp_path, program).wait(30) == 4


def test_events_of_an_earlier_start_do_not_count(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"event":"error","time":5.0,"exit_code":4}\n')
    assert _launch(tmp_path, "raise SystemExit(1)").wait(30) == 1


@pytest.mark.parametrize(("ask", "code"), [("interrupt", 130), ("terminate", 143), ("kill", 137)])
def test_run_that_dies_of_what_it_was_asked_gives_the_right_code(
    tmp_path: Path, ask: str, code: int
):
    ready = tmp_path / "ready"
    program = f"import signal,time; signal.signal(2, signal.SIG_DFL); open({str(ready)!r},'w'); time.sleep(60)"
    handle = _launch(tmp_path, program)
    wait_for(ready.exists)
    assert handle.poll() is None
    with pytest.raises(TimeoutError):
        handle.wait(0.05)
    getattr(handle, ask)()
    assert handle.wait(10) == code


def test_second_interrupt_kills(tmp_path: Path):
    ready = tmp_path / "ready"
    program = f"import signal,time; signal.signal(2, signal.SIG_IGN); open({str(ready)!r},'w'); time.sleep(60)"
    handle = _launch(tmp_path, program)
    wait_for(ready.exists)
    handle.interrupt()
    handle.interrupt()
    assert handle.wait(10) == 130


@pytest.mark.parametrize("detach", ["yes", "no"])
def test_detached_run_does_not_know_its_launcher(tmp_path: Path, detach: str):
    program = "import os; print('pid', os.environ.get('QUARK_LAUNCHER_PID'))"
    assert _launch(tmp_path, program, detach=detach == "yes").wait(30) == 0
    expected = "None" if detach == "yes" else str(os.getpid())
    assert (tmp_path / "log").read_text() == f"pid {expected}\n"


def test_launched_process_has_no_terminal_and_its_own_session(tmp_path: Path):
    program = "import os; print(os.getsid(0) == os.getpid(), os.read(0, 1))"
    assert _launch(tmp_path, program).wait(30) == 0
    assert (tmp_path / "log").read_text() == "True b''\n"
