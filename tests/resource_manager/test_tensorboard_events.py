"""A run's metrics as TensorBoard reads them, and the PNG that `show` leaves."""

import json
import time
from pathlib import Path

import pytest

from resource_manager.tensorboard_events import (
    LIVE,
    LiveEventFiles,
    is_written_live,
    scalars,
    write_event_files,
)
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
    folder = tmp_path / "tensorboard"
    for _ in range(2):
        assert write_event_files(tmp_path, EVENTS) == folder
    assert read_back(folder) == [
        (number, name, value) for _, number, name, value in scalars(EVENTS)
    ]


def read_back(folder: Path) -> list[tuple[int, str, float]]:
    """Return (step, tag, value) as TensorBoard's own library reads them."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    [path] = folder.iterdir()
    return [
        (event.step, value.tag, round(value.tensor.float_val[0] or value.simple_value, 6))
        for event in EventFileLoader(str(path)).Load()
        for value in event.summary.value
    ]


def wait_for(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not (folder.is_dir() and list(folder.iterdir()) and len(read_back(folder)) >= count):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_they_are_written_while_the_run_goes_on(tmp_path):
    pytest.importorskip("tensorboard")
    folder = tmp_path / "tensorboard"
    now = [0.0]
    metrics = tmp_path / "metrics.jsonl"
    earlier = [step(1, 2.0), step(2, 9.0), {"event": "start", "resumed_from_step": 1, "time": 1.0}]
    with LiveEventFiles(tmp_path, clock=lambda: now[0]) as files:
        events = [*earlier, step(2, 1.5), step(3, 1.25), EVAL]
        with metrics.open("a") as file:
            for event in events[:-2]:
                file.write(json.dumps(event) + "\n")
                file.flush()
                files.take(event)  # too early
            assert not folder.exists()
            now[0] = 10.0
            file.write(json.dumps(events[-2]) + "\n")
        files.take(events[-2])
        wait_for(folder, 6)  # read while it is being written
        assert is_written_live(tmp_path)
        files.take(EVAL)
        files.take(step(4, None))
        wait_for(folder, 8)
    assert read_back(folder) == [
        (1, "train/loss", 2.0), (1, "train/lr", 0.5), (2, "train/loss", 1.5), (2, "train/lr", 0.5),
        (3, "train/loss", 1.25), (3, "train/lr", 0.5), (2, "validation/loss", 0.75),
        (4, "train/lr", 0.5),
    ]  # fmt: skip


def test_show_leaves_the_files_of_a_run_that_is_watched(project):
    pytest.importorskip("tensorboard")
    manager, _, out, _ = make_manager(project, RecordingTarget(*EVENTS))
    manager.train(Said(data=["data/datasets/one"], name="fox-1"))  # no end: it goes on
    folder = project / "runs/fox-1/tensorboard"
    folder.mkdir()
    (folder / f"events.1{LIVE}").touch()
    assert manager.show_run(Said(run="fox-1")) == 0
    assert f"tensorboard --logdir {folder}" in out.getvalue()
    assert [path.name for path in folder.iterdir()] == [f"events.1{LIVE}"]


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
