"""The contract of a launch target: a pure plan, then a launch that sends it.

`resource_manager/launch_targets/` holds one target a file, each ending in `LAUNCH_TARGET`.
Every target starts the same program: `python -m brain.ml.train job.yaml`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from brain.ml.training_job import TrainingJob


class LaunchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly what will be started; made without side effects."""

    job: TrainingJob
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables added to the parent's own; never a secret."""
    log_path: Path
    """Standard output and error of the run go here."""


class RunHandle(Protocol):
    """A launched run, seen from the process that launched it."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
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


class LaunchTarget(Protocol):
    """A place where runs can be started."""

    name: str

    def plan(self, job: TrainingJob) -> LaunchPlan:
        """Return what `launch` would start. Pure."""
        ...

    def launch(self, plan: LaunchPlan) -> RunHandle:
        """Start it and return at once."""
        ...
