"""`evaluate`: the job that measures a run's checkpoint on data; it trains nothing."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.run_files import JOB_FILE
from brain.ml.training_job import TrainingJob
from resource_manager.data_finding import DataFinder, FoundData
from resource_manager.next_commands import runs_flag
from resource_manager.remote_runs import bring_checkpoints
from resource_manager.remote_settings import RENTED_ONLY
from resource_manager.repeating import (
    ALL_STOP_RULES,
    NEAREST,
    earlier_run,
    job_of,
    repeated_data,
    repeated_settings,
)
from resource_manager.runs import RunInfo, read_run
from resource_manager.starting_weights import last_run_of
from resource_manager.training_request import TrainingRequest, data_targets
from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.run_words import said_run
from tools_utilities.settings import Settings

TRAINING_ONLY = frozenset(
    ["model", "parameters", "weights", "val", "init_from", "resume", "epochs", "grad_accum", "lr", "schedule",
     "warmup_steps", "optimizer", "weight_decay", "grad_clip", "partition", "partition_key",
     "shuffle", "checkpoint_every", "eval_every", "keep"]
)  # fmt: skip
"""Slots of `again` that an evaluation has no use for."""


def evaluated_run(
    settings: Settings, slots: Mapping[str, Any], tell: Callable[[str], None] = lambda _line: None
) -> tuple[RunInfo, TrainingJob]:
    """Return the run whose checkpoint is measured: the named one, else the last of that model.

    What it has saved elsewhere is brought first; `tell` says what takes long.

    Raises:
        DataNotFoundError: there is no such run, or it has no checkpoint.
        UsageError: it is an evaluation itself.
    """
    name = slots.get("run")
    if name in (None, "latest"):
        name = last_run_of(settings, slots.get("model"))
    info, job = earlier_run(settings, name)
    if job.evaluate_only:
        raise UsageError(
            f"{info.name} is an evaluation: it has no weights of its own",
            hint=f"Measure again: quark again {said_run(info.name)}{runs_flag(settings)}",
        )
    bring_checkpoints(Path(info.path), tell)
    info = read_run(Path(info.path))
    if info.checkpoint_step is None:
        raise DataNotFoundError(
            f"{info.name} has no checkpoint yet",
            hint=f"`quark show {said_run(info.name)}{runs_flag(settings)}` says how it is.",
        )
    return info, job


def measured_by(evaluation: TrainingJob, slots: Mapping[str, Any]) -> tuple[RunInfo, TrainingJob]:
    """Return the run that an earlier evaluation measured, to measure it again.

    Raises:
        DataNotFoundError: that run is gone, or has no checkpoint.
        UsageError: the command says what only training takes.
    """
    said = sorted(TRAINING_ONLY & slots.keys())
    if said:
        raise UsageError(
            f"{evaluation.name} is an evaluation: it has no use for {', '.join(said)}",
            hint="Leave that out, or repeat a run that trained.",
        )
    folder = Path(evaluation.init_from or "")
    if not (folder / JOB_FILE).is_file():
        raise DataNotFoundError(
            f"{folder}: the run that {evaluation.name} measured is gone",
            hint="`quark list` names the runs.",
        )
    info = read_run(folder)
    if info.checkpoint_step is None:
        raise DataNotFoundError(
            f"{info.name} has no checkpoint any more", hint="`quark list` names the runs."
        )
    return info, job_of(info)


def evaluation_settings(settings: Settings, info: RunInfo, job: TrainingJob) -> Settings:
    """Return the run's settings with what the command says, and no stop rule but those it says.

    Nothing is rented because its run was on a rented machine: that was another sum of money.
    """
    found = repeated_settings(settings, job, info)
    kept = [rule for rule in ALL_STOP_RULES if settings.source(rule) not in NEAREST]
    rented = job.remote is not None and job.remote.terms is not None
    told = ("where", *RENTED_ONLY) if rented else ()
    return msgspec.structs.replace(
        found,
        values={
            **found.values,
            **dict.fromkeys(kept),
            **{name: settings.value(name) for name in told},
        },
        sources={
            **found.sources,
            **dict.fromkeys(kept, "default"),
            **{name: settings.source(name) for name in told},
        },
    )


def evaluation_data(
    request: TrainingRequest,
    settings: Settings,
    finder: DataFinder,
    wanted: Any,
    earlier: TrainingJob | None = None,
) -> FoundData:
    """Return the data to measure on: its hold-outs, or the groups that are wanted, else all.

    Where none is named, that of the `earlier` evaluation.

    Raises:
        NoGroupsError: there is none.
    """
    if earlier is not None and not request.data and settings.value("train_prefix") is None:
        return repeated_data(request, settings, finder, earlier)
    found = [
        finder.validation(target, wanted=wanted)
        for target in data_targets(request, settings, finder)
    ]
    return FoundData(
        train=(),
        val=tuple(source for one in found for source in one.val),
        planned=tuple(item for one in found for item in one.planned),
        samples=found[0].samples,
        notes=tuple(note for one in found for note in one.notes),
    )


def evaluation_job(job: TrainingJob, info: RunInfo) -> TrainingJob:
    """Return the job that measures a run's newest checkpoint."""
    return msgspec.structs.replace(
        job, evaluate_only=True, init_from=info.path, epochs=None, weights=None, resume=None
    )
