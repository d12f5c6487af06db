"""`evaluate`: the job that measures a run's checkpoint on data; it trains nothing."""

from collections.abc import Mapping
from typing import Any

import msgspec

from brain.ml.training_job import TrainingJob
from resource_manager.data_finding import DataFinder, FoundData
from resource_manager.repeating import ALL_STOP_RULES, NEAREST, earlier_run, repeated_settings
from resource_manager.runs import RunInfo
from resource_manager.starting_weights import last_run_of
from resource_manager.training_request import TrainingRequest, data_targets
from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.run_words import said_run
from tools_utilities.settings import Settings


def evaluated_run(settings: Settings, slots: Mapping[str, Any]) -> tuple[RunInfo, TrainingJob]:
    """Return the run whose checkpoint is measured: the named one, else the last of that model.

    Raises:
        DataNotFoundError: there is no such run, or it has no checkpoint.
        UsageError: it is an evaluation itself.
    """
    name = slots.get("run")
    if name in (None, "latest"):
        name = last_run_of(settings, slots.get("model"))
    info, job = earlier_run(settings, name)
    if job.evaluate_only:
        raise UsageError(f"{info.name} is an evaluation: it has no weights of its own")
    if info.checkpoint_step is None:
        raise DataNotFoundError(
            f"{info.name} has no checkpoint yet",
            hint=f"`quark show {said_run(info.name)}` says how it is.",
        )
    return info, job


def evaluation_settings(settings: Settings, job: TrainingJob, info: RunInfo) -> Settings:
    """Return the run's settings with what the command says, and no stop rule but those it says."""
    found = repeated_settings(settings, job, info)
    kept = [rule for rule in ALL_STOP_RULES if settings.source(rule) not in NEAREST]
    return msgspec.structs.replace(
        found,
        values={**found.values, **dict.fromkeys(kept)},
        sources={**found.sources, **dict.fromkeys(kept, "default")},
    )


def evaluation_data(
    request: TrainingRequest, settings: Settings, finder: DataFinder, wanted: Any
) -> FoundData:
    """Return the data to measure on: its hold-outs, or the groups that are wanted, else all.

    Raises:
        NoGroupsError: there is none.
    """
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
