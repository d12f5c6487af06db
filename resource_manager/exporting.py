"""`export`: a folder from which a scheduler starts a run; nothing is started and no run is made here."""

import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path, PurePosixPath

import msgspec

from brain.ml.job_check import check_job
from brain.ml.run_files import JOB_FILE
from brain.ml.training_job import Remote, TrainingJob
from resource_manager.accelerators import Accelerators
from resource_manager.export_format import Export, ExportFormat
from resource_manager.quark_wheel import Wheel, build_wheel
from resource_manager.remote_credentials import GOOGLE_KEY, S3_SCHEMES
from resource_manager.remote_r2 import Grant
from resource_manager.remote_shipping import check_shipping, shipment_of
from tools_utilities.console import SCHEMA, Console
from tools_utilities.errors import InputNeededError, UsageError
from tools_utilities.plugins import load_plugins
from tools_utilities.private_files import write_private
from tools_utilities.process_environment import own_program
from tools_utilities.settings import Settings
from tools_utilities.terminal_text import with_commands

FIRST_NODE = "first-node:29400"
"""In the job of several nodes; where they meet is known when they start."""
RENTED = ("gpu_type", "spot")
"""Settings that a scheduler is asked for."""
_CONSTRAINTS = "constraints.txt"
_VARIABLES = {
    **dict.fromkeys(S3_SCHEMES, ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")),
    "gs": (GOOGLE_KEY,),
    "az": ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"),
}


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler is asked for on each node."""

    gpus: int = 0
    gpu_type: str | None = None
    spot: bool = False


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """All that an export's folder is made of."""

    export: Export
    files: tuple[tuple[Path, str], ...] = ()
    """File here → path in the folder."""
    wheel: Wheel | None = None


@cache
def export_formats() -> dict[str, ExportFormat]:
    """Return every format by its name."""
    return load_plugins("resource_manager.exports", "EXPORT_FORMAT")


def format_of(name: object) -> ExportFormat:
    """Return the format that a sentence names.

    Raises:
        InputNeededError: it names none.
        UsageError: it names another one.
    """
    known = ", ".join(export_formats())
    if name is None:
        raise InputNeededError(
            f"export needs a scheduler: {known}", hint='quark "export fox-12 for slurm"'
        )
    found = export_formats().get(str(name))
    if found is None:
        raise UsageError(f"export for {name}: it is none of {known}")
    return found


def without_rented(settings: Settings) -> tuple[Settings, Asked]:
    """Return the settings of the run itself, and what is asked of the scheduler."""
    asked = Asked(gpu_type=settings.value("gpu_type"), spot=bool(settings.value("spot")))
    values = {**settings.values, **dict.fromkeys(RENTED)}
    return msgspec.structs.replace(settings, values=values), asked


def asked_gpus(job: TrainingJob, settings: Settings) -> int:
    """Return the GPUs that are asked for on each node: as many as were said, or one for `cuda`."""
    if job.device == "cpu":
        return 0
    return job.processes if settings.value("gpus") or job.device == "cuda" else 0


def scheduled_accelerators(gpus: int) -> Accelerators:
    """Return what a scheduler is taken to give: what it is asked for."""
    return Accelerators(cuda=bool(gpus), cards=gpus, mps=False, why="no GPU is asked for")


def check_new(folder: Path) -> None:
    """Refuse to write where something is.

    Raises:
        UsageError: it is there already.
    """
    if folder.exists():
        raise UsageError(
            f"{folder} is there already", hint="Name another folder (to PATH), or remove it."
        )


def exported(
    job: TrainingJob, target: ExportFormat, asked: Asked, grants: tuple[Grant, ...] = ()
) -> Exported:
    """Return a job as it runs there, the files that go with it, and Quark where it is shipped.

    `grants`: credentials that were made for the run, which its stores are named by.

    Raises:
        InputNeededError: nothing says which GPUs, and the scheduler must know.
        UsageError: the job needs what is only on this machine.
    """
    check_job(job, job.processes * job.nodes)
    if asked.gpus and target.needs_gpu_type and asked.gpu_type is None:
        raise InputNeededError(
            f"{target.name} needs the name of the GPUs", hint=f"Say which: on {asked.gpus} a100s."
        )
    meeting = FIRST_NODE if job.nodes > 1 else None
    # Started again by the scheduler, it goes on.
    job = msgspec.structs.replace(
        job, rendezvous=meeting, detach=False, resume=job.resume or "auto", remote=None
    )
    files: tuple[tuple[Path, str], ...] = ()
    wheel = None
    if target.ships:
        check_travels(job, target.name)
        shipment = shipment_of(
            job, str(PurePosixPath(target.run_root, job.name)), target.cache_folder, grants
        )
        job, files, wheel = shipment.job, shipment.files, build_wheel(_extras(job))
    if files and not target.sends_files:
        raise UsageError(
            f"{files[0][0]}: a file of this machine, and {target.name} takes none along",
            hint="Export for slurm or skypilot.",
        )
    export = Export(
        job=job,
        gpus=asked.gpus,
        gpu_type=asked.gpu_type,
        spot=asked.spot,
        folder=job.run_dir,
        program=own_program("")[:1],
        wheel="" if wheel is None else wheel.file_name,
        variables=variables_of(job),
    )
    return Exported(export=export, files=files, wheel=wheel)


def write_export(folder: Path, target: ExportFormat, made: Exported) -> None:
    """Write the folder; it is not there yet."""
    check_new(folder)
    texts = {name: text.encode() for name, text in target.texts(made.export).items()}
    write_files(folder, texts | files_beside(made))


def write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files, by their paths in a folder, for their owner alone."""
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_private(folder / name, content)


def files_beside(made: Exported) -> dict[str, bytes]:
    """Return what goes beside the scheduler's own files: the job, what it needs, and Quark."""
    contents = {JOB_FILE: msgspec.yaml.encode(made.export.job)}
    if made.wheel is not None:
        contents[made.wheel.file_name] = made.wheel.data
        contents[_CONSTRAINTS] = "\n".join([*made.wheel.constraints, ""]).encode()
    return contents | {name: path.read_bytes() for path, name in made.files}


def say_exported(console: Console, folder: Path, target: ExportFormat, made: Exported) -> None:
    """Say what was written, what whoever submits it must know, and what is typed next."""
    console.note(*export_notes(target, made.export))
    next_command = target.next_command(folder)
    data = {
        "schema": SCHEMA,
        "event": "export",
        "format": target.name,
        "name": made.export.job.name,
        "folder": str(folder),
        "variables": list(made.export.variables),
        "next": next_command,
    }
    console.result([str(folder), with_commands(f"next: {next_command}")], data)


def variables_of(job: TrainingJob) -> tuple[str, ...]:
    """Return the names of the variables with which a job's stores are reached."""
    specs = [source.store for source in (*job.train, *job.val)]
    specs += [job.checkpoints.store] if job.checkpoints is not None else []
    names = [
        name
        for spec in specs
        if not spec.anonymous
        for name in _VARIABLES.get(spec.uri.partition("://")[0], ())
    ]
    return tuple(dict.fromkeys(names))


def export_notes(target: ExportFormat, export: Export) -> list[str]:
    """Return what whoever submits it must know."""
    notes = []
    if export.variables:
        notes.append(
            f"credentials: {', '.join(export.variables)} {target.credentials}; none is in the files"
        )
    if target.ships and export.job.checkpoints is None:
        notes.append(
            f"checkpoints stay in {export.folder} and go with the machine:"
            " with checkpoint_dir=s3://… a run that is started again goes on"
        )
    if not target.ships:
        notes.append(
            f"the nodes need {shlex.quote(export.folder)} and this Python under these paths"
        )
    return notes


def check_travels(job: TrainingJob, where: str) -> None:
    """Refuse a job that needs what is only on this machine; several nodes are no reason. Pure.

    Raises:
        UsageError: naming it.
    """
    if job.checkpoints is not None and job.checkpoints.store.uri.startswith("file://"):
        raise UsageError(
            f"checkpoint_dir={job.checkpoints.store.uri.removeprefix('file://')}: a folder of this"
            f" machine, and the run is to be on {where}",
            hint="Give a store: checkpoint_dir=s3://BUCKET/PREFIX.",
        )
    alone = msgspec.structs.replace(job, nodes=1, rendezvous=None)
    check_shipping(msgspec.structs.replace(alone, remote=Remote(where=where)))


def _extras(job: TrainingJob) -> tuple[str, ...]:
    return ("hf",) if job.model.startswith("hf:") else ()
