"""Run folders: names, states, listing and stopping."""

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from brain.ml.process_group import host_name
from brain.ml.run_files import RunProcess, write_process
from brain.ml.training_job import DataSource, TrainingJob
from resource_manager.runs import (
    create_run,
    find_run,
    list_runs,
    new_run_name,
    newest_run,
    read_run,
    step_events,
    stop_run,
    wait_stopped,
    write_job,
)
from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.process_identity import ProcessIdentity, identify, this_machine

NOBODY = ProcessIdentity(pid=2**22 - 3, start=1)


def _run(out_dir: Path, name: str | None = None, *lines: dict[str, Any]) -> Path:
    folder = create_run(out_dir, name=name, source=random.Random(1))
    source = DataSource(store=StoreSpec(uri="memory://m"), prefix="")
    write_job(TrainingJob(name=folder.name, run_dir=str(folder), train=(source,)))
    if lines:
        text = "".join(json.dumps({"time": time.time(), **line}) + "\n" for line in lines)
        (folder / "metrics.jsonl").write_text(text)
    return folder


def _process(folder: Path, *ranks: ProcessIdentity, host: str | None = None) -> None:
    write_process(
        folder,
        RunProcess(host=host or host_name(), parent_pid=1, ranks=ranks, started_at=time.time() - 1),
    )


def test_names_are_pronounceable_unique_and_follow_the_source():
    names: list[str] = []
    source = random.Random(3)
    for _ in range(200):
        names.append(new_run_name(names, source))
    assert len(set(names)) == 200
    assert all(name.split("-")[0].isalpha() and name.split("-")[1].isdigit() for name in names)
    assert new_run_name((), random.Random(3)) == names[0]


def test_names_never_run_out():
    class Taken:
        def __contains__(self, name: object) -> bool:
            return int(str(name).split("-")[1]) < 100

    assert int(new_run_name(Taken(), random.Random(0)).split("-")[1]) >= 100


def test_job_file_is_for_its_owner_alone(tmp_path: Path):
    folder = _run(tmp_path / "runs", "mine")
    assert stat.S_IMODE((folder / "job.yaml").stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["", ".", "..", "a/b"])
def test_name_that_is_no_folder_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UsageError):
        create_run(tmp_path, name=name, source=random.Random(0))


def test_name_that_is_taken_is_refused(tmp_path: Path):
    _run(tmp_path, "mine")
    with pytest.raises(UsageError, match="mine exists"):
        create_run(tmp_path, name="mine", source=random.Random(0))


START = {"event": "start", "total_steps": 9}
STEP = {"event": "step", "step": 4, "epoch": 0.5, "loss": 2.5, "samples": 40, "tokens": 400}
END = {
    "event": "end",
    "reason": "max_steps",
    "exit_code": 0,
    "step": 9,
    "loss": 2.0,
    "val_loss": 2.1,
}


@pytest.mark.parametrize(
    ("lines", "status", "reason"),
    [
        ((START, STEP, END), "finished", "max_steps"),
        ((START, STEP, {**END, "reason": "interrupt", "exit_code": 130}), "interrupted", "interrupt"),
        ((START, STEP, {"event": "error", "message": "disk full", "exit_code": 1}), "failed", "disk full"),
        ((START, STEP, {"event": "stopping", "reason": "interrupt"}), "interrupted", None),
        ((START, STEP), "lost", None),
    ],
)  # fmt: skip
def test_state_is_told_from_the_last_event_and_the_processes(
    tmp_path: Path, lines: tuple[dict[str, Any], ...], status: str, reason: str | None
):
    folder = _run(tmp_path, "r", *lines)
    _process(folder, NOBODY)
    info = read_run(folder)
    assert (info.status, info.reason) == (status, reason)
    assert info.step == (9 if status in {"finished", "interrupted"} and "step" in lines[-1] else 4)
    assert info.total_steps == 9


def test_run_with_a_living_rank_is_running(tmp_path: Path):
    folder = _run(tmp_path, "r", START, STEP)
    _process(folder, NOBODY, identify(os.getpid()))
    assert read_run(folder).status == "running"


def test_resumed_run_is_running_although_it_ended_before(tmp_path: Path):
    folder = _run(tmp_path, "r", {**START, "time": 5.0}, {**END, "time": 6.0})
    _process(folder, identify(os.getpid()))
    assert read_run(folder).status == "running"


def test_run_of_another_machine_is_judged_by_its_heartbeat(tmp_path: Path):
    folder = _run(tmp_path, "r", START, STEP)
    _process(folder, NOBODY, host="elsewhere")
    assert read_run(folder).status == "running"
    os.utime(folder / "metrics.jsonl", (0, time.time() - 60))
    assert read_run(folder).status == "lost"
    with pytest.raises(UsageError, match="elsewhere"):
        stop_run(folder)


def test_new_run_has_a_minute_to_start(tmp_path: Path):
    folder = _run(tmp_path, "r")
    assert read_run(folder).status == "running"
    assert read_run(folder, clock=lambda: time.time() + 120).status == "lost"


def test_long_metrics_are_read_at_both_ends(tmp_path: Path):
    steps = [{**STEP, "step": number, "pad": "x" * 400} for number in range(1, 400)]
    folder = _run(tmp_path, "r", START, *steps)
    assert (read_run(folder).step, read_run(folder).total_steps) == (399, 9)


def test_repeated_steps_count_once_the_last_time(tmp_path: Path):
    folder = _run(
        tmp_path, "r", {**STEP, "step": 1}, {**STEP, "step": 2}, {**STEP, "step": 2, "loss": 1.0}
    )
    assert [(event["step"], event["loss"]) for event in step_events(folder)] == [(1, 2.5), (2, 1.0)]


def test_listing_is_newest_first_and_finds_by_name(tmp_path: Path):
    for age, name in enumerate(("newest", "middle", "oldest")):
        folder = _run(tmp_path, name, START, STEP, END)
        os.utime(folder / "job.yaml", (0, time.time() - age * 10))
    (tmp_path / "not-a-run").mkdir()
    assert [info.name for info in list_runs(tmp_path)] == ["newest", "middle", "oldest"]
    assert newest_run(tmp_path).name == "newest"
    assert find_run(tmp_path, "middle").name == "middle"
    with pytest.raises(DataNotFoundError) as caught:
        find_run(tmp_path, "midle")
    assert "middle" in caught.value.hint
    with pytest.raises(DataNotFoundError):
        find_run(tmp_path, "../middle")


def test_no_runs_is_said(tmp_path: Path):
    assert list_runs(tmp_path / "none") == []
    with pytest.raises(DataNotFoundError, match="no runs"):
        newest_run(tmp_path / "none")


def test_only_the_ranks_of_this_machine_are_asked_to_stop(tmp_path: Path):
    """Rank 0 is elsewhere and its number is somebody's here: nobody but rank 1 gets a signal."""
    folder = _run(tmp_path, "r", START)
    children = [_sleeper(), _sleeper()]
    elsewhere = ProcessIdentity(pid=children[0].pid, machine=this_machine() ^ 1)
    try:
        _process(folder, elsewhere, identify(children[1].pid), host="elsewhere")
        assert read_run(folder).status == "running"
        stop_run(folder, number=signal.SIGTERM)
        assert children[1].wait(10) == -signal.SIGTERM
        assert children[0].poll() is None
        assert wait_stopped(folder, 5)
        _process(folder, elsewhere, host="elsewhere")
        with pytest.raises(UsageError, match="is on elsewhere"):
            stop_run(folder)
        _process(folder, elsewhere)  # a container of the same name
        with pytest.raises(UsageError, match="not running"):
            stop_run(folder)
        assert children[0].poll() is None
    finally:
        _end(children)


def test_between_two_starts_the_agent_is_asked(tmp_path: Path):
    lost = {"event": "error", "message": "rank 1 was killed", "exit_code": 1}
    folder = _run(tmp_path, "r", START, lost)
    agent = _sleeper()
    try:
        process = RunProcess(
            host=host_name(), parent_pid=agent.pid, ranks=(NOBODY,), agent=identify(agent.pid),
            started_at=time.time() - 1,
        )  # fmt: skip
        write_process(folder, process)
        assert read_run(folder).status == "running"
        assert not wait_stopped(folder, 0.05)
        stop_run(folder, number=signal.SIGTERM)
        assert agent.wait(10) == -signal.SIGTERM
        assert wait_stopped(folder, 5)
        assert read_run(folder).status == "failed"
    finally:
        _end([agent])


def _sleeper() -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def _end(children: "list[subprocess.Popen[bytes]]") -> None:
    for child in children:
        child.kill()
        child.wait()


def test_stop_asks_every_rank_and_waits(tmp_path: Path):
    folder = _run(tmp_path, "r", START)
    with pytest.raises(UsageError, match="not running"):
        stop_run(folder)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        _process(folder, identify(child.pid), NOBODY)
        assert not wait_stopped(folder, 0.1)
        stop_run(folder, number=signal.SIGTERM)
        assert child.wait(10) == -signal.SIGTERM
        assert wait_stopped(folder, 5)
    finally:
        child.kill()
        child.wait()
