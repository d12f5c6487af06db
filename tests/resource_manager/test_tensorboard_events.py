"""A run's metrics as TensorBoard reads them, and the PNG that `show` leaves."""

import json

import pytest

from resource_manager.tensorboard_events import scalars, write_event_files
from tests.projects import END, RecordingTarget, Said, make_manager


def step(number: int, loss: float | None) -> dict[str, object]:
    return {"event": "step", "time": 100.0 + number, "step": number, "loss": loss, "lr": 0.5}


EVAL = {"event": "eval", "time": 103.0, "step": 2, "loss": 0.75}
EVENTS = [step(1, 2.0), step(2, 9.0), step(2, 1.5), step(3, None), EVAL]


def test_of_a_repeated_step_the_last_counts():
    assert list(scalars(EVENTS)) == [
        (101.0, 1, "train/loss", 2.0), (101.0, 1, "train/lr", 0.5),
        (102.0, 2, "train/loss", 1.5), (102.0, 2, "train/lr", 0.5),
        (103.0, 3, "train/lr", 0.5), (103.0, 2, "validation/loss", 0.75),
    ]  # fmt: skip


def test_tensorboard_reads_them_and_writing_again_replaces_them(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    folder = tmp_path / "tensorboard"
    for _ in range(2):
        assert write_event_files(tmp_path, EVENTS) == folder
    [path] = folder.iterdir()
    found = [
        (event.step, value.tag, round(value.tensor.float_val[0] or value.simple_value, 6))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]
    assert found == [(number, name, value) for _, number, name, value in scalars(EVENTS)]


def test_nothing_is_written_without_steps(tmp_path):
    assert write_event_files(tmp_path, [END]) is None
    assert list(tmp_path.iterdir()) == []


def test_show_leaves_both(project):
    pytest.importorskip("tensorboard")
    pytest.importorskip("matplotlib")
    events = [json.loads(json.dumps(event)) for event in EVENTS]
    manager, target, out, _ = make_manager(project, RecordingTarget(*events, END))
    manager.train(Said(data=["data/datasets/one"], name="fox-1"))
    assert manager.show_run(Said(run="fox-1")) == 0
    run_dir = project / "runs/fox-1"
    assert (run_dir / "plots/loss.png").read_bytes().startswith(b"\x89PNG")
    assert f"tensorboard --logdir {run_dir}/tensorboard" in out.getvalue()
    assert len(list((run_dir / "tensorboard").iterdir())) == 1
    assert target.jobs
