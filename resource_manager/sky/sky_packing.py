"""A run as it is handed to SkyPilot: the folder that is sent, what it is held to, and what goes beside it."""

import shutil
from pathlib import Path

import msgspec

from brain.ml.run_files import JOB_FILE
from brain.ml.training_job import RentalTerms, TrainingJob, load_job
from resource_manager.exporting import (
    Asked,
    Exported,
    check_travels,
    exported,
    files_beside,
    write_files,
)
from resource_manager.exports.skypilot import FOLDER, SkyPilot
from resource_manager.remote_credentials import Sent
from resource_manager.sky.sky_task import STOP_FILE, TASK, Held, task_text
from tools_utilities.errors import InputNeededError, UsageError


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """All that a launch needs."""

    job: TrainingJob
    """As it is here."""
    made: Exported
    held: Held
    sent: Sent
    where: str
    terms: RentalTerms


def packed_of(job: TrainingJob, held: Held, sent: Sent, terms: RentalTerms, where: str) -> Packed:
    """Return a run as it is handed over; reads the files that go with it.

    Raises:
        UsageError: it needs what is only on this machine.
    """
    asked = Asked(gpus=terms.gpus or 0, gpu_type=terms.gpu_type, spot=terms.spot)
    made = exported(job, SkyPilot(held.folder), asked, sent.grants)
    return Packed(job=job, made=made, held=held, sent=sent, where=where, terms=terms)


def cloud_terms(job: TrainingJob) -> RentalTerms:
    """Return what a job's machines may cost.

    Raises:
        UsageError: it names no cloud.
    """
    if job.remote is None or job.remote.terms is None:
        raise UsageError("this job names no cloud", hint="Say where: on aws.")
    return job.remote.terms


def check_job_there(job: TrainingJob) -> None:
    """Refuse a job that means nothing there, or whose checkpoints would be gone with its machine. Pure.

    Raises:
        UsageError: naming what is only here.
        InputNeededError: nobody said where its checkpoints go.
    """
    where = "" if job.remote is None else job.remote.where
    check_travels(job, where)
    if job.checkpoints is None and not job.evaluate_only:
        raise InputNeededError(
            f"where={where}: nobody said where the checkpoints go, and they would go with the machine",
            hint="Say it: --override checkpoint_dir=s3://BUCKET/PREFIX.",
        )


def folder_there(job: TrainingJob) -> str:
    """Return Quark's own folder on the machines: what was said, if it is a whole path."""
    said = job.remote.folder if job.remote is not None else ""
    return said if said.startswith("/") else FOLDER


def stop_file_in(run_dir: Path) -> str:
    """Return the file there by which a run is asked to end; `run_dir`: its folder here."""
    job = load_job(run_dir / JOB_FILE)
    return f"{folder_there(job)}/runs/{job.name}/{STOP_FILE}"


def keep_task(folder: Path) -> None:
    """Remove what was sent but its task: a model of some GB lies here already."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != TASK:
            path.unlink()


def write_folder(folder: Path, packed: Packed, held: Held) -> None:
    """Write what is sent; what an earlier launch left there is replaced."""
    task = {TASK: task_text(packed.made.export, held).encode()}
    write_files(folder, files_beside(packed.made) | task)
