"""`finetune`: the checkpoint whose weights a run starts from, and the settings that fit it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.checkpoint_files import list_checkpoints
from brain.ml.run_files import CHECKPOINTS_FOLDER, JOB_FILE
from brain.ml.training_job import TrainingJob, load_job
from resource_manager.job_making import init_folder
from resource_manager.remote_runs import bring_checkpoints
from resource_manager.repeating import job_of
from resource_manager.runs import list_runs, out_dir_of
from tools_utilities.errors import DataNotFoundError
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared
from tools_utilities.settings import Settings

STATE_FILE = "state.json"


class _Shape(msgspec.Struct):
    layers: int
    vocab_size: int


@prepared
class _State(msgspec.Struct):
    """What is needed of a checkpoint's state."""

    model: str
    shape: _Shape


class StartingWeights(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint to start from."""

    folder: str
    """Absolute: a run's folder or a checkpoint's."""
    said: str
    """How it is called: the run's name, or the path as typed."""
    model: str
    settings: dict[str, Any]
    """What the new run's settings must be for the weights to fit."""


def starting_weights(
    text: str | None,
    settings: Settings,
    model: str | None,
    tell: Callable[[str], None] = lambda _line: None,
) -> StartingWeights:
    """Return the named checkpoint, or the newest of a run of `model` (None: of any model).

    What a run elsewhere has saved is brought first; `tell` says what takes long.

    Raises:
        UsageError: no such run or folder.
        DataNotFoundError: there is no whole checkpoint.
    """
    if text is None:
        text = last_run_of(settings, model)
    folder = Path(init_folder(text, settings))
    bring_checkpoints(folder, tell)
    checkpoints = folder / CHECKPOINTS_FOLDER
    found = list_checkpoints(checkpoints) if checkpoints.is_dir() else [folder]
    if not found:
        raise DataNotFoundError(f"{text}: no checkpoint in it", hint="`quark list` names the runs.")
    state = _state_of(found[0])
    fitting: dict[str, Any] = {"layers": state.shape.layers, "vocab_size": state.shape.vocab_size}
    job = _job_beside(found[0])
    if job is not None:
        # The tokenizer gives the vocabulary, unless the run set one.
        fitting |= {"tokenizer": job.tokenizer, "vocab_size": job.vocab_size}
        fitting |= {"seq_len": job.seq_len}
    return StartingWeights(folder=str(folder), said=text, model=state.model, settings=fitting)


def fitted(settings: Settings, weights: StartingWeights) -> Settings:
    """Return the settings with what the weights ask for, where nobody said something else."""
    names = [name for name in weights.settings if not settings.is_set(name)]
    why = f"checkpoint of {weights.said}"
    return msgspec.structs.replace(
        settings,
        values={**settings.values, **{name: weights.settings[name] for name in names}},
        sources={
            **settings.sources,
            **{name: why for name in names if weights.settings[name] is not None},
        },
    )


def last_run_of(settings: Settings, model: str | None) -> str:
    """Return the name of the newest run of a model (None: of any) that has a checkpoint.

    Raises:
        DataNotFoundError: there is none.
    """
    out_dir = out_dir_of(settings)
    for info in list_runs(out_dir):
        if info.checkpoint_step is not None and model in (None, job_of(info).model):
            return info.name
    what = f"of model {model} " if model else ""
    raise DataNotFoundError(
        f"no run {what}in {out_dir} has a checkpoint",
        hint="Train first, or name a start: … from checkpoint FOLDER.",
    )


def _state_of(checkpoint: Path) -> _State:
    path = checkpoint / STATE_FILE
    try:
        return decode_json(path.read_bytes(), type=_State)
    except FileNotFoundError as error:
        raise DataNotFoundError(
            f"{checkpoint}: no checkpoint of Quark ({STATE_FILE} is missing)",
            hint="Name a run, or a folder runs/NAME/checkpoints/step-….",
        ) from error
    except msgspec.DecodeError as error:
        raise DataNotFoundError(f"{path}: {error}", hint="Name another checkpoint.") from error


def _job_beside(checkpoint: Path) -> TrainingJob | None:
    path = checkpoint.parent.parent / JOB_FILE
    try:
        return load_job(path)
    except (OSError, msgspec.DecodeError):  # a checkpoint that was copied out of its run
        return None
