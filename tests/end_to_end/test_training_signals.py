"""Asked to stop, a run saves and leaves nothing behind; orphaned, it does the same by itself."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brain.ml.process_group import LAUNCHER_VARIABLE, World
from brain.ml.stop_request import StopRequest
from brain.ml.train import train
from brain.ml.training_job import DataSource
from resource_manager.launch_targets.local import LAUNCH_TARGET
from resource_manager.runs import read_events, read_run
from tests.fakes import Reply, Request, StubS3
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
from tools_utilities.object_store import StoreSpec
from tools_utilities.process_identity import ProcessIdentity, descendants, identify

FOREVER = 1_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreSpec:
    return write_shards(tmp_path_factory.mktemp("data"), text_shards())


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(signal.SIGINT, 130, "interrupt"), (signal.SIGTERM, 143, "terminate")],
)
def test_signal_saves_the_last_finished_step(
    tmp_path: Path,
    store: StoreSpec,
    training_forks: ForkServer,
    number: signal.Signals,
    code: int,
    reason: str,
):
    run_dir = tmp_path / "run"
    pid = training_forks.start(make_job(run_dir, store, max_steps=FOREVER))
    wait_for_step(run_dir, 3)
    os.kill(pid, number)
    assert training_forks.wait(pid, 10) == code
    kinds = [event["event"] for event in read_events(run_dir)][-3:]
    assert kinds == ["stopping", "checkpoint", "end"]
    end = events(run_dir, "end")[0]
    assert (end["reason"], end["exit_code"]) == (reason, code)
    assert end["step"] == len(losses(run_dir))
    assert (run_dir / "checkpoints/latest").read_text().strip() == f"step-{end['step']:08d}"
    info = read_run(run_dir)
    assert (info.status, info.reason, info.checkpoint_step) == ("interrupted", reason, end["step"])
    # A start after it works without a manual step.
    again = make_job(run_dir, store, max_steps=end["step"] + 2, resume="latest")
    assert training_forks.run(again) == 0
    assert len(losses(run_dir)) == end["step"] + 2


class _AskedInEvaluation(StopRequest):
    """Asked to stop as soon as the run says that it evaluates."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self._run_dir = run_dir

    def check(self) -> None:
        if events(self._run_dir, "evaluating"):
            self.reason = "interrupt"
        super().check()


def test_a_stop_in_the_last_evaluation_is_a_stop_and_a_resume_makes_up_for_it(
    tmp_path: Path, store: StoreSpec
):
    run_dir = tmp_path / "run"
    job = make_job(run_dir, store, max_steps=3)
    assert train(job, World(attempt="1"), _AskedInEvaluation(run_dir)) == 130
    kinds = [event["event"] for event in read_events(run_dir)][-4:]
    assert kinds == ["evaluating", "stopping", "checkpoint", "end"]
    info = read_run(run_dir)
    assert (info.status, info.reason, info.checkpoint_step) == ("interrupted", "interrupt", 3)
    assert train_here(make_job(run_dir, store, max_steps=3, resume="latest")) == 0
    assert [event["step"] for event in events(run_dir, "eval")] == [3]
    assert len(losses(run_dir)) == 3


def test_second_interrupt_ends_at_once_without_saving(tmp_path: Path, training_forks: ForkServer):
    """The save is held up by a step that takes long: the second signal does not wait for it."""
    store = write_shards(tmp_path / "data", text_shards(records=400))
    job = make_job(tmp_path / "run", store, max_steps=FOREVER, layers=4, seq_len=512, batch_size=96)
    pid = training_forks.start(job)
    wait_for(lambda: events(tmp_path / "run", "start"))
    time.sleep(0.5)
    started = time.monotonic()
    os.kill(pid, signal.SIGINT)
    time.sleep(0.2)
    os.kill(pid, signal.SIGINT)
    assert training_forks.wait(pid, 10) == 130
    # Python hears a signal between two operations of torch, not inside one.
    assert time.monotonic() - started < 3
    assert not events(tmp_path / "run", "checkpoint")


def test_interrupt_while_waiting_for_data_ends_within_seconds(
    tmp_path: Path, training_forks: ForkServer, aws_environment: pytest.MonkeyPatch
):
    """The second shard never comes; the run has made no step, so there is nothing to save."""
    shards = text_shards()

    def stall(request: Request) -> Reply | None:
        if request.method != "GET" or "train-00001" not in request.key:
            return None
        data = shards[request.key]
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        return Reply(200, {"etag": f'"{etag}"'}, data, send_bytes=10, then="stall")

    with StubS3(shards, script=stall) as s3:
        spec = StoreSpec(uri="s3://bucket", endpoint_url=s3.url, region="us-east-1")
        job = make_job(tmp_path / "run", spec, workers=1, cache_dir=str(tmp_path / "cache"))
        keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HOME")
        pid = training_forks.start(job, **{name: os.environ[name] for name in keys})
        wait_for(lambda: [r for r in s3.sent("GET") if "train-00001" in r.key])
        below = [identify(child) for child in descendants(pid)]
        os.kill(pid, signal.SIGINT)
        assert training_forks.wait(pid, 10) == 130
        wait_for(lambda: not any(process.alive for process in below), 6)
    assert events(tmp_path / "run", "end")[0]["reason"] == "interrupt"
    assert not events(tmp_path / "run", "error")


def test_orphaned_run_saves_and_ends(tmp_path: Path, store: StoreSpec, training_forks: ForkServer):
    launcher = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    run_dir = tmp_path / "run"
    job = make_job(run_dir, store, max_steps=FOREVER)
    pid = training_forks.start(job, **{LAUNCHER_VARIABLE: str(launcher.pid)})
    wait_for_step(run_dir, 2)
    launcher.kill()
    launcher.communicate()
    assert training_forks.wait(pid, 30) == 143
    assert events(run_dir, "checkpoint")
    assert events(run_dir, "end")[0]["reason"] == "terminate"


def test_launched_run_is_out_of_the_terminals_reach_and_quiet(tmp_path: Path, store: StoreSpec):
    """A session of its own; nothing but log lines, nothing left over; the heartbeat goes on."""
    run_dir = tmp_path / "run"
    handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(make_job(run_dir, store, max_steps=FOREVER)))
    try:
        wait_for_step(run_dir, 2)
        assert os.getsid(handle.pid) == handle.pid != os.getsid(0)
        assert read_run(run_dir).status == "running"
        below = [identify(pid) for pid in (handle.pid, *descendants(handle.pid))]
        handle.interrupt()
        assert handle.wait(10) == 130
    finally:
        handle.kill()
    assert not any(process.alive for process in below)
    assert "Traceback" not in (run_dir / "log").read_text()


def test_nothing_goes_to_standard_output(tmp_path: Path, store: StoreSpec):
    job = make_job(tmp_path / "run", store, text_key="body")
    found = subprocess.run(
        [sys.executable, "-m", "brain.ml.train", f"{job.run_dir}/job.yaml"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert found.returncode == 2
    assert found.stdout == ""
    assert "records have no field body" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), ("name: [", "job.yaml"), ("name: x\nrun_dir: y\ntrain: 3", "train")],
)
def test_job_file_that_cannot_be_read_is_a_usage_error(
    tmp_path: Path, training_forks: ForkServer, content: str | None, message: str
):
    from brain.ml.training_job import TrainingJob

    run_dir = tmp_path / "run"
    run_dir.mkdir()
    if content is not None:
        (run_dir / "job.yaml").write_text(content)
    source = DataSource(store=StoreSpec(uri="file:///nowhere"), prefix="x/")
    pid = training_forks.start(TrainingJob(name="run", run_dir=str(run_dir), train=(source,)))
    assert training_forks.wait(pid) == 2
    assert message in (run_dir / "log").read_text()


def test_process_identity_tells_a_reused_pid_apart():
    own = identify(os.getpid())
    assert own.alive
    assert not ProcessIdentity(pid=own.pid, start=own.start + 1).alive
