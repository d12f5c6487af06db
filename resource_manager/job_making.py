"""From a request, its settings and its data to the job and the plan of it. Reads, never writes."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import brain.ml.models
from brain.ml.hf_folder import hf_folder
from brain.ml.model_name import HF_PREFIX, check_own, is_hf, is_own
from brain.ml.training_job import CheckpointTarget, Remote, TrainingJob, load_job
from resource_manager.accelerators import (
    Accelerators,
    accelerators_here,
    device_notes,
    planned_device,
    planned_precision,
)
from resource_manager.data_finding import FoundData
from resource_manager.job_settings import changed_fields, job_fields, planned_settings
from resource_manager.launch_places import where_of
from resource_manager.next_commands import runs_flag, taken_hint
from resource_manager.order_looking import with_shuffle
from resource_manager.plan import (
    Plan,
    cache_warnings,
    epoch_tokens_of,
    filesystem_of,
    limits_of,
    parameters_of,
    request_warnings,
    schema_warnings,
    shuffle_warnings,
    steps_of,
)
from resource_manager.planned_text import end_warnings, planned_text
from resource_manager.remote_settings import usual_cache
from resource_manager.runs import check_run_name, list_runs, new_run_name, out_dir_of
from resource_manager.training_request import TrainingRequest
from tools_utilities.cache_folder import COUNTS_FOLDER
from tools_utilities.errors import CacheError, UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.settings import Settings

MOUNTS = Path("/proc/mounts")


def make_job(
    request: TrainingRequest, settings: Settings, data: FoundData, source: random.Random
) -> TrainingJob:
    """Return the job: named, its folder chosen but not made.

    Raises:
        UsageError: a setting or a model that this version cannot run.
    """
    out_dir = out_dir_of(settings)
    taken = {path.name for path in out_dir.iterdir()} if out_dir.is_dir() else set()
    model = known_model(request.model, settings)
    command = None if model in _kinds() else settings.models.get(model)
    fields = job_fields(settings, model)
    name = settings.value("name") or new_run_name(taken, source)
    check_run_name(name)
    if name in taken and fields["resume"] != "auto":
        raise UsageError(
            f"run {name} exists in {out_dir}",
            hint=taken_hint(out_dir / name, flag=runs_flag(settings)),
            name=name,
        )
    stores = {item.store.uri for item in (*data.train, *data.val)}
    streams = any(not uri.startswith(("file://", "memory://")) for uri in stores)
    cache_dir = cache_folder_of(settings, fields["remote"])
    return TrainingJob(
        name=name,
        run_dir=str(out_dir / name),
        model=model,
        command=command,
        project_dir=str(settings.root) if is_own(model) or command else None,
        train=data.train,
        val=data.val,
        weights=request.weights,
        cache_dir=cache_dir if streams else None,
        counts_dir=None if cache_dir is None else f"{cache_dir}/{COUNTS_FOLDER}",
        init_from=None if request.init_from is None else init_folder(request.init_from, settings),
        detach=bool(settings.value("detach")),
        checkpoints=checkpoint_target(settings, name),
        **fields,
    )


def cache_folder_of(settings: Settings, remote: Remote | None) -> str | None:
    """Return the cache folder of a run's machine; on another one as it is said, not as it is here."""
    if remote is None:
        cache_dir = settings.path("cache_dir")
        return None if cache_dir is None else str(cache_dir)
    if not settings.is_set("cache_dir"):
        return usual_cache(remote)
    said = settings.value("cache_dir")
    return None if said is None else str(said)


def moved_cache(settings: Settings, job: TrainingJob, remote: Remote | None) -> dict[str, Any]:
    """Return the cache of a job that goes on on another machine: the other one's."""
    folder = cache_folder_of(settings, remote)
    return {
        "cache_dir": None if job.cache_dir is None else folder,
        "counts_dir": None
        if job.counts_dir is None or folder is None
        else f"{folder}/{COUNTS_FOLDER}",
    }


def checkpoint_target(settings: Settings, name: str) -> CheckpointTarget | None:
    """Return where a run's checkpoints go: below `checkpoint_dir`, else (None) into its folder."""
    text = settings.value("checkpoint_dir")
    if not text:
        return None
    scheme, found, rest = str(text).partition("://")
    if not found or scheme == "file":
        folder = Path(rest) if found else settings.path("checkpoint_dir")
        return CheckpointTarget(store=StoreSpec(uri=f"file://{folder}"), prefix=f"{name}/")
    bucket, _, prefix = rest.partition("/")
    parts = [part for part in (prefix.strip("/"), name) if part]
    store = settings.store_spec(f"{scheme}://{bucket}")
    return CheckpointTarget(store=store, prefix="/".join(parts) + "/")


def known_model(name: str, settings: Settings) -> str:
    """Return a model's name when this version can train it.

    Raises:
        UsageError: nobody knows it.
    """
    names = _kinds()
    if name in names:
        return name
    if is_hf(name):
        typed = Path(name.removeprefix(HF_PREFIX))
        home = settings.environment.home
        if home is not None and typed.parts[:1] == ("~",):
            typed = home.joinpath(*typed.parts[1:])
        found = f"{HF_PREFIX}{settings.start_dir / typed}"
        hf_folder(found)
        return found
    if is_own(name):
        check_own(name, str(settings.root))
        return name
    if name in settings.models:
        program = settings.models[name][0]
        if shutil.which(program) is None and not (settings.root / program).is_file():
            raise UsageError(
                f"model {name}: there is no program {program}",
                hint="Mend its command in quark.yaml; it is started in the project's folder.",
            )
        return name
    raise UsageError(
        f"model {name}: no model of this version",
        hint=f"Known: {', '.join(names)}, hf:FOLDER, or your own: mypkg.models:build.",
    )


def _kinds() -> list[str]:
    """Return the models that are files of Quark's."""
    [folder] = brain.ml.models.__path__
    return sorted(path.stem for path in Path(folder).glob("[!_]*.py"))


def check_cache_folder(settings: Settings, job: TrainingJob) -> None:
    """Refuse a cache folder that was asked for and cannot be used, before anything is requested.

    Raises:
        CacheError: it is a file, or cannot be written.
    """
    if job.remote is not None or job.cache_dir is None or not settings.is_set("cache_dir"):
        return
    folder = Path(job.cache_dir)
    while not folder.exists():
        folder = folder.parent
    usable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    if not usable:
        what = "is not writable" if folder.is_dir() else "is a file"
        raise CacheError(
            f"cache_dir={job.cache_dir} ({settings.source('cache_dir')}): {folder} {what}",
            hint="Name a writable folder on a local disk, or leave cache_dir out.",
        )


def make_plan(
    request: TrainingRequest,
    settings: Settings,
    data: FoundData,
    job: TrainingJob,
    *,
    mounts: Callable[[], str] = lambda: MOUNTS.read_text() if MOUNTS.exists() else "",
    accelerators: Callable[[], Accelerators] = accelerators_here,
) -> Plan:
    """Return the plan of a job.

    Raises:
        InputNeededError: the records have no field that is clearly the text.
        QuarkError: the tokenizer's file cannot be used.
    """
    samples = data.samples
    if (job.text_key or job.template) and data.looks and data.looks[0] is not None:
        # Only who names a folder's column means it; it is never the one field that holds text.
        samples = tuple({**data.looks[0].folder_values, **sample} for sample in samples)
    text = planned_text(job, samples, data.planned[0].format if data.planned else None)
    steps, known = steps_of(job, data.planned, text)
    cached_here = job.cache_dir and job.remote is None
    filesystem = filesystem_of(str(job.cache_dir), mounts()) if cached_here else ""
    planned = with_shuffle(job, data)
    warnings = [
        *request_warnings(job, planned),
        *shuffle_warnings(planned),
        *schema_warnings(planned, strict=job.strict),
        *end_warnings(job, text.samples),
        *cache_warnings(job.cache_dir, filesystem),
        *settings.warnings,
    ]
    differences, earlier = _since_last_run(settings, job)
    here = accelerators()
    device = planned_device(job, here)
    return Plan(
        task=request.task,
        name=job.name,
        run_dir=job.run_dir,
        model=job.model,
        layers=job.layers if job.model == "quark" else None,
        parameters=parameters_of(job),
        data=planned,
        text=text.rule,
        samples=text.samples,
        where=where_of(job),
        device=device,
        processes=job.processes,
        nodes=job.nodes,
        precision=planned_precision(job, device),
        batch_size=job.batch_size,
        seq_len=job.seq_len,
        steps=steps,
        steps_known=known,
        limits=limits_of(job),
        earlier_seconds=earlier,
        epoch_tokens=epoch_tokens_of(job, data.planned, text.mean_bytes),
        settings=planned_settings(settings),
        differences=differences,
        notes=(*data.notes, *request.notes, *_machines(job), *device_notes(job, here)),
        warnings=tuple(warnings),
        canonical=request.canonical,
    )


def init_folder(text: str, settings: Settings) -> str:
    """Return a run's folder, or a checkpoint folder as an absolute path.

    Raises:
        UsageError: there is neither.
    """
    run = out_dir_of(settings) / text
    folder = run if "/" not in text and run.is_dir() else settings.start_dir / text
    if not folder.is_dir():
        raise UsageError(
            f"init_from {text}: no such run or checkpoint folder",
            hint="`quark list` names the runs.",
        )
    return str(folder)


def _machines(job: TrainingJob) -> tuple[str, ...]:
    """Return what the person must know of several machines."""
    if job.nodes == 1:
        return ()
    if job.rendezvous is None:
        return (
            (
                f"all {job.nodes} nodes are agents on this machine; for machines of their own"
                " give rendezvous=HOST:PORT and the same sentence on each"
            ),
        )
    return (
        (
            f"this machine is one of {job.nodes}, which meet at {job.rendezvous}; give the same"
            " sentence, name and resume=auto on each"
        ),
    )


def _since_last_run(settings: Settings, job: TrainingJob) -> tuple[tuple[str, ...], float | None]:
    """Return what differs from the last run, and its seconds if nothing does."""
    runs = list_runs(out_dir_of(settings))
    if not runs:
        return (), None
    last = runs[0]
    try:
        before = load_job(Path(last.path) / "job.yaml")
    except (OSError, msgspec.DecodeError):  # a run of another version: nothing to compare with
        return (), None
    differences = changed_fields(job, before)
    same = not differences and job.train == before.train and last.status == "finished"
    return differences, last.seen_at - last.created_at if same else None
