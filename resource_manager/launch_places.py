"""Which target a job is launched by, and which one knows a run that was: by the word before the colon."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from brain.ml.training_job import TrainingJob
from resource_manager.launch_target import LaunchTarget
from resource_manager.remote_record import read_record
from resource_manager.remote_settings import SKY, is_cloud
from resource_manager.rental.rental_record import read_rental
from tools_utilities.errors import UsageError
from tools_utilities.plugins import load_plugins

LOCAL = "local"
Tell = Callable[[str], None]


@cache
def launch_targets() -> dict[str, LaunchTarget]:
    """Return every target by its name."""
    return load_plugins("resource_manager.launch_targets", "LAUNCH_TARGET")


def target_of(where: str) -> LaunchTarget:
    """Return the target of a place: `local`, `ssh:HOST`, `aws`.

    Raises:
        UsageError: there is none of that name.
    """
    name = SKY if is_cloud(where) else where.partition(":")[0]
    found = launch_targets().get(name)
    if found is None:
        known = ", ".join(launch_targets())
        raise UsageError(
            f"where={where}: nothing of this version goes there", hint=f"Known: {known}."
        )
    return found


def where_of(job: TrainingJob) -> str:
    """Return where a job is launched, in the words of the command."""
    return LOCAL if job.remote is None else job.remote.where


def where_is(run_dir: Path) -> str:
    """Return where a run was launched last."""
    if (rental := read_rental(run_dir)) is not None:
        return rental.where if is_cloud(rental.where) else f"{rental.where}:{rental.label}"
    record = read_record(run_dir)
    return LOCAL if record is None else record.remote.where


@contextmanager
def asked_target(run_dir: Path, tell: Tell, *, may_ask: bool = True) -> Iterator[LaunchTarget]:
    """Enter with the target that knows a run; what it opens is closed again."""
    target = target_of(where_is(run_dir)).for_command(tell, may_ask=may_ask)
    try:
        yield target
    finally:
        target.close()
