"""Checkpoints: whole or not there, only safetensors and JSON, and everything comes back."""

import errno
import json
import pickle
import random
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from brain.ml import checkpoint_files
from brain.ml.checkpoint import (
    Parts,
    TrainerState,
    load_checkpoint,
    load_weights,
    read_state,
    save_checkpoint,
)
from brain.ml.checkpoint_files import Complete, list_checkpoints
from brain.ml.checkpoint_place import FolderPlace, StorePlace, choose_checkpoint
from brain.ml.checkpoint_saver import CheckpointSaver
from brain.ml.model_shape import ModelShape
from brain.ml.process_group import ProcessGroup, World
from brain.ml.random_state import seed_everything
from brain.ml.schedule import Progress, RunLength
from tools_utilities.errors import ChangedError, DataError, DataNotFoundError, StoreError
from tools_utilities.object_store import StoreSpec, open_store

GROUP = ProcessGroup(World())


def _parts(seed: int = 0) -> Parts:
    torch.manual_seed(seed)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return Parts(
        model=model,
        optimizer=optimizer,
        names=[name for name, _ in model.named_parameters()],
        scaler=torch.amp.GradScaler("cpu", enabled=False),
        device=torch.device("cpu"),
    )


def _state(step: int) -> TrainerState:
    return TrainerState(
        model="quark",
        shape=ModelShape(layers=1, vocab_size=5, seq_len=4),
        progress=Progress(step=step, loss=0.1 + 0.2),
        length=RunLength(source_samples=(9,)),
        optimizer="adamw",
        stream={"sources": []},
    )


def _save(folder: Path, step: int, *, keep: int = 9, parts: Parts | None = None) -> Path:
    place = FolderPlace(folder)
    return Path(save_checkpoint(place, _state(step), parts or _parts(), GROUP, keep=keep))


def test_everything_comes_back(tmp_path: Path):
    parts = _parts(1)
    seed_everything(5, 0)
    path = _save(tmp_path, 3, parts=parts)
    drawn = (random.random(), np.random.rand(), torch.rand(3))  # noqa: NPY002 - the global generator
    other = _parts(2)
    state = read_state(path)
    load_checkpoint(path, state, other, GROUP)
    again = (random.random(), np.random.rand(), torch.rand(3))  # noqa: NPY002 - the global generator
    assert state == _state(3)
    assert drawn[:2] == again[:2]
    assert torch.equal(drawn[2], again[2])
    for name, tensor in parts.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name])
    mine, theirs = parts.optimizer.state_dict()["state"], other.optimizer.state_dict()["state"]
    assert mine.keys() == theirs.keys()
    for number, slots in mine.items():
        assert all(torch.equal(value, theirs[number][slot]) for slot, value in slots.items())


def test_only_the_newest_are_kept_and_the_pointer_names_the_last(tmp_path: Path):
    for step in (1, 2, 3, 4):
        _save(tmp_path, step, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000004", "step-00000003"]
    assert (tmp_path / "latest").read_text() == "step-00000004\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "latest", "step-00000003", "step-00000004",
    ]  # fmt: skip


def test_files_are_safetensors_and_json_only(tmp_path: Path):
    path = _save(tmp_path, 1)
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}
    for file in path.glob("*.json"):
        json.loads(file.read_text())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            lambda path: (path / "optimizer.safetensors").unlink(),
            "optimizer.safetensors is missing",
        ),
        (lambda path: (path / "complete.json").unlink(), "complete.json is missing"),
        (lambda path: (path / "complete.json").write_text("{"), "complete.json cannot be read"),
        (lambda path: (path / "state.json").write_text("{}"), "state.json differs"),
        (lambda path: (path / "extra.pt").write_bytes(b""), "extra.pt is no part"),
        (lambda path: (path / "rank-00000.json").write_bytes(b""), "rank-00000.json differs"),
    ],
)
def test_damaged_checkpoint_is_rejected_with_its_reason(tmp_path: Path, damage, reason: str):
    _save(tmp_path, 1)
    damage(_save(tmp_path, 2))
    place = FolderPlace(tmp_path)
    found, rejected = choose_checkpoint(place)
    assert found == "step-00000001"
    assert [one.name for one in rejected] == ["step-00000002"]
    assert reason in rejected[0].reason
    with pytest.raises(DataError, match="step-00000002"):
        choose_checkpoint(place, from_step=2)
    with pytest.raises(DataNotFoundError, match="step 7"):
        choose_checkpoint(place, from_step=7)


def test_half_written_checkpoint_is_never_seen_and_is_swept_later(tmp_path: Path):
    _save(tmp_path, 1)
    hidden = checkpoint_files.begin(tmp_path, 2)
    (hidden / "model.safetensors").write_bytes(b"half")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]
    _save(tmp_path, 3)
    assert not hidden.exists()


class _FullDisk(FolderPlace):
    """A folder whose disk is full once a rank has written its tensors."""

    def add(self, step: int, token: str, paths: Sequence[Path]) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_loses_nothing_older(tmp_path: Path):
    _save(tmp_path, 1)
    with pytest.raises(StoreError, match="No space left on device"):
        save_checkpoint(_FullDisk(tmp_path), _state(2), _parts(), GROUP, keep=1)
    assert (tmp_path / "latest").read_text() == "step-00000001\n"
    assert choose_checkpoint(FolderPlace(tmp_path)) == ("step-00000001", [])
    # Nor does what could not be written go on filling the disk.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000001"]


@pytest.mark.parametrize(
    ("rank", "handed_over", "left"),
    [
        (0, True, []),
        (1, False, ["model-00001-of-00002.safetensors", "rank-00000.json"]),
        (1, True, ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                   "rank-00000.json", "rank-00001.json"]),
    ],
)  # fmt: skip
def test_failed_save_removes_nothing_that_may_be_published(
    tmp_path: Path, *, rank: int, handed_over: bool, left: list[str]
):
    """A rank that lost a third one must not empty the folder that rank 0 is about to rename."""
    hidden = checkpoint_files.begin(tmp_path, 1)
    for number in (0, 1):
        (hidden / f"model-{number + 1:05d}-of-00002.safetensors").write_bytes(b"x")
        (hidden / checkpoint_files.rank_file(number)).write_bytes(b"{}")
    checkpoint_files.discard(hidden, rank, handed_over=handed_over)
    assert sorted(path.name for path in hidden.glob("*")) == left


def test_same_step_again_is_there_at_every_moment(tmp_path: Path):
    """Cut off between its two renames: the one before comes back."""
    old = _save(tmp_path, 5, parts=_parts(1))
    content = (old / "model.safetensors").read_bytes()
    old.rename(old.with_name(".step-00000005.replaced"))
    # Who reads leaves it alone: the save may still be going on, and needs the name free.
    assert choose_checkpoint(FolderPlace(tmp_path)) == (None, [])
    FolderPlace(tmp_path).recover()
    assert choose_checkpoint(FolderPlace(tmp_path)) == ("step-00000005", [])
    assert (old / "model.safetensors").read_bytes() == content
    _save(tmp_path, 5, parts=_parts(2))
    assert (old / "model.safetensors").read_bytes() != content
    assert not list(tmp_path.glob(".*"))


def test_after_going_back_later_steps_count_last_and_go_first(tmp_path: Path):
    for step in (10, 20, 30):
        _save(tmp_path, step)
    FolderPlace(tmp_path).point_to("step-00000010")
    assert choose_checkpoint(FolderPlace(tmp_path)) == ("step-00000010", [])
    _save(tmp_path, 12, keep=3)
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["step-00000012", "step-00000010", "step-00000030"]
    _save(tmp_path, 14, keep=2)
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["step-00000014", "step-00000012"]


def _in_store(tmp_path: Path, spec: StoreSpec) -> StorePlace:
    return StorePlace(open_store(spec), "runs/fox-1/", tmp_path / "passing")


def test_store_holds_whole_checkpoints_and_keeps_the_newest(tmp_path: Path):
    spec = StoreSpec(uri="memory://checkpoints")
    place = _in_store(tmp_path, spec)
    parts = _parts(1)
    for step in (1, 2, 3, 3):
        save_checkpoint(place, _state(step), parts, GROUP, keep=2)
    assert not (tmp_path / "passing").exists()
    assert place.names() == ["step-00000003", "step-00000002"]
    keys = [info.key for info in open_store(spec).list("runs/fox-1/step-00000003/")]
    # The first save of step 3 is gone, object by object.
    assert len(keys) == 6
    elsewhere = _in_store(tmp_path / "other", spec)
    name, rejected = choose_checkpoint(elsewhere)
    assert (name, rejected) == ("step-00000003", [])
    path = elsewhere.path_of("step-00000003")
    other = _parts(2)
    load_checkpoint(path, read_state(path), other, GROUP)
    for name, tensor in parts.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name])


def test_store_damage_is_rejected_and_half_a_save_is_never_seen(tmp_path: Path):
    spec = StoreSpec(uri="memory://damaged-checkpoints")
    place = _in_store(tmp_path, spec)
    for step in (1, 2):
        save_checkpoint(place, _state(step), _parts(), GROUP, keep=9)
    store = open_store(spec)
    store.put("runs/fox-1/step-00000003/0123.model.safetensors", b"half")
    [key] = [i.key for i in store.list("runs/fox-1/step-00000002/") if "optimizer" in i.key]
    store.put(key, b"damaged")
    name, [rejected] = choose_checkpoint(place)
    assert name == "step-00000001"
    assert rejected.reason == "optimizer.safetensors differs from its checksum"
    store.delete(key)
    name, [rejected] = choose_checkpoint(place)
    assert rejected.reason == "optimizer.safetensors is missing"


@pytest.mark.parametrize("file", ["../elsewhere.safetensors", "state.json"])
def test_index_that_leads_elsewhere_is_refused(tmp_path: Path, file: str):
    path = _save(tmp_path, 1)
    content = json.loads((path / "tensors.json").read_text())
    content["tensors"]["model/weight"]["pieces"][0]["file"] = file
    (path / "tensors.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="model/weight lies in"):
        load_checkpoint(path, read_state(path), _parts(), GROUP)


def test_loading_never_unpickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = _save(tmp_path, 1)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)
    load_checkpoint(path, read_state(path), _parts(2), GROUP)


def test_weights_of_another_shape_are_named(tmp_path: Path):
    path = _save(tmp_path, 1)
    with pytest.raises(ChangedError, match=r"weight is 2x3, the model's is 2x4"):
        load_weights(path, torch.nn.Linear(4, 2))
    with pytest.raises(ChangedError, match=r"bias is 2, the model's is missing"):
        load_weights(path, torch.nn.Linear(3, 2, bias=False))


class _SlowPlace(FolderPlace):
    """A place that publishes only when it may."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.may = threading.Event()

    def publish(self, complete: Complete) -> str:
        assert self.may.wait(60)
        return super().publish(complete)


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path: Path):
    place, parts, told = _SlowPlace(tmp_path), _parts(1), []
    saver = CheckpointSaver(place, GROUP, keep=3, tell=lambda _, **about: told.append(about))
    saver.save(_state(1), parts)
    then = {name: tensor.clone() for name, tensor in parts.model.state_dict().items()}
    with torch.no_grad():
        next(parts.model.parameters()).zero_()
    saver.look()
    assert not told
    place.may.set()
    saver.wait()
    assert [about["step"] for about in told] == [1]
    load_weights(tmp_path / "step-00000001", parts.model)
    assert torch.equal(parts.model.state_dict()["weight"], then["weight"])


def test_failed_save_is_raised_at_the_next_look(tmp_path: Path):
    saver = CheckpointSaver(_FullDisk(tmp_path), GROUP, keep=3, tell=lambda *_, **__: None)
    saver.save(_state(1), _parts())
    with pytest.raises(StoreError, match="No space left"):
        saver.wait()
    saver.wait()  # told once


def test_state_of_another_version_is_refused(tmp_path: Path):
    path = _save(tmp_path, 1)
    content = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(DataError, match="version 99"):
        read_state(path)


def test_the_state_of_another_optimizer_is_refused_by_its_names(tmp_path: Path):
    path = _save(tmp_path, 1)
    parts = _parts(2)
    other = Parts(
        model=parts.model,
        optimizer=torch.optim.SGD(parts.model.parameters(), lr=0.1, momentum=0.9),
        names=parts.names,
        scaler=parts.scaler,
        device=parts.device,
    )
    with pytest.raises(ChangedError, match="another optimizer: it is exp_avg, exp_avg_sq, step"):
        load_checkpoint(path, read_state(path), other, GROUP)


@pytest.mark.parametrize("slot", ["step", "exp_avg"])
def test_half_of_an_optimizers_state_is_refused(tmp_path: Path, slot: str):
    parts = _parts(1)
    for slots in parts.optimizer.state.values():
        del slots[slot]
    path = _save(tmp_path, 1, parts=parts)
    with pytest.raises(ChangedError, match="AdamW keeps exp_avg, exp_avg_sq, step"):
        load_checkpoint(path, read_state(path), _parts(2), GROUP)
