"""A plan kept in a file (`--plan --out plan.json`) and carried out exactly (`--from-plan plan.json`).

The file holds the job, the plan and a mark of every object and weight that the job reads. Carried
out later, it is that job or none: an edited file, or data that is no longer what was planned, is
refused (exit 6).
"""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from brain.ml.checkpoint_files import COMPLETE_FILE, list_checkpoints
from brain.ml.run_files import CHECKPOINTS_FOLDER
from brain.ml.training_job import DataSource, TrainingJob
from resource_manager.next_commands import taken_hint
from resource_manager.plan import Plan, data_source_name
from tools_utilities.errors import ChangedError, DataNotFoundError, UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.object_store import ObjectInfo
from tools_utilities.prepared_types import prepared
from tools_utilities.private_files import write_private

Objects = Callable[[DataSource], Sequence[ObjectInfo]]
"""Lists a source as it is now."""


class DataMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a source was when it was planned."""

    source: str
    num_objects: int
    total_bytes: int
    fingerprint: str
    """SHA-256 over every object's key, size and version."""


@prepared
class SavedPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the file."""

    schema: int = 1
    job: TrainingJob
    plan: Plan
    data: tuple[DataMark, ...]
    weights: str | None = None
    """SHA-256 of the record of the checkpoint that the job starts from."""
    digest: str = ""
    """SHA-256 of all the rest."""


def save_plan(path: Path, job: TrainingJob, plan: Plan, objects: Objects) -> None:
    """Write a plan, atomically and readable by its owner alone.

    Raises:
        UsageError: the file cannot be written.
    """
    saved = SavedPlan(
        job=job, plan=plan, data=_marks(job, objects), weights=_weights_mark(job.init_from)
    )
    saved = msgspec.structs.replace(saved, digest=_digest(saved))
    try:
        write_private(path, msgspec.json.format(msgspec.json.encode(saved), indent=2) + b"\n")
    except OSError as error:
        raise UsageError(
            f"--out {path}: {error.strerror or error}", hint="Name a file that can be written."
        ) from error


def load_plan(path: Path) -> SavedPlan:
    """Return a saved plan whose content is as it was written.

    Raises:
        UsageError: there is no such file.
        ChangedError: it was edited, or another version wrote it.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"--from-plan {path}: {error.strerror or error}",
            hint='Save one: quark "train …" --plan --out plan.json',
        ) from error
    try:
        saved = decode_json(content, type=SavedPlan)
    except msgspec.DecodeError as error:
        raise ChangedError(f"{path}: not a plan as it was saved: {error}", hint=AGAIN) from error
    if saved.digest != _digest(saved):
        raise ChangedError(f"{path}: the plan was edited after it was saved", hint=AGAIN)
    return saved


AGAIN = "Make the plan again, with --plan --out."


def check_unchanged(saved: SavedPlan, objects: Objects, flag: str = "") -> None:
    """Compare the data and the weights of a saved plan with what there is now.

    `flag`: what a command needs to find the run.

    Raises:
        ChangedError: naming what differs.
        UsageError: the run's name is taken by now.
    """
    for before, now in zip(saved.data, _marks(saved.job, objects), strict=True):
        if before != now:
            raise ChangedError(
                f"{before.source}: the data changed since the plan was saved: "
                f"{before.num_objects} objects of {before.total_bytes} bytes then, "
                f"{now.num_objects} of {now.total_bytes} now",
                hint=AGAIN,
            )
    if saved.weights != _weights_mark(saved.job.init_from):
        raise ChangedError(
            f"{saved.job.init_from}: the weights changed since the plan was saved", hint=AGAIN
        )
    if Path(saved.job.run_dir).exists():
        raise UsageError(
            f"run {saved.job.name} exists: this plan was carried out already",
            hint=taken_hint(Path(saved.job.run_dir), "make a new plan", flag),
        )


def _marks(job: TrainingJob, objects: Objects) -> tuple[DataMark, ...]:
    return tuple(_mark(source, objects) for source in (*job.train, *job.val))


def _mark(source: DataSource, objects: Objects) -> DataMark:
    try:
        infos = objects(source)
    except DataNotFoundError:
        infos = []
    digest = hashlib.sha256()
    for info in infos:
        parts = (info.key, str(info.size_bytes), info.etag or "", info.crc32c or "")
        digest.update(
            msgspec.json.encode([part.encode("utf-8", "surrogateescape") for part in parts])
        )
    return DataMark(
        source=data_source_name(source),
        num_objects=len(infos),
        total_bytes=sum(info.size_bytes for info in infos),
        fingerprint=digest.hexdigest(),
    )


def _weights_mark(init_from: str | None) -> str | None:
    if init_from is None:
        return None
    folder = Path(init_from)
    if (folder / CHECKPOINTS_FOLDER).is_dir():
        found = list_checkpoints(folder / CHECKPOINTS_FOLDER)
        folder = found[0] if found else folder
    try:
        # The record holds the SHA-256 of every file of the checkpoint.
        return hashlib.sha256((folder / COMPLETE_FILE).read_bytes()).hexdigest()
    except OSError:
        return None


def _digest(saved: SavedPlan) -> str:
    whole = msgspec.structs.replace(saved, digest="")
    return hashlib.sha256(msgspec.json.encode(whole)).hexdigest()
