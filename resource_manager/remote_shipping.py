"""What a job becomes on another machine, and the files that go with it.

Paths of this machine mean nothing there: files that a run needs are sent and their paths rewritten;
what cannot be sent (a dataset in a local folder, one's own code) is refused before anything starts.
"""

from pathlib import Path

import msgspec

from brain.ml.checkpoint_files import LATEST_FILE
from brain.ml.checkpoint_place import checkpoint_of, choose_checkpoint, place_of
from brain.ml.hf_folder import hf_folder
from brain.ml.job_check import check_job
from brain.ml.model_name import HF_PREFIX, is_hf, is_own
from brain.ml.run_files import CHECKPOINTS_FOLDER
from brain.ml.tokenizer import BYTES
from brain.ml.training_job import DataSource, TrainingJob
from resource_manager.remote_credentials import travelling_spec
from resource_manager.remote_r2 import READ, WRITE, Grant, keys_of
from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.object_store import StoreSpec
from tools_utilities.reading_hints import typed

FILES_FOLDER = "files"
START, MODEL, TOKENIZER = (
    f"{FILES_FOLDER}/{name}" for name in ("start", "model", "tokenizer.json")
)


class Shipment(msgspec.Struct, frozen=True, kw_only=True):
    """A job as the other machine gets it."""

    job: TrainingJob
    files: tuple[tuple[Path, str], ...]
    """File here → path below the run's folder there."""
    pointed: str | None = None
    """The checkpoint that the run goes on from."""


def check_shipping(job: TrainingJob) -> None:
    """Refuse a job that means nothing on another machine. Pure.

    Raises:
        UsageError: naming what is only here, and what to do about it.
    """
    where = job.remote.where if job.remote is not None else "local"
    check_job(job, job.processes)
    for source in (*job.train, *job.val):
        if source.store.uri.startswith(("file://", "memory://")):
            _refuse_local_data(source, where)
    if job.checkpoints is not None and job.checkpoints.store.uri.startswith("file://"):
        raise UsageError(
            f"checkpoint_dir={job.checkpoints.store.uri.removeprefix('file://')}: a folder of this"
            f" machine, and the run is on {where}",
            hint="Leave it out: checkpoints are brought into the run's folder here. Or s3://….",
        )
    if job.command is not None or is_own(job.model):
        raise UsageError(
            f"model {job.model}: your own code is on this machine, and the run is on {where}",
            hint="Quark's and hf: models are sent; with your own code, start quark over there.",
        )
    if job.nodes > 1:
        raise UsageError(
            f"nodes={job.nodes}: a run on {where} is one node", hint="Use gpus=N for its GPUs."
        )


def _refuse_local_data(source: DataSource, where: str) -> None:
    path = source.store.uri.removeprefix("file://").rstrip("/") + "/" + source.prefix
    raise UsageError(
        f"{path}: this data is only on this machine, and the run is on {where}",
        hint=f"Upload it, and train on that: {typed(f'shard {path} to s3://BUCKET/PREFIX')}",
    )


def shipment_of(
    job: TrainingJob, run_dir: str, cache_dir: str | None, grants: tuple[Grant, ...] = ()
) -> Shipment:
    """Return a job for a run folder and a cache folder there; reads checkpoints and models here.

    `grants`: the credentials that are sent with it, where there are several.

    Raises:
        DataNotFoundError: there is no checkpoint to go on from.
    """
    files: list[tuple[Path, str]] = []
    changes: dict[str, object] = {}
    if job.tokenizer != BYTES:
        files.append((Path(job.tokenizer), TOKENIZER))
        changes["tokenizer"] = f"{run_dir}/{TOKENIZER}"
    if is_hf(job.model):
        files += _below(hf_folder(job.model), MODEL)
        changes["model"] = f"{HF_PREFIX}{run_dir}/{MODEL}"
    if job.init_from is not None:
        files += _below(checkpoint_of(Path(job.init_from)), START)
        changes["init_from"] = f"{run_dir}/{START}"
    pointed = _resumed(job)
    if pointed is not None:
        files += _below(place_of(job).path_of(pointed), f"{CHECKPOINTS_FOLDER}/{pointed}")
    counts = None if job.counts_dir is None or cache_dir is None else f"{cache_dir}/counts"
    shipped = msgspec.structs.replace(
        job,
        run_dir=run_dir,
        train=tuple(_travelling(source, grants) for source in job.train),
        val=tuple(_travelling(source, grants) for source in job.val),
        checkpoints=None
        if job.checkpoints is None
        else msgspec.structs.replace(
            job.checkpoints, store=_with_keys(job.checkpoints.store, grants, WRITE)
        ),
        cache_dir=None if job.cache_dir is None else cache_dir,
        counts_dir=counts,
        remote=None,
        detach=False,
        **changes,
    )
    return Shipment(job=shipped, files=tuple(files), pointed=pointed)


def pointer(shipment: Shipment) -> tuple[str, bytes] | None:
    """Return the file that names the newest checkpoint there, and its content."""
    if shipment.pointed is None:
        return None
    return f"{CHECKPOINTS_FOLDER}/{LATEST_FILE}", f"{shipment.pointed}\n".encode()


def _resumed(job: TrainingJob) -> str | None:
    """Return the checkpoint that a run goes on from; those in a store it finds there itself."""
    if (job.resume is None and job.from_step is None) or job.checkpoints is not None:
        return None
    name, rejected = choose_checkpoint(place_of(job), from_step=job.from_step)
    if name is None and job.resume == "latest":
        reasons = "".join(f"; {one.name}: {one.reason}" for one in rejected)
        raise DataNotFoundError(
            f"{job.name} has no whole checkpoint here to go on from{reasons}",
            hint="`quark list` shows the runs.",
        )
    return name


def _below(folder: Path, there: str) -> list[tuple[Path, str]]:
    return [
        (path, f"{there}/{path.relative_to(folder).as_posix()}")
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    ]


def _travelling(source: DataSource, grants: tuple[Grant, ...]) -> DataSource:
    return msgspec.structs.replace(source, store=_with_keys(source.store, grants, READ))


def _with_keys(spec: StoreSpec, grants: tuple[Grant, ...], permission: str) -> StoreSpec:
    keys = keys_of(grants, spec, permission)
    return msgspec.structs.replace(travelling_spec(spec), keys=keys)
