"""`attach`: the live view of a run that goes on, from any terminal; Ctrl-C ends the view alone.

The run is told from its folder, so it may be another terminal's, in the background, or on a machine that
shares the folder.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brain.ml.run_files import METRICS_FILE
from resource_manager.launching import say_how_it_ended, say_left
from resource_manager.next_commands import runs_flag
from resource_manager.repeating import job_of
from resource_manager.run_commands import run_of
from resource_manager.run_watch import Bond, RunWatch
from resource_manager.runs import read_run
from tools_utilities.console import Console
from tools_utilities.errors import UsageError
from tools_utilities.run_words import said_run
from tools_utilities.settings import Settings

LOOK_SECONDS = 0.5
"""Between two looks at whether the run goes on; its events are seen sooner."""


class OthersRun:
    """A run of another process as its folder tells it; it can be looked at and no more."""

    pid = 0

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir, self._clock = run_dir, clock
        self._looked_at = clock()

    def poll(self) -> int | None:
        """Return the exit code, 1 of a run that is lost, or None while it runs."""
        if self._clock() - self._looked_at < LOOK_SECONDS:
            return None
        self._looked_at = self._clock()
        info = read_run(self._run_dir)
        if info.status == "running":
            return None
        if info.exit_code is not None:
            return info.exit_code
        return 0 if info.status == "finished" else 1

    def wait(self, timeout_seconds: float | None = None) -> int:
        """Nobody waits for another one's run this way."""
        raise TimeoutError(f"run {self._run_dir.name} is another process's ({timeout_seconds} s)")

    def news(self) -> list[str]:
        """Return nothing: there is no way to the run but its folder."""
        return []

    def interrupt(self) -> None:
        """Leave the run alone."""

    def terminate(self) -> None:
        """Leave the run alone."""

    def kill(self) -> None:
        """Leave the run alone."""


def attach_command(settings: Settings, slots: Mapping[str, Any], console: Console) -> int:
    """Show a run until it ends, and return its exit code; 0 when the looking ends first.

    Raises:
        DataNotFoundError: there is no such run.
        UsageError: it does not run.
    """
    info = run_of(settings, slots.get("run"))
    flag = runs_flag(settings)
    if info.status != "running":
        raise UsageError(
            f"{info.name} is not running: {info.status}",
            hint=f"`quark show {said_run(info.name)}{flag}` says how it ended.",
        )
    job, run_dir = job_of(info), Path(info.path)
    watch = RunWatch(
        info.name, run_dir / METRICS_FILE, console,
        bond=Bond(saves=not job.evaluate_only, looks_on=True),
    )  # fmt: skip

    def look() -> OthersRun:
        # Within `follow`, since a Ctrl-C may come while the beginning is still being shown.
        watch.catch_up()
        return OthersRun(run_dir)

    code = watch.follow(look)
    if watch.left:
        return say_left(job, console, flag)
    return say_how_it_ended(watch, code, job, console, flag)
