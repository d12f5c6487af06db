"""What a machine is rented for: a training run, or anything else that ssh can start there."""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from brain.ml.training_job import Remote, RentalTerms, TrainingJob
from resource_manager.launch_target import RunHandle
from resource_manager.launch_targets.ssh import SshTarget
from tools_utilities.errors import UsageError
from tools_utilities.run_words import said_run

Tell = Callable[[str], None]


class Boarding(Protocol):
    """The way to one machine, over which one thing is started."""

    def look(self) -> None:
        """Look whether it can work there; writes nothing.

        Raises:
            OutOfReachError: the machine does not answer (yet).
            QuarkError: it cannot.
        """
        ...

    def launch(self) -> RunHandle:
        """Send everything and start it."""
        ...

    def break_off(self) -> None:
        """End the connection now, from any thread."""
        ...

    def close(self) -> None:
        """End the connection, if one is open; what was started goes on."""
        ...


class Cargo(Protocol):
    """What a machine is rented for."""

    name: str
    """Of the run, for labels and people."""
    folder: Path
    """Where records, metrics and log are kept here."""
    terms: RentalTerms
    remote: Remote
    """How Quark is set up there."""
    max_seconds: float | None
    """What it may take itself, beside the caps of the terms."""
    goes_on: str
    """How it is gone on with, for people."""
    only_offer: bool
    """Nothing but the offer that was named is rented, also when its machine is lost."""

    def boarding(self, remote: Remote, tell: Tell, deadline_seconds: float) -> Boarding:
        """Return the way to a machine; nothing is connected yet."""
        ...

    def lost(self) -> None:
        """Its machine was taken away: the next launch goes on from what was saved."""
        ...


class JobCargo:
    """A training run."""

    only_offer = False

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self.remote, self.terms = terms_of(job)
        self.name, self.folder = job.name, Path(job.run_dir)
        self.max_seconds = job.max_seconds
        self.goes_on = f"Its checkpoints are kept: quark resume {said_run(job.name)}"

    def boarding(self, remote: Remote, tell: Tell, deadline_seconds: float) -> Boarding:
        """As of Cargo."""
        job = msgspec.structs.replace(self._job, remote=remote, detach=False)
        return _JobBoarding(job, SshTarget(tell, deadline_seconds=deadline_seconds))

    def lost(self) -> None:
        """As of Cargo."""
        self._job = msgspec.structs.replace(self._job, resume="auto", from_step=None)


class _JobBoarding:
    def __init__(self, job: TrainingJob, ssh: SshTarget) -> None:
        self._job, self._ssh = job, ssh
        self.break_off, self.close = ssh.break_off, ssh.close

    def look(self) -> None:
        self._ssh.look(self._job)

    def launch(self) -> RunHandle:
        return self._ssh.launch(self._ssh.plan(self._job))


def terms_of(job: TrainingJob) -> tuple[Remote, RentalTerms]:
    """Return the machine that a job names, and what it is rented for."""
    if job.remote is None or job.remote.terms is None:
        raise UsageError("this job rents nothing", hint="Say where: on vast.")
    return job.remote, job.remote.terms
