"""The contract of an export: the files of a folder from which a scheduler starts a run. Pure.

`resource_manager/exports/` holds one format a file, each ending in `EXPORT_FORMAT`. All start the same
programs as `quark` does: `brain.ml.train`, or `brain.ml.elastic_agent` where there are several ranks.
"""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from brain.ml.run_files import JOB_FILE
from brain.ml.training_job import TrainingJob

RENDEZVOUS_PORT = 29400
SAVE_SECONDS = 600
"""What a run that is asked to end gets to save."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it is to be started elsewhere."""

    job: TrainingJob
    """With the paths of where it runs."""
    gpus: int
    """GPUs on each node; 0: none is asked for."""
    gpu_type: str | None = None
    spot: bool = False
    program: tuple[str, ...] = ()
    """The Python of this machine, as nodes that share its files start it."""
    wheel: str = ""
    """File name of Quark's wheel in the folder; empty where nothing is shipped."""
    variables: tuple[str, ...] = ()
    """Names of the variables with which the stores are reached; never their values."""
    folder: str = ""
    """The run's own folder where it runs; the files of the export are below `files/` of it."""


class ExportFormat(Protocol):
    """What one scheduler is given."""

    name: str
    """As the sentence says it: slurm, kubernetes, skypilot."""
    ships: bool
    """Whether paths of this machine mean nothing where the run is."""
    sends_files: bool
    """Whether files that the run needs (a model, a tokenizer) can go along."""
    run_root: str
    """Folder of runs there; empty: as here."""
    cache_folder: str
    """Of its machines; empty: as here."""
    needs_gpu_type: bool
    """Whether GPUs cannot be asked for without their name."""
    credentials: str
    """How the run gets the variables that its stores are reached with."""

    def texts(self, export: Export) -> Mapping[str, str]:
        """Return the files beside the job, by name."""
        ...

    def next_command(self, folder: Path) -> str:
        """Return what is typed next."""
        ...


def start_command(export: Export, python: tuple[str, ...], head: str) -> str:
    """Return a line of shell that starts this node's part of a run.

    `head` is a shell word for the first node's name; it is not quoted.
    """
    job, job_file = export.job, f"{export.folder}/{JOB_FILE}"
    several = job.processes * job.nodes > 1
    program = "brain.ml.elastic_agent" if several else "brain.ml.train"
    words = shlex.join([*python, "-P", "-m", program, job_file])
    if job.nodes > 1:
        words += f' --rendezvous "{head}:{RENDEZVOUS_PORT}"'
    return words
