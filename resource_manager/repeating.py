"""`again`: an earlier run's job taken as the settings of a new one, with what the command changes.

The earlier run stands above the environment and the project file, since it is what is to be repeated,
and below the sentence and `--override`. `half the batch size` is half of that run's. Pure, but for
reading the job file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.run_files import JOB_FILE
from brain.ml.training_job import Every, TrainingJob, load_job
from resource_manager.data_finding import DataFinder, FoundData
from resource_manager.job_settings import PARTITION_OPTIONS, SAME_NAME, STOP_RULES
from resource_manager.relative_values import make_absolute
from resource_manager.remote_settings import settings_of_remote, usual_cache
from resource_manager.runs import RunInfo, find_run, list_runs, out_dir_of
from resource_manager.training_request import TrainingRequest, val_target
from tools_utilities.errors import ChangedError, DataNotFoundError, UsageError
from tools_utilities.setting_keys import KEYS_BY_NAME
from tools_utilities.settings import Settings

ALL_STOP_RULES = ("epochs", *STOP_RULES, "early_stop")
NEAREST = ("--override", "sentence")


def earlier_run(settings: Settings, name: str | None) -> tuple[RunInfo, TrainingJob]:
    """Return the named run and its job; without a name (or `latest`) the last run that trained.

    Raises:
        DataNotFoundError: there is none.
        ChangedError: its job file cannot be read by this version.
    """
    out_dir = out_dir_of(settings)
    if name not in (None, "latest"):
        info = find_run(out_dir, str(name))
        return info, job_of(info)
    for info in list_runs(out_dir):
        job = job_of(info)
        if not job.evaluate_only:
            return info, job
    raise DataNotFoundError(f"no runs in {out_dir}", hint="Train one, or give out_dir=.")


def job_of(info: RunInfo) -> TrainingJob:
    """Return a run's job.

    Raises:
        ChangedError: its job file cannot be read by this version.
    """
    path = Path(info.path) / JOB_FILE
    try:
        return load_job(path)
    except (OSError, msgspec.DecodeError) as error:
        raise ChangedError(f"{path}: {error}") from error


def repeated_settings(settings: Settings, job: TrainingJob, info: RunInfo) -> Settings:
    """Return the settings of a run with what this command says above them.

    A stop rule that is said stands instead of all of the run's.
    """
    said = {name: value for name, value, source in settings.non_defaults() if source in NEAREST}
    kept = settings_of_job(job)
    if any(rule in said for rule in ALL_STOP_RULES):
        kept |= dict.fromkeys(ALL_STOP_RULES)
    if "batch_scope" not in said:
        kept["batch_scope"] = "global"  # a job's batch size is of all ranks
    values, sources = dict(settings.values), dict(settings.sources)
    for name, value in kept.items():
        values[name] = value
        sources[name] = f"run {info.name}" if _is_own(name, value) else "default"
    if job.token_ends:
        sources["eos_id"] = f"run {info.name}"  # said, though it is what it would be anyway

    def base_of(name: str) -> float | None:
        if name == "epochs" and job.epochs is None:
            return info.epoch
        base: float | None = settings_of_job(job).get(name)
        return base

    values |= make_absolute(said, base_of)
    sources |= {name: settings.sources[name] for name in said}
    return msgspec.structs.replace(settings, values=values, sources=sources)


def _is_own(name: str, value: Any) -> bool:
    """Tell a value that the run was given from a default, as it is or written into the job."""
    default = KEYS_BY_NAME[name].default
    if isinstance(value, list) and default is not None:
        default = list(default)
    if name == "cache_bytes":
        return bool(value != KEYS_BY_NAME["cache_gb"].default * 1e9)
    return value is not None and value != default


def settings_of_job(job: TrainingJob) -> dict[str, Any]:
    """Return the settings that make a job; the reverse of `job_settings.job_fields`."""
    kept = {name: getattr(job, name) for name in SAME_NAME}
    kept["epochs"] = job.epochs
    kept["gpus"] = None if job.processes == 1 else job.processes
    kept["batch_size"] = job.batch_size
    kept["cache_bytes"] = job.cache_bytes
    kept["betas"] = list(job.betas)
    kept["track"] = list(job.track) or None
    kept["checkpoint_every"] = _every(job.checkpoint_every)
    kept["eval_every"] = _every(job.eval_every)
    for name in PARTITION_OPTIONS:
        kept[name] = job.partition_options.get(name, KEYS_BY_NAME[name].default)
    if job.checkpoints is not None:
        above = job.checkpoints.prefix.rstrip("/").rpartition("/")[0]  # without the run's name
        kept["checkpoint_dir"] = f"{job.checkpoints.store.uri}/{above}".rstrip("/")
    kept |= settings_of_remote(job.remote)
    usual_there = job.remote is not None and job.cache_dir == usual_cache(job.remote)
    if job.cache_dir is not None and not usual_there:
        kept["cache_dir"] = job.cache_dir
    return kept


def repeated_request(
    request: TrainingRequest, slots: Mapping[str, Any], job: TrainingJob
) -> TrainingRequest:
    """Return the request with what the run had where the command says nothing."""
    same_data = not request.data
    return msgspec.structs.replace(
        request,
        model=slots.get("model") or job.model,
        weights=request.weights if not same_data or request.weights else job.weights,
        init_from=request.init_from or job.init_from,
    )


def repeated_data(
    request: TrainingRequest, settings: Settings, finder: DataFinder, job: TrainingJob
) -> FoundData:
    """Return the run's own data as it is now, with the validation data that the command names.

    Raises:
        UsageError: groups are picked, and the command does not say of what.
        DataNotFoundError: the data is gone.
    """
    if request.groups is not None:
        raise UsageError(
            "groups are picked of data that is named",
            hint='Say the data too: quark "again on PATH, groups 1 and 2".',
        )
    target = val_target(request, settings, finder)
    val = () if request.val is False or target is not None else job.val
    data = finder.describe(job.train, val, "as before")
    if target is None:
        return data
    beside = finder.validation(target)
    return msgspec.structs.replace(
        data, val=beside.val, planned=(*data.planned, *beside.planned), notes=beside.notes
    )


def _every(every: Every | None) -> dict[str, Any] | None:
    if every is None:
        return None
    fields: dict[str, Any] = msgspec.to_builtins(every)
    return {name: value for name, value in fields.items() if value is not None}
