"""What a checkpoint holds, and the way there and back: model, optimizer, progress, stream, randomness.

Tensors are safetensors, all else JSON. Each rank writes its own random state; rank 0 writes the
rest and publishes only when every rank is through. `checkpoint_files.py` has the folder.
"""

import base64
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from brain.ml import checkpoint_files
from brain.ml.model_shape import ModelShape
from brain.ml.process_group import ProcessGroup
from brain.ml.schedule import Progress, RunLength
from tools_utilities.errors import ChangedError, DataError
from tools_utilities.prepared_types import prepared

STATE_VERSION = 1
MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
STATE_FILE = "state.json"


@prepared
class TrainerState(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `state.json`."""

    version: int = STATE_VERSION
    model: str
    shape: ModelShape
    progress: Progress
    length: RunLength
    optimizer: str
    scaler: dict[str, Any] = {}
    """Of fp16's loss scaling; empty otherwise."""
    stream: dict[str, Any]
    """The training stream's own state, for all ranks together."""


@prepared
class RandomState(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's random generators."""

    python: list[Any]
    numpy: dict[str, Any]
    torch: str
    """Base64 of the generator's bytes."""
    cuda: str | None = None


class Parts(msgspec.Struct, kw_only=True):
    """The live things that a checkpoint is a picture of."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    names: list[str]
    """Parameters in the order the optimizer numbers them."""
    scaler: Any
    device: Any


def save_checkpoint(
    folder: Path, state: TrainerState, parts: Parts, group: ProcessGroup, *, keep: int
) -> Path:
    """Write and publish a checkpoint; all ranks call it.

    An error on any rank ends the run with the folder hidden, the pointer as it was.
    """
    step = state.progress.step
    hidden = checkpoint_files.hidden_folder(folder, step)
    if group.is_main:
        checkpoint_files.begin(folder, step)
        _save_tensors(dict(parts.model.state_dict()), hidden / MODEL_FILE)
        _save_tensors(_optimizer_tensors(parts), hidden / OPTIMIZER_FILE)
        checkpoint_files.write_file(hidden / STATE_FILE, msgspec.json.encode(state))
    group.barrier()
    checkpoint_files.write_file(
        hidden / _rank_file(group.rank), msgspec.json.encode(_random_state(parts.device))
    )
    group.barrier()
    if group.is_main:
        checkpoint_files.publish(folder, step)
        checkpoint_files.keep_newest(folder, keep)
    group.barrier()
    return folder / checkpoint_files.checkpoint_name(step)


def read_state(path: Path) -> TrainerState:
    """Return the JSON of a checkpoint that was checked.

    Raises:
        DataError: another version wrote it, or a field is wrong.
    """
    try:
        state = msgspec.json.decode((path / STATE_FILE).read_bytes(), type=TrainerState)
    except msgspec.DecodeError as error:
        raise DataError(f"checkpoint {path.name}: {STATE_FILE}: {error}") from error
    if state.version != STATE_VERSION:
        raise DataError(
            f"checkpoint {path.name}: version {state.version}, this is version {STATE_VERSION}",
            hint="Resume with the Quark that wrote it.",
        )
    return state


def load_weights(path: Path, model: nn.Module) -> None:
    """Give a model the weights of a checkpoint.

    Raises:
        ChangedError: names or shapes differ.
    """
    tensors = load_file(path / MODEL_FILE)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ChangedError(
            f"checkpoint {path.name} does not fit this model: {str(error).splitlines()[-1].strip()}",
            hint="Use the same model and layers as the run that wrote it.",
        ) from error


def load_checkpoint(path: Path, state: TrainerState, parts: Parts, group: ProcessGroup) -> None:
    """Bring model, optimizer and this rank's random state back to where they were."""
    load_weights(path, parts.model)
    _load_optimizer(load_file(path / OPTIMIZER_FILE), parts)
    if state.scaler:
        parts.scaler.load_state_dict(state.scaler)
    random_file = path / _rank_file(group.rank)
    if random_file.exists():  # a rank that an earlier, smaller world did not have keeps its seed
        content = msgspec.json.decode(random_file.read_bytes(), type=RandomState)
        _restore_random(content, parts.device)


def seed_everything(seed: int, rank: int) -> None:
    """Start every random generator of this process from the run's seed and the rank."""
    random.seed(seed * 1_000_003 + rank)
    np.random.seed((seed * 1_000_003 + rank) % (1 << 32))  # noqa: NPY002 - user models may draw from it
    torch.manual_seed(seed * 1_000_003 + rank)


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    checkpoint_files.sync_file(path)


def _optimizer_tensors(parts: Parts) -> dict[str, Tensor]:
    state = parts.optimizer.state_dict()["state"]
    return {
        f"{parts.names[number]}|{slot}": torch.as_tensor(value)
        for number, slots in state.items()
        for slot, value in slots.items()
        if value is not None
    }


def _load_optimizer(tensors: dict[str, Tensor], parts: Parts) -> None:
    numbers = {name: number for number, name in enumerate(parts.names)}
    slots: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        name, _, slot = key.rpartition("|")
        if name not in numbers:
            raise ChangedError(f"the optimizer's state is of another model: {name}")
        slots.setdefault(numbers[name], {})[slot] = tensor
    # Rates and decay come from the job: they may be changed for a resume.
    groups = parts.optimizer.state_dict()["param_groups"]
    parts.optimizer.load_state_dict({"state": slots, "param_groups": groups})


def _rank_file(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def _random_state(device: Any) -> RandomState:
    version, words, position = random.getstate()[0], random.getstate()[1], random.getstate()[2]
    legacy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global one is what may be in use
    legacy["state"]["key"] = [int(word) for word in legacy["state"]["key"]]
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    return RandomState(
        python=[version, list(words), position],
        numpy=legacy,
        torch=_packed(torch.get_rng_state()),
        cuda=None if cuda is None else _packed(cuda),
    )


def _restore_random(state: RandomState, device: Any) -> None:
    version, words, position = state.python
    random.setstate((version, tuple(words), position))
    legacy = {**state.numpy, "state": dict(state.numpy["state"])}
    legacy["state"]["key"] = np.array(legacy["state"]["key"], np.uint32)
    np.random.set_state(legacy)  # noqa: NPY002 - see above
    torch.set_rng_state(_unpacked(state.torch))
    if state.cuda is not None and device.type == "cuda":
        torch.cuda.set_rng_state(_unpacked(state.cuda), device)


def _packed(state: Tensor) -> str:
    return base64.b64encode(state.numpy().tobytes()).decode()


def _unpacked(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), np.uint8).copy())
