"""The contract of a launch target: a pure, priced plan, then a launch that sends it.

`resource_manager/launch_targets/` holds one target a file, each ending in `LAUNCH_TARGET`.
Every target starts the same program: `python -m brain.ml.train job.yaml`. What a run on another
machine does is brought into its run folder here, so that `list`, `show` and `logs` read one place.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from brain.ml.training_job import TrainingJob
from resource_manager.accelerators import Accelerators


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a rented machine costs, and what ends it at the latest."""

    dollars_per_hour: float
    basis: str
    """Where the price comes from: an offer's number and when it was read."""
    max_dollars: float | None = None
    max_seconds: float | None = None
    """One of the two caps is set: the run is ended, and the machine given back, when it is reached."""


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly what will be started; made without side effects."""

    job: TrainingJob
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables added to the parent's own; never a secret."""
    log_path: Path
    """Standard output and error of the run go here."""
    price: Price | None = None
    """None: nobody bills it."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a look at the machine of a job has found, before anything is started."""

    accelerators: Accelerators
    facts: tuple[tuple[str, str], ...] = ()
    """Lines of the plan: what there is, what is sent, what becomes of it at the end."""
    warnings: tuple[str, ...] = ()
    price: Price | None = None
    """Of one that would be rented."""
    starts: bool = True
    """False: what would start it is not here; its files are written instead (`WritesTasks`)."""


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a run stands where it runs."""

    state: str
    """starting, running, ended, lost (its processes are gone, and said nothing) or unreachable."""
    exit_code: int | None = None
    why: str = ""
    """Of `unreachable` and `lost`, for people."""


class RunHandle(Protocol):
    """A launched run, seen from the process that launched it."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs.

        Raises:
            MachineError: nobody can say: its machine is out of reach.
        """
        ...

    def wait(self, timeout_seconds: float | None = None) -> int:
        """Wait for the end and return the exit code; TimeoutError when it takes longer."""
        ...

    def interrupt(self) -> None:
        """Ask the run to save and stop (exit 130)."""
        ...

    def terminate(self) -> None:
        """Ask the run to save and stop (exit 143)."""
        ...

    def kill(self) -> None:
        """End every process of the run now, saving nothing."""
        ...

    def news(self) -> list[str]:
        """Return what there is to say of the way to the run since the last call."""
        ...


class LaunchTarget(Protocol):
    """A place where runs can be started."""

    name: str
    """What stands before the colon of `where`: local, ssh, vast."""

    def for_command(self, tell: Callable[[str], None], *, may_ask: bool = True) -> "LaunchTarget":
        """Return the target for one command, which may keep a connection.

        `tell` says what takes long; `may_ask`: the way there may ask the person (a passphrase).
        """
        ...

    def close(self) -> None:
        """End what the command has kept open; what it started goes on."""
        ...

    def look(self, job: TrainingJob) -> Machine:
        """Return what is there for a job; reads only.

        Raises:
            QuarkError: the run cannot work there.
        """
        ...

    def plan(self, job: TrainingJob) -> LaunchPlan:
        """Return what `launch` would start. Pure."""
        ...

    def launch(self, plan: LaunchPlan) -> RunHandle:
        """Start it and return at once.

        Raises:
            QuarkError: it did not start; what the error does not name is not there.
        """
        ...

    def attach(self, run_dir: Path) -> RunHandle:
        """Return a run that was launched before, to look at; what asks it to end does nothing."""
        ...

    def status(self, run_dir: Path) -> RunStatus:
        """Ask how a run stands; its metrics and its log come into its folder."""
        ...

    def collect(self, run_dir: Path) -> None:
        """Bring the checkpoints of a run that has ended."""
        ...

    def logs(self, run_dir: Path) -> Path:
        """Return its log, brought up to date."""
        ...

    def stop(self, run_dir: Path) -> None:
        """Ask a run to save and stop; returns at once."""
        ...

    def remove(self, run_dir: Path) -> None:
        """Remove what is left of a run that has ended, where it was."""
        ...

    def verify_gone(self, run_dir: Path) -> tuple[str, ...]:
        """Read back what there still is of a run that costs something: processes, rented machines."""
        ...


@runtime_checkable
class WritesTasks(Protocol):
    """A target whose runs another program starts, which may not be here."""

    def written(self, job: TrainingJob, folder: Path) -> str:
        """Write what that program is given into a new folder; returns the command to type."""
        ...
