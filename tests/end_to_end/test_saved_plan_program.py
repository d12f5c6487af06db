"""A plan kept in a file and carried out by other processes: exactly, once, or refused with exit 6."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brain.ml.training_job import load_job
from tests.projects import write_group

DATA = "data/one"


@pytest.fixture
def folder(tmp_path, aws_environment):
    write_group(tmp_path / DATA)
    (tmp_path / "quark.yaml").write_text("layers: 2\nseq_len: 64\n")
    aws_environment.chdir(tmp_path)
    aws_environment.setenv("QUARK_SEED", "11")
    return tmp_path


def quark(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quark_cli", *arguments], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip


def keep(name: str) -> dict[str, Any]:
    sentence = f"train quark with {DATA} named {name} for 2 steps, batch size 2, on cpu"
    done = quark(sentence, "--plan", "--out", "plan.json")
    assert done.returncode == 0, done.stderr
    assert not Path("runs").exists()
    kept: dict[str, Any] = json.loads(Path("plan.json").read_text())
    return kept


def test_refused_by_another_process_when_data_or_file_changed(folder):
    kept = keep("fox-1")
    shard = folder / DATA / "train-00003.jsonl"
    whole = shard.read_bytes()
    shard.write_bytes(whole + b'{"id": 1, "text": "more"}\n')
    changed = quark("--from-plan", "plan.json")
    assert changed.returncode == 6
    assert "the data changed" in changed.stderr
    assert "--plan --out" in changed.stderr
    # The content as it was; its time tells that it was written again.
    kept["job"]["lr"] = 9.0
    (folder / "plan.json").write_text(json.dumps(kept))
    edited = quark("--from-plan", "plan.json")
    assert edited.returncode == 6
    assert "edited" in edited.stderr
    (folder / "plan.json").write_text("{")
    assert quark("--from-plan", "plan.json").returncode == 6
    assert quark("--from-plan", "none.json").returncode == 2
    assert quark("--from-plan", "plan.json", "train on x.jsonl").returncode == 2
    assert not (folder / "runs").exists()


def test_carried_out_as_it_was_planned_whatever_is_set_by_then(folder, aws_environment):
    kept = keep("fox-2")
    # Another machine's settings: none of them is in the plan.
    (folder / "quark.yaml").write_text("layers: 4\nlr: 0.5\nout_dir: elsewhere\n")
    aws_environment.setenv("QUARK_SEED", "99")
    aws_environment.setenv("QUARK_BATCH_SIZE", "7")
    done = quark("--from-plan", "plan.json")
    assert done.returncode == 0, done.stderr
    job = load_job(folder / "runs/fox-2/job.yaml")
    assert (job.layers, job.seed, job.batch_size, job.max_steps) == (2, 11, 2, 2)
    assert job.lr == kept["job"]["lr"]
    events = [
        json.loads(line) for line in (folder / "runs/fox-2/metrics.jsonl").read_text().splitlines()
    ]
    assert next(event["step"] for event in events if event["event"] == "end") == 2
    again = quark("--from-plan", "plan.json")
    assert again.returncode == 2
    assert "quark resume fox-2" in again.stderr
