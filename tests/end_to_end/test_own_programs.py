"""`models:` of quark.yaml: the user's own program gets the job file and its streams, and ends like any run."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from brain.ml.training_job import TrainingJob
from knowledge_hub.hub import KnowledgeHub
from tests.end_to_end.test_own_models import again, job_of
from tests.projects import RecordingTarget, make_manager, write_group
from tests.training import events, wait_for
from tools_utilities.errors import UsageError

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
    import json, sys, time
    from pathlib import Path
    from brain.ml.own_script import open_run

    run = open_run()
    if run.job.seed == 13:
        sys.exit("it does not like 13")
    [stream] = run.train
    seen = []
    for step, sample in enumerate(stream, start=1):
        seen.append(sample["id"])
        if step % 100 == 0:
            run.log(step // 100, 1 / step, samples=step)
    Path("seen.json").write_text(json.dumps(seen))
    while run.job.seed == 14:
        time.sleep(0.05)
"""
SENTENCE = "train mine with data/datasets/words"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    command = json.dumps(f"{sys.executable} my_train.py --flag")
    (tmp_path / "quark.yaml").write_text(f"device: cpu\nmodels:\n  mine: {{command: {command}}}\n")
    (tmp_path / "my_train.py").write_text(textwrap.dedent(PROGRAM))
    write_group(tmp_path / "data/datasets/words/train")
    return tmp_path


def start(job: TrainingJob) -> "subprocess.Popen[bytes]":
    argv = [sys.executable, "-m", "brain.ml.train", f"{job.run_dir}/job.yaml"]
    with (Path(job.run_dir) / "log").open("ab") as log:
        return subprocess.Popen(
            argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=log, stderr=log
        )


def test_it_gets_its_job_and_every_sample_once(project: Path):
    job = job_of(project, SENTENCE)
    assert job.command == (sys.executable, "my_train.py", "--flag")
    assert job.project_dir == str(project)
    with start(job) as process:
        assert process.wait(60) == 0
    seen = json.loads((project / "seen.json").read_text())
    # Neighbouring shards of this data share ids: 8 x 60 rows.
    assert len(seen) == 8 * 60
    assert seen != sorted(seen)
    run_dir = Path(job.run_dir)
    [end] = events(run_dir, "end")
    assert (end["reason"], end["exit_code"], end["step"], end["samples"]) == ("done", 0, 4, 400)
    assert [event["step"] for event in events(run_dir, "step")] == [1, 2, 3, 4]


def test_its_failure_is_the_run_s(project: Path):
    job = again(job_of(project, SENTENCE), "bad", seed=13)
    with start(job) as process:
        assert process.wait(60) == 1
    [error] = events(Path(job.run_dir), "error")
    assert (error["kind"], error["exit_code"]) == ("CommandFailedError", 1)
    assert "it does not like 13" in (Path(job.run_dir) / "log").read_text()


def test_a_signal_reaches_it_and_the_run_ends_as_asked(project: Path):
    job = again(job_of(project, SENTENCE), "long", seed=14)
    with start(job) as process:
        wait_for((project / "seen.json").exists)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    [end] = events(Path(job.run_dir), "end")
    assert (end["reason"], end["exit_code"]) == ("terminate", 143)


@pytest.mark.parametrize(
    ("command", "said", "message"),
    [
        ("nosuchprogram x.py", SENTENCE, "there is no program nosuchprogram"),
        (None, SENTENCE.replace("mine", "nobody"), "model nobody: no model"),
    ],
)
def test_what_is_not_there_is_refused_before_anything_is_made(
    project: Path, command: str | None, said: str, message: str
):
    if command:
        (project / "quark.yaml").write_text(f"models:\n  mine: {{command: {command}}}\n")
    manager, target, _, _ = make_manager(project, RecordingTarget())
    with pytest.raises(UsageError, match=message):
        manager.train(KnowledgeHub().read(said))
    assert not target.jobs
