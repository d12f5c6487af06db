"""What a checkpoint holds, and the way there and back: model, optimizer, progress, stream, randomness.

Tensors are safetensors, all else JSON. A snapshot is taken between two steps (copies in memory);
writing it may then go on beside the training. It belongs to no world size: tensors are read as the
reader cuts them, progress and stream are those of all ranks together, and only the random
generators are each rank's own.
"""

from math import prod
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from brain.ml import checkpoint_files
from brain.ml.checkpoint_files import Complete, FileRecord
from brain.ml.checkpoint_place import CheckpointPlace
from brain.ml.model_shape import ModelShape
from brain.ml.optimizer import slots_differ
from brain.ml.process_group import ProcessGroup
from brain.ml.random_state import RandomState, restore_random_state, take_random_state
from brain.ml.schedule import Progress, RunLength
from brain.ml.tensor_index import INDEX_FILE, SavedTensor, TensorIndex
from tools_utilities.errors import ChangedError, DataError, said_by
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared

STATE_VERSION = 2
STATE_FILE = "state.json"
MODEL, OPTIMIZER = "model/", "optimizer/"
_Kind = TypeVar("_Kind")


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


class Parts(msgspec.Struct, kw_only=True):
    """The live things that a checkpoint is a picture of."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    names: list[str]
    """Parameters in the order the optimizer numbers them."""
    scaler: Any
    device: Any


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's part of a checkpoint, apart from what goes on changing."""

    step: int
    best_step: int = -1
    """Whose checkpoint is kept too; -1: nothing was evaluated yet."""
    tensors: dict[str, Tensor]
    state: bytes
    random: bytes


def take_snapshot(state: TrainerState, parts: Parts) -> Snapshot:
    """Copy everything to memory; takes as long as copying the weights and moments does."""
    tensors = {MODEL + name: tensor for name, tensor in parts.model.state_dict().items()}
    tensors |= {OPTIMIZER + name: tensor for name, tensor in _optimizer_tensors(parts).items()}
    return Snapshot(
        step=state.progress.step,
        best_step=state.progress.best_step,
        tensors={name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()},
        state=msgspec.json.encode(state),
        random=msgspec.json.encode(take_random_state(parts.device)),
    )


def write_snapshot(
    snapshot: Snapshot, place: CheckpointPlace, group: ProcessGroup, *, keep: int
) -> str:
    """Write and publish a checkpoint; all ranks call it, each with its part. Returns where it is.

    Raises:
        StoreError: this rank could not write its part; the pointer is as it was.
        RuntimeError: another rank could not, or is gone.
    """
    # DCP costs a second of import: nobody pays it before the first save.
    from brain.ml.sharded_tensors import ShardWriter, write_alone

    step, where, handed_over = snapshot.step, [""], [False]
    hidden = place.hidden(step)

    def after_files(token: str, paths: list[Path]) -> dict[str, FileRecord]:
        written = list(paths)
        if group.speaks_for_data:  # ranks with the same data have the same random numbers
            own = hidden / checkpoint_files.rank_file(group.data_rank)
            checkpoint_files.write_file(own, snapshot.random)
            written.append(own)
        records = {path.name: checkpoint_files.record_of(path) for path in written}
        place.add(step, token, written)
        handed_over[0] = True
        return records

    def end(token: str, index: TensorIndex, ranks: list[dict[str, Any]]) -> None:
        contents = {STATE_FILE: snapshot.state, INDEX_FILE: msgspec.json.encode(index)}
        for name, content in contents.items():
            checkpoint_files.write_file(hidden / name, content)
        records = {name: checkpoint_files.record_of(hidden / name) for name in contents}
        place.add(step, token, [hidden / name for name in contents])
        for of_rank in ranks:
            records |= of_rank
        where[0] = place.publish(Complete(step=step, files=records, token=token))
        best = None
        if snapshot.best_step >= 0:
            best = checkpoint_files.checkpoint_name(snapshot.best_step)
            place.mark_best(best)
        place.keep_newest(keep, best)

    writer = ShardWriter(
        hidden, group.rank, group.world_size,
        begin=lambda: place.begin(step), after_files=after_files, end=end,
    )  # fmt: skip
    try:
        if group.world_size == 1:
            write_alone(snapshot.tensors, writer)
        else:
            _write_together(snapshot, writer, group)
    except BaseException:
        # A full disk needs the room.
        checkpoint_files.discard(hidden, group.rank, handed_over=handed_over[0])
        raise
    return where[0]


def _write_together(snapshot: Snapshot, writer: Any, group: ProcessGroup) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(dict(snapshot.tensors), storage_writer=writer, process_group=group.saving)
    except CheckpointException as error:
        # Every rank gets every rank's error; each tells of its own.
        own = error.failures.get(group.rank)
        if own is not None:
            raise own[0] from None
        ranks = ", ".join(str(rank) for rank in error.failures)
        raise RuntimeError(f"checkpoint of step {snapshot.step}: failed on rank {ranks}") from None


def save_checkpoint(
    place: CheckpointPlace, state: TrainerState, parts: Parts, group: ProcessGroup, *, keep: int
) -> str:
    """Take a snapshot and write it, all at once; all ranks call it."""
    return write_snapshot(take_snapshot(state, parts), place, group, keep=keep)


def read_state(path: Path) -> TrainerState:
    """Return the JSON of a checkpoint that was checked.

    Raises:
        DataError: another version wrote it, or a field is wrong.
    """
    state = _decoded(path, STATE_FILE, TrainerState)
    if state.version != STATE_VERSION:
        raise DataError(
            f"checkpoint {path.name}: version {state.version}, this is version {STATE_VERSION}",
            hint="Resume with the Quark that wrote it.",
        )
    return state


def _decoded(path: Path, name: str, kind: type[_Kind]) -> _Kind:
    """Return what a JSON file of a checkpoint holds.

    Raises:
        DataError: it is missing, or no such JSON.
    """
    try:
        return decode_json((path / name).read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise DataError(f"checkpoint {path.name}: {name}: {error}") from error


def load_weights(path: Path, model: nn.Module) -> None:
    """Give a model the weights of a checkpoint, each rank those it holds.

    Raises:
        ChangedError: names or shapes differ.
        DataError: a file is not what the index says.
    """
    from brain.ml.sharded_tensors import ShardReader, read_into

    reader = ShardReader(path)
    targets = {MODEL + name: tensor for name, tensor in model.state_dict().items()}
    saved = {name: one for name, one in reader.index.tensors.items() if name.startswith(MODEL)}
    wrong = [name for name in (*targets, *saved) if _shapes_differ(name, targets, saved)]
    if wrong:
        has, needs = _shape_text(saved.get(wrong[0])), _shape_text(targets.get(wrong[0]))
        raise ChangedError(
            f"checkpoint {path.name} does not fit this model: "
            f"{wrong[0].removeprefix(MODEL)} is {has}, the model's is {needs}",
            hint="Use the same model and layers as the run that wrote it.",
        )
    with torch.no_grad():
        read_into(reader, targets)


def load_checkpoint(path: Path, state: TrainerState, parts: Parts, group: ProcessGroup) -> None:
    """Bring model, optimizer and this rank's random state back to where they were.

    Raises:
        ChangedError: it is of another model.
        DataError: it holds what no checkpoint holds.
    """
    load_weights(path, parts.model)
    _load_optimizer(path, parts)
    name = checkpoint_files.rank_file(group.data_rank)
    try:
        if state.scaler:
            parts.scaler.load_state_dict(state.scaler)
        if (path / name).exists():  # a rank that a smaller world did not have keeps its seed
            restore_random_state(_decoded(path, name, RandomState), parts.device)
    except (TypeError, ValueError, LookupError, RuntimeError, OverflowError) as error:
        raise DataError(
            f"checkpoint {path.name}: not a state to go on from: {said_by(error)}"
        ) from error


def _shapes_differ(name: str, targets: dict[str, Tensor], saved: dict[str, SavedTensor]) -> bool:
    return (
        name not in targets or name not in saved or tuple(targets[name].shape) != saved[name].shape
    )


def _shape_text(tensor: Tensor | SavedTensor | None) -> str:
    return "missing" if tensor is None else "x".join(str(size) for size in tensor.shape) or "one"


def _optimizer_tensors(parts: Parts) -> dict[str, Tensor]:
    state = parts.optimizer.state_dict()["state"]
    return {
        f"{parts.names[number]}|{slot}": torch.as_tensor(value)
        for number, slots in state.items()
        for slot, value in slots.items()
        if value is not None
    }


def _load_optimizer(path: Path, parts: Parts) -> None:
    from brain.ml.sharded_tensors import ShardReader, dtype_of, read_into

    reader = ShardReader(path)
    numbers = {name: number for number, name in enumerate(parts.names)}
    weights = dict(parts.model.named_parameters())
    slots: dict[int, dict[str, Tensor]] = {}
    targets: dict[str, Tensor] = {}
    for key, saved in reader.index.tensors.items():
        if not key.startswith(OPTIMIZER):
            continue
        name, _, slot = key.removeprefix(OPTIMIZER).rpartition("|")
        if name not in numbers:
            raise ChangedError(f"the optimizer's state is of another model: {name}")
        like, dtype = weights[name], dtype_of(saved.dtype)
        same = tuple(like.shape) == saved.shape
        if not same and prod(saved.shape) > max(1, like.numel()):
            raise ChangedError(
                f"the optimizer's state does not fit: {slot} of {name} is {_shape_text(saved)}, "
                f"the weight is {_shape_text(like)}"
            )
        # Cut as its weight is, where the weight is cut over ranks.
        made = (
            torch.empty_like(like, dtype=dtype) if same else torch.empty(saved.shape, dtype=dtype)
        )
        targets[key] = slots.setdefault(numbers[name], {})[slot] = made.detach()
    for number, kept in slots.items():
        wrong = slots_differ(parts.optimizer, kept)
        if wrong is not None:
            raise ChangedError(
                f"the optimizer's state of {parts.names[number]} is of another optimizer: {wrong}",
                hint="Use the optimizer of the run that wrote it.",
            )
    with torch.no_grad():
        read_into(reader, targets)
    # Rates and decay come from the job: they may be changed for a resume.
    groups = parts.optimizer.state_dict()["param_groups"]
    parts.optimizer.load_state_dict({"state": slots, "param_groups": groups})
