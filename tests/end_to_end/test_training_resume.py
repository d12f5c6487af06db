"""A run that was stopped and goes on gives the very losses of one that was not."""

import os
import random
import shutil
import signal
from pathlib import Path

import msgspec
import pytest

from brain.ml.checkpoint_files import Complete, check, publish, record_of
from brain.ml.training_job import CheckpointTarget, Every, TrainingJob
from tests.training import (
    ForkServer,
    events,
    losses,
    make_job,
    text_shards,
    train_here,
    wait_for_step,
    write_shards,
)
from tools_utilities.object_store import StoreSpec

STEPS = 30


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreSpec:
    # About 12 steps an epoch: the run crosses two borders.
    return write_shards(tmp_path_factory.mktemp("data"), text_shards())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, store: StoreSpec) -> Path:
    """An uninterrupted run, with a checkpoint of every step."""
    run_dir = tmp_path_factory.mktemp("whole")
    assert train_here(_job(run_dir, store, checkpoint_every=Every(steps=1), keep=STEPS)) == 0
    assert len(losses(run_dir)) == STEPS
    return run_dir


def _job(run_dir: Path, store: StoreSpec, **changes: object) -> TrainingJob:
    return make_job(run_dir, store, **{"max_steps": STEPS, **changes})


def _left_at(whole: Path, run_dir: Path, *steps: int) -> Path:
    """Make a run that was killed right after its checkpoint of the last of `steps`."""
    for step in steps:
        name = f"checkpoints/step-{step:08d}"
        shutil.copytree(whole / name, run_dir / name)
    return run_dir


def _border(whole: Path) -> int:
    """Return the last step of epoch 0."""
    return max(int(event["step"]) for event in events(whole, "step") if event["epoch"] < 1)


def _figures(run_dir: Path) -> list[tuple[object, ...]]:
    names = ("step", "epoch", "loss", "lr", "grad_norm", "samples", "tokens")
    return [tuple(event[name] for name in names) for event in events(run_dir, "step")]


@pytest.mark.parametrize("where", [1, 7, "border", "after border", STEPS - 1])
def test_resume_continues_the_very_same_steps(
    tmp_path: Path, store: StoreSpec, whole: Path, where: int | str
):
    border = _border(whole)
    step = {"border": border, "after border": border + 1}.get(str(where)) or int(where)
    run_dir = _left_at(whole, tmp_path / "run", step)
    assert train_here(_job(run_dir, store, resume="latest")) == 0
    assert _figures(run_dir) == _figures(whole)[step:]
    assert events(run_dir, "end")[0]["val_loss"] == events(whole, "end")[0]["val_loss"]


def test_checkpoint_between_an_epochs_last_step_and_its_end_resumes_exactly(
    tmp_path: Path, store: StoreSpec, whole: Path
):
    """The stream goes on to the next epoch by itself there; it must be ended once, not skipped."""
    border = _border(whole)
    run_dir = _left_at(whole, tmp_path / "run", border)
    _put_back_before_the_end(run_dir / f"checkpoints/step-{border:08d}")
    assert train_here(_job(run_dir, store, resume="latest")) == 0
    assert _figures(run_dir) == _figures(whole)[border:]


def test_killed_at_five_random_moments_and_resumed_the_losses_are_the_same(
    tmp_path: Path, store: StoreSpec, whole: Path, training_forks: ForkServer
):
    run_dir = tmp_path / "run"
    source = random.Random(int.from_bytes(os.urandom(4)))
    job = _job(run_dir, store, checkpoint_every=Every(steps=2), resume="auto")
    moments = sorted(source.sample(range(1, STEPS - 1), 5))
    for moment in moments:
        pid = training_forks.start(job)
        wait_for_step(run_dir, moment)
        os.kill(pid, signal.SIGKILL)
        # Steps are fast: it may just have come to its end.
        assert training_forks.wait(pid) in (-signal.SIGKILL, 0)
    assert training_forks.run(job) == 0
    assert losses(run_dir) == losses(whole), f"killed after {moments}"
    assert events(run_dir, "end")[-1]["reason"] == "max_steps"


def test_damaged_newest_checkpoint_is_named_and_the_one_before_is_used(
    tmp_path: Path, store: StoreSpec, whole: Path
):
    run_dir = _left_at(whole, tmp_path / "run", 20, 28)
    damaged = run_dir / "checkpoints/step-00000028/model.safetensors"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)
    assert train_here(_job(run_dir, store, resume="latest")) == 0
    assert events(run_dir, "start")[-1]["resumed_from_step"] == 20
    message = events(run_dir, "warning")[-1]["message"]
    assert "step-00000028" in message
    assert "model.safetensors differs from its checksum" in message
    assert "using step-00000020" in message
    assert losses(run_dir) == losses(whole)[20:]


def test_no_whole_checkpoint_is_an_error_that_names_each(
    tmp_path: Path, store: StoreSpec, whole: Path
):
    run_dir = _left_at(whole, tmp_path / "run", 28)
    (run_dir / "checkpoints/step-00000028/state.json").unlink()
    assert train_here(_job(run_dir, store, resume="auto")) == 3
    assert "state.json is missing" in events(run_dir, "error")[0]["message"]


def test_from_step_chooses_an_older_checkpoint(tmp_path: Path, store: StoreSpec, whole: Path):
    run_dir = _left_at(whole, tmp_path / "run", 26, 29)
    assert train_here(_job(run_dir, store, resume="latest", from_step=26)) == 0
    assert losses(run_dir) == losses(whole)[26:]
    assert train_here(_job(run_dir, store, resume="latest", from_step=25)) == 3
    assert "26" in events(run_dir, "error")[-1]["hint"]


def test_resume_on_changed_data_is_refused(tmp_path: Path):
    store = write_shards(tmp_path / "data", text_shards(shards=2))
    run_dir = tmp_path / "run"
    assert train_here(make_job(run_dir, store, max_steps=2)) == 0
    shard = tmp_path / "data/d/train/train-00001.jsonl"
    shard.write_bytes(shard.read_bytes() + b'{"id": 1, "text": "one more"}\n')
    assert train_here(make_job(run_dir, store, max_steps=4, resume="latest")) == 6
    assert events(run_dir, "error")[-1]["kind"] == "ChangedError"


def test_new_run_never_writes_over_an_earlier_one(tmp_path: Path, store: StoreSpec, whole: Path):
    run_dir = _left_at(whole, tmp_path / "run", 5)
    assert train_here(_job(run_dir, store)) == 2


def test_checkpoints_straight_to_a_store_resume_as_exactly(
    tmp_path: Path, store: StoreSpec, whole: Path
):
    """The run's folder is lost in between; the store has all that is needed."""
    spec = StoreSpec(uri=f"memory://{tmp_path.name}")
    target = CheckpointTarget(store=spec, prefix="runs/fox-1/")
    every = Every(steps=10)
    first = _job(tmp_path / "first", store, checkpoints=target, checkpoint_every=every, keep=9)
    assert train_here(first) == 0
    assert not (tmp_path / "first/checkpoints").exists()
    again = _job(tmp_path / "second", store, checkpoints=target, keep=2, from_step=20)
    assert train_here(again) == 0
    assert losses(tmp_path / "second") == losses(whole)[20:]
    assert events(tmp_path / "second", "checkpoint")[-1]["path"].startswith(spec.uri)


def test_resume_without_a_checkpoint(tmp_path: Path, store: StoreSpec):
    assert train_here(_job(tmp_path / "run", store, max_steps=2, resume="latest")) == 3
    assert train_here(_job(tmp_path / "run", store, max_steps=2, resume="auto")) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"layers": 2}, "layers=1"), ({"seq_len": 64}, "seq_len=32"), ({"eos_id": 1}, "eos 2")],
)
def test_resume_with_what_changes_the_model_or_the_samples_is_refused(
    tmp_path: Path, store: StoreSpec, whole: Path, changes: dict[str, int], message: str
):
    run_dir = _left_at(whole, tmp_path / "run", 5)
    assert train_here(_job(run_dir, store, resume="latest", **changes)) == 6
    assert message in events(run_dir, "error")[-1]["message"]


def test_weights_of_an_earlier_run_are_a_start(tmp_path: Path, store: StoreSpec, whole: Path):
    assert train_here(_job(tmp_path / "run", store, max_steps=1, init_from=str(whole))) == 0
    assert losses(tmp_path / "run")[0] < losses(whole)[0] - 0.5


def _put_back_before_the_end(checkpoint: Path) -> None:
    """Give a checkpoint the state that a run has between an epoch's last step and its end."""
    state = msgspec.json.decode((checkpoint / "state.json").read_bytes())
    samples, step = state["progress"]["samples"], state["progress"]["step"]
    assert state["progress"]["epoch"] == 1
    state["progress"].update(epoch=0, epoch_samples=samples)
    state["stream"]["epoch"] = 0
    for source in state["stream"]["sources"]:
        source["through"] = False
        source["stream"].update(epoch=0, position=samples)
        source["stream"]["order"].pop("lanes", None)
    hidden = checkpoint.with_name(f".{checkpoint.name}.partial")
    checkpoint.rename(hidden)
    (hidden / "complete.json").unlink()
    (hidden / "state.json").write_bytes(msgspec.json.encode(state))
    records = {path.name: record_of(path) for path in hidden.iterdir()}
    check(publish(checkpoint.parent, Complete(step=step, files=records)))
