"""Checkpoints: whole or not there, only safetensors and JSON, and everything comes back."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from brain.ml import checkpoint_files
from brain.ml.checkpoint import (
    Parts,
    TrainerState,
    load_checkpoint,
    read_state,
    save_checkpoint,
    seed_everything,
)
from brain.ml.checkpoint_files import choose_checkpoint, list_checkpoints
from brain.ml.model_shape import ModelShape
from brain.ml.process_group import ProcessGroup, World
from brain.ml.schedule import Progress, RunLength
from tools_utilities.errors import DataError, DataNotFoundError

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
    return save_checkpoint(folder, _state(step), parts or _parts(), GROUP, keep=keep)


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
    found, rejected = choose_checkpoint(tmp_path)
    assert found is not None
    assert found.name == "step-00000001"
    assert [one.name for one in rejected] == ["step-00000002"]
    assert reason in rejected[0].reason
    with pytest.raises(DataError, match="step-00000002"):
        choose_checkpoint(tmp_path, from_step=2)
    with pytest.raises(DataNotFoundError, match="step 7"):
        choose_checkpoint(tmp_path, from_step=7)


def test_half_written_checkpoint_is_never_seen_and_is_swept_later(tmp_path: Path):
    _save(tmp_path, 1)
    hidden = checkpoint_files.begin(tmp_path, 2)
    (hidden / "model.safetensors").write_bytes(b"half")
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000001"]
    _save(tmp_path, 3)
    assert not hidden.exists()


class _BrokenGroup(ProcessGroup):
    """A group whose other rank dies while it writes its part."""

    meetings = 0

    def barrier(self) -> None:
        self.meetings += 1
        if self.meetings == 2:
            raise RuntimeError("connection closed by peer")


def test_rank_that_cannot_write_its_part_keeps_the_checkpoint_from_being_published(tmp_path: Path):
    _save(tmp_path, 1)
    with pytest.raises(RuntimeError):
        save_checkpoint(tmp_path, _state(2), _parts(), _BrokenGroup(World()), keep=2)
    assert (tmp_path / "latest").read_text() == "step-00000001\n"
    assert choose_checkpoint(tmp_path) == (tmp_path / "step-00000001", [])


def test_state_of_another_version_is_refused(tmp_path: Path):
    path = _save(tmp_path, 1)
    content = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**content, "version": 99}))
    with pytest.raises(DataError, match="version 99"):
        read_state(path)
