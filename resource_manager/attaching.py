"""`attach`: the live view of a run that goes on, from any terminal; Ctrl-C ends the view alone.

The run is told from its folder, so it may be another terminal's, in the background, or on a machine that
shares the folder; one that was launched on another machine is followed through its target.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brain.ml.run_files import METRICS_FILE
from resource_manager.launch_places import asked_target
from resource_manager.launch_target import RunHandle
from resource_manager.launching import say_how_it_ended, say_left
from resource_manager.next_commands import runs_flag
from resource_manager.remote_runs import checkpoint_here, current_run, error_here
from resource_manager.rental.rental_record import cost_reader
from resource_manager.repeating import job_of
from resource_manager.run_commands import run_of
from resource_manager.run_watch import Bond, RunWatch
from tools_utilities.console import Console
from tools_utilities.errors import UsageError
from tools_utilities.run_words import said_run
from tools_utilities.settings import Settings


def attach_command(settings: Settings, slots: Mapping[str, Any], console: Console) -> int:
    """Show a run until it ends, and return its exit code; 0 when the looking ends first.

    Raises:
        DataNotFoundError: there is no such run.
        UsageError: it does not run.
        MachineError: its machine is out of reach.
    """
    info = current_run(run_of(settings, slots.get("run")), console.note)
    flag = runs_flag(settings)
    if info.status != "running":
        raise UsageError(
            f"{info.name} is not running: {info.status}",
            hint=f"`quark show {said_run(info.name)}{flag}` says how it ended.",
        )
    job, run_dir = job_of(info), Path(info.path)
    watch = RunWatch(
        info.name, run_dir / METRICS_FILE, console,
        bond=Bond(saves=not job.evaluate_only, looks_on=True, cost=cost_reader(run_dir)),
    )  # fmt: skip
    with asked_target(run_dir, console.note) as target:

        def look() -> RunHandle:
            # Within `follow`, since a Ctrl-C may come while the beginning is still being shown.
            watch.catch_up()
            return target.attach(run_dir)

        code = watch.follow(look)
    if job.remote is not None:
        watch.run.checkpoint = dict(checkpoint_here(watch.run.checkpoint, run_dir))
        watch.run.error = dict(error_here(watch.run.error, run_dir))
    if watch.left:
        return say_left(job, console, flag)
    return say_how_it_ended(watch, code, job, console, flag)
