"""Experiment trackers: what they are told of, by their own libraries, and what becomes of their failures."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from brain.ml import tracking
from brain.ml.tracker import Figures
from brain.ml.tracker_processes import TrackerProcesses, check_trackers
from brain.ml.training_job import DataSource, TrainingJob
from resource_manager.job_settings import job_fields
from resource_manager.repeating import settings_of_job
from tests.training import events, make_job, text_shards, train_here, write_shards
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.settings import load_settings

END = {"event": "end", "time": 5.0, "exit_code": 130, "step": 3}


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"event": "step", "time": 1.0 + number, "step": number, "loss": 2.0 / number, **more}


class Kept:
    """A tracker that keeps what it is told."""

    id = "kept"

    def __init__(self) -> None:
        self.figures: list[Figures] = []

    def log(self, figures: Any) -> None:
        self.figures += figures

    def close(self, exit_code: int) -> None:
        raise NotImplementedError


def write(path: Path, *lines: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def test_steps_and_evaluations_are_figures_and_nothing_else_is():
    told = tracking.figures_in(
        [
            {"event": "start", "time": 0.0, "run": "fox-1"},
            step(1, lr=None, grad_norm=0.5, wait_cause="store", step_seconds=float("nan")),
            {"event": "eval", "time": 4.0, "step": 1, "loss": 3.0, "accuracy": 0.5, "samples": 8},
            END,
        ]
    )
    assert told == [
        Figures(2.0, 1, {"train/loss": 2.0, "train/grad_norm": 0.5}),
        Figures(4.0, 1, {"validation/loss": 3.0, "validation/accuracy": 0.5}),
    ]


def test_a_run_is_followed_from_where_its_start_began_to_its_end(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, step(1), {**END, "step": 1})
    begun = path.stat().st_size
    kept, looks = Kept(), iter([[step(2)], [step(3), END]])
    with path.open("a") as file:
        file.write('{"event": "st')  # torn by a start that was killed

    def sleep(_seconds: float) -> None:
        with path.open("a") as file:
            file.write("\n")
        write(path, *next(looks))

    assert tracking.follow(path, begun, kept, lambda: True, sleep) == 130
    assert [one.step for one in kept.figures] == [2, 3]


def test_a_writer_that_vanishes_ends_it_after_its_last_words(tmp_path):
    path = tmp_path / "metrics.jsonl"
    write(path, step(1))
    kept = Kept()
    assert tracking.follow(path, 0, kept, lambda: False) == tracking.VANISHED
    assert [one.step for one in kept.figures] == [1]


def test_the_job_is_told_without_places_and_without_secrets():
    store = StoreSpec(uri="s3://b", endpoint_url="https://me:hunter2hunter2@host/")
    job = TrainingJob(
        name="fox-1", run_dir="/home/me/runs/fox-1", cache_dir="/home/me/cache", lr=0.5,
        train=(DataSource(store=store, prefix="d/"),), track=("wandb",),
    )  # fmt: skip
    told = tracking.config_of(job)
    assert told["lr"] == 0.5
    assert told["version_python"].startswith("3.")
    assert "/home/me" not in json.dumps(told)
    assert "hunter2" not in json.dumps(told)
    assert all(isinstance(value, str | int | float | bool) for value in told.values())


def test_a_tracker_that_is_unknown_or_not_installed_is_refused_before_anything_is_made(
    tmp_path, monkeypatch
):
    (tmp_path / "quark.yaml").write_text("")
    with pytest.raises(UsageError, match=r"track=neptune") as caught:
        job_fields(load_settings(start_dir=tmp_path, overrides={"track": ["neptune"]}))
    assert "mlflow, wandb" in caught.value.hint
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match="wandb is not installed") as caught:
        check_trackers(["wandb"])
    assert "quark-launcher[wandb]" in caught.value.hint


def test_again_keeps_the_trackers():
    job = TrainingJob(name="fox-1", run_dir="/r", train=(), track=("wandb", "mlflow"))
    assert settings_of_job(job)["track"] == ["wandb", "mlflow"]


BROKEN = """
raise RuntimeError("no key: api_key=abcdefghijklmnop")
"""


@pytest.fixture
def broken_library(tmp_path, monkeypatch):
    """A `wandb` that cannot be imported, seen by the tracker's process alone."""
    folder = tmp_path / "libraries"
    (folder / "wandb").mkdir(parents=True)
    (folder / "wandb/__init__.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *sys.path]))


def test_a_tracker_that_fails_is_said_once_and_the_run_goes_on(tmp_path, broken_library):
    store = write_shards(tmp_path / "data", text_shards())
    job = make_job(tmp_path / "fox-1", store, max_steps=60, track=("wandb",), val=())
    assert train_here(job) == 0
    run_dir = tmp_path / "fox-1"
    assert len(events(run_dir, "step")) == 60
    said = [event["message"] for event in events(run_dir, "warning")]
    assert len(said) <= 1  # a run that ended sooner has it in its log
    told: list[str] = []
    processes = TrackerProcesses(job, told.append)
    processes.close(60)
    assert len(told) == 1
    assert told[0].startswith("wandb: no key: ")
    assert told[0].endswith("; the run goes on without it")
    assert "abcdefghijklmnop" not in told[0]
    assert not (run_dir / ".tracker-wandb").exists()


def history_of(run: Path) -> list[dict[str, Any]]:
    """Return what Weights & Biases keeps of an offline run, read by its own messages."""
    from wandb.proto import wandb_internal_pb2 as messages

    data, at, found, parts = run.read_bytes(), 7, [], b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:  # the rest of a block
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or a last part
            record = messages.Record()
            record.ParseFromString(parts)
            parts = b""
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                found.append(
                    {one.key or one.nested_key[0]: json.loads(one.value_json) for one in items}
                )
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_weights_and_biases_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("WANDB_API_KEY", "0123456789abcdef" * 5)
    store = write_shards(tmp_path / "data", text_shards())
    job = make_job(tmp_path / "fox-1", store, max_steps=5, track=("wandb",))
    assert train_here(job) == 0
    [kept] = (tmp_path / "fox-1/wandb").glob("offline-run-*/run-*.wandb")
    told = history_of(kept)
    losses = {one["step"]: one["train/loss"] for one in told if "train/loss" in one}
    assert losses == {e["step"]: e["loss"] for e in events(tmp_path / "fox-1", "step")}
    assert any("validation/loss" in one for one in told)
    files = [path for path in (tmp_path / "fox-1").rglob("*") if path.is_file()]
    assert not [path for path in files if b"0123456789abcdef" in path.read_bytes()]
    assert events(tmp_path / "fox-1", "warning") == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the library's own libraries
def test_mlflow_keeps_a_run_and_goes_on_with_it(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    store = write_shards(tmp_path / "data", text_shards())
    job = make_job(tmp_path / "fox-1", store, max_steps=5, track=("mlflow",))
    assert train_here(job) == 0
    more = make_job(tmp_path / "fox-1", store, max_steps=8, track=("mlflow",), resume="latest")
    assert train_here(more) == 0
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    [experiment] = [one for one in client.search_experiments() if one.name == "quark"]
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("fox-1", "FINISHED")
    assert run.data.params["lr"] == "0.003"
    kept = client.get_metric_history(run.info.run_id, "train/loss")
    assert [(one.step, one.value) for one in kept] == [
        (event["step"], event["loss"]) for event in events(tmp_path / "fox-1", "step")
    ]
    assert client.get_metric_history(run.info.run_id, "validation/loss")
