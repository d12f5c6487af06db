"""Runs on other machines, for commands that read run folders: asked first, so that the folder is right.

A machine that cannot be reached is said, and the run counts as it was when it was last seen.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from brain.ml.checkpoint_files import list_checkpoints, step_of
from brain.ml.run_files import BROKEN_FILE, CHECKPOINTS_FOLDER
from resource_manager.launch_places import asked_target
from resource_manager.remote_record import read_record
from resource_manager.rental.rental_record import read_rental
from resource_manager.runs import RunInfo, read_run, stop_run, wait_stopped
from tools_utilities.errors import MachineError, QuarkError

Tell = Callable[[str], None]
AT_ONCE = 8
"""Machines that are asked at the same time."""
LOOK_SECONDS = 0.5


def bring_up_to_date(run_dirs: Iterable[Path], tell: Tell) -> bool:
    """Ask the machines of runs that are not known to have ended; returns whether any was asked.

    Nothing here waits for a person: a machine that wants a passphrase counts as out of reach.
    """
    waiting = [path for path in run_dirs if _may_go_on(path)]
    if not waiting:
        return False

    def ask(run_dir: Path) -> str:
        try:
            with asked_target(run_dir, tell, may_ask=False) as target:
                status = target.status(run_dir)
        except QuarkError as error:
            return f"{run_dir.name}: {error}; as last seen"
        return (
            f"{run_dir.name}: {status.why}; as last seen" if status.state == "unreachable" else ""
        )

    with ThreadPoolExecutor(min(AT_ONCE, len(waiting))) as pool:
        for said in pool.map(ask, waiting):
            if said:
                tell(said)
    return True


def _may_go_on(run_dir: Path) -> bool:
    """Whether a run elsewhere, or the machine that was rented for it, is not known to have ended."""
    record, rental = read_record(run_dir), read_rental(run_dir)
    return (record is not None and not record.ended) or (rental is not None and not rental.is_over)


def is_elsewhere(run_dir: Path) -> bool:
    """Whether a run was launched on another machine, or one is rented for it."""
    return read_record(run_dir) is not None or read_rental(run_dir) is not None


def current_run(info: RunInfo, tell: Tell, *, whole: bool = False) -> RunInfo:
    """Return a run as it stands now; `whole`: with its checkpoints, if it has ended.

    Raises:
        MachineError: they are not here and cannot be brought.
    """
    run_dir = Path(info.path)
    if not is_elsewhere(run_dir):
        return info
    bring_up_to_date([run_dir], tell)
    if whole:
        with asked_target(run_dir, tell) as target:
            target.collect(run_dir)
    return read_run(run_dir)


def bring_checkpoints(run_dir: Path, tell: Tell) -> None:
    """Bring what a run elsewhere has saved, if it has ended; where something is here, that will do.

    Raises:
        MachineError: nothing is here, and its machine is out of reach.
    """
    if not is_elsewhere(run_dir):
        return
    bring_up_to_date([run_dir], tell)
    try:
        with asked_target(run_dir, tell) as target:
            target.collect(run_dir)
    except MachineError as error:
        if not list_checkpoints(run_dir / CHECKPOINTS_FOLDER):
            raise
        tell(f"{run_dir.name}: {error}; what was brought before is used")


def stop_anywhere(run_dir: Path, tell: Tell) -> None:
    """Ask a run to save and stop, where it is.

    Raises:
        MachineError: its machine is out of reach.
        UsageError: it does not run.
    """
    if not is_elsewhere(run_dir):
        stop_run(run_dir)
        return
    with asked_target(run_dir, tell) as target:
        target.stop(run_dir)


def wait_anywhere(
    run_dir: Path,
    timeout_seconds: float,
    tell: Tell,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until a run has ended, and bring what it saved; returns whether that came in time."""
    if not is_elsewhere(run_dir):
        return wait_stopped(run_dir, timeout_seconds)
    deadline = clock() + timeout_seconds
    with asked_target(run_dir, tell) as target:
        while target.status(run_dir).state not in ("ended", "lost"):
            if clock() >= deadline:
                return False
            sleep(LOOK_SECONDS)
        target.collect(run_dir)
    return True


def error_here(event: Mapping[str, Any], run_dir: Path) -> Mapping[str, Any]:
    """Return an error's event with where the file that it names lies here, if it was brought here."""
    detail = event.get("detail")
    told = str(detail.get("file") or "") if isinstance(detail, Mapping) else ""
    here = run_dir / BROKEN_FILE
    if Path(told).name != BROKEN_FILE or not here.is_file():
        return event
    return {**event, "hint": str(event.get("hint") or "").replace(told, str(here))}


def checkpoint_here(event: Mapping[str, Any], run_dir: Path) -> Mapping[str, Any]:
    """Return a checkpoint's event with where it lies here, if it was brought here."""
    here = run_dir / CHECKPOINTS_FOLDER / Path(str(event.get("path") or "/")).name
    return (
        {**event, "path": str(here)} if step_of(here.name) is not None and here.is_dir() else event
    )
