"""Checkpoints that somebody changed and sealed anew: loaded, or refused by an error of ours, in bounded memory.

Whoever makes a checkpoint makes its checksums too: they guard against damage, not against its maker.
"""

import random
import shutil
from pathlib import Path

import msgspec
import pytest
import torch

from brain.ml import checkpoint_files
from brain.ml.checkpoint import (
    Parts,
    TrainerState,
    load_checkpoint,
    read_state,
    save_checkpoint,
)
from brain.ml.checkpoint_files import COMPLETE_FILE, Complete
from brain.ml.checkpoint_place import FolderPlace, choose_checkpoint
from brain.ml.model_shape import ModelShape
from brain.ml.schedule import Progress, RunLength
from tests.memory_peak import memory_peak
from tests.reliability.matrix import Cells, matrix
from tests.reliability.mutate import damaged, reshaped
from tests.reliability.operations import GROUP
from tools_utilities.errors import QuarkError

CASES = 140
NIGHTLY_CASES = 20_000
STATE = TrainerState(
    model="quark",
    shape=ModelShape(layers=1, vocab_size=5, seq_len=4),
    progress=Progress(step=3, loss=0.5),
    length=RunLength(source_samples=(9,)),
    optimizer="adamw",
    scaler={"scale": 2.0},
    stream={"sources": []},
)
MOST_BYTES = 512 << 20
FILES = (
    "state.json", "tensors.json", "tensors.json", "rank-00000.json", "model.safetensors",
    "optimizer.safetensors", COMPLETE_FILE,
)  # fmt: skip


def trained(seed: int) -> Parts:
    """Return a model after a step, whose optimizer has a state."""
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


def changed(whole: Path, folder: Path, file: str, rng: random.Random) -> FolderPlace:
    """Copy a checkpoint, change a file of it, and make its list of checksums agree."""
    path = folder / whole.name
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(whole, path)
    data = (path / file).read_bytes()
    is_json = file.endswith(".json")
    (path / file).write_bytes(reshaped(data, rng) if is_json else damaged(data, rng))
    if file != COMPLETE_FILE:
        records = {
            entry.name: checkpoint_files.record_of(entry)
            for entry in path.iterdir()
            if entry.name != COMPLETE_FILE
        }
        complete = Complete(step=checkpoint_files.step_of(whole.name) or 0, files=records)
        (path / COMPLETE_FILE).write_bytes(msgspec.json.encode(complete))
    return FolderPlace(folder)


def check(place: FolderPlace) -> bool:
    """Load it; says whether that was refused."""
    try:
        name, rejected = choose_checkpoint(place)
        if name is None:
            assert rejected
            return True
        path = place.bring(name)
        load_checkpoint(path, read_state(path), trained(5), GROUP)
    except QuarkError:
        return True
    return False


def run(cells: Cells, tmp_path: Path, count: int) -> None:
    place = FolderPlace(tmp_path / "whole")
    whole = Path(save_checkpoint(place, STATE, trained(1), GROUP, keep=2))
    assert not check(place)
    refused = 0
    for number in range(count):
        rng = random.Random(f"{cells.seed} {number}")
        file = FILES[number % len(FILES)]
        case = f"{file}, change {number}"
        if cells.wanted(case):
            with cells.case(case, 10):
                place = changed(whole, tmp_path / "changed", file, rng)
                with memory_peak() as peak:
                    refused += check(place)
                assert peak.num_bytes <= MOST_BYTES, f"{peak.num_bytes >> 20} MB"
    cells.notes["refused"] = refused
    assert refused or cells.only


@pytest.mark.filterwarnings("ignore")
def test_some_changes(request, tmp_path):
    with matrix("CHECKPOINTS", request) as cells:
        run(cells, tmp_path, CASES)


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
@pytest.mark.filterwarnings("ignore")
def test_many_changes(request, tmp_path):
    with matrix("CHECKPOINTS", request) as cells:
        run(cells, tmp_path, NIGHTLY_CASES)
