"""`python -m resource_manager.run_supervisor FOLDER [SECONDS]`: a run on a machine nobody is logged in to.

Started by `remote_helper` in a session of its own, it outlives the connection. It takes the variables
it was sent, starts the run as the local target does (or a bridge's pipeline), and writes how it ended
(`exit.json`). SIGINT and
SIGTERM save and stop, a second one or SIGUSR1 ends the run at once. When it is killed itself, the run
saves and ends: ranks do not outlive who started them. After SECONDS the run is asked to end, and
GRACE_SECONDS later it is ended.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from brain.ml.run_files import JOB_FILE, LOG_FILE
from brain.ml.training_job import load_job
from resource_manager.bridge_start import pipeline_start
from resource_manager.launch_target import LaunchPlan, RunHandle
from resource_manager.launch_targets.local import LAUNCH_TARGET
from resource_manager.remote_helper import ENVIRONMENT_FILE, EXIT_FILE, SUPERVISOR_FILE
from tools_utilities.json_text import decode_json
from tools_utilities.process_environment import environment_now, take_environment
from tools_utilities.process_identity import identify

POLL_SECONDS = 0.1
GRACE_SECONDS = 120.0
FAILED = 1
RESERVE_FILE, RESERVE_BYTES = "reserve", 1 << 16
"""Kept so that there is room to say how a run ended that filled its disk."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Supervise one run; returns its exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    folder = Path(given[0])
    deadline = time.monotonic() + float(given[1]) if len(given) > 1 else None
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda got, _frame: asked.append(got))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _take_sent_environment(folder)
    start = pipeline_start(folder) or _training_start(folder)
    _write(
        folder / SUPERVISOR_FILE,
        {"process": identify(os.getpid()), "started_at": time.time(), "run": folder.name},
    )
    code = FAILED
    (folder / RESERVE_FILE).write_bytes(b"\0" * RESERVE_BYTES)
    try:
        code = _supervise(start(), asked, deadline)
    finally:
        _tell_end(folder, code)
    return code


def _training_start(folder: Path) -> Callable[[], RunHandle]:
    """Return what starts the run whose job lies in a folder."""
    job = load_job(folder / JOB_FILE)
    return lambda: LAUNCH_TARGET.launch(_logged_in(LAUNCH_TARGET.plan(job), folder))


def _tell_end(folder: Path, code: int) -> None:
    free = shutil.disk_usage(folder).free
    (folder / RESERVE_FILE).unlink(missing_ok=True)
    _write(folder / EXIT_FILE, {"code": code, "ended_at": time.time(), "free_bytes": free})


def _logged_in(plan: LaunchPlan, folder: Path) -> LaunchPlan:
    return msgspec.structs.replace(plan, log_path=folder / LOG_FILE)


def _take_sent_environment(folder: Path) -> None:
    """Take the variables that came over the connection; their file is gone afterwards."""
    path = folder / ENVIRONMENT_FILE
    sent = decode_json(path.read_bytes(), type=dict[str, str])
    path.unlink()
    take_environment({**environment_now(), **sent})


def _supervise(handle: RunHandle, asked: list[int], deadline: float | None) -> int:
    passed_on = 0
    while (code := handle.poll()) is None:
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            # Once: the second time there is nothing more to save.
            asked.append(signal.SIGUSR1 if passed_on else signal.SIGTERM)
            deadline = now + GRACE_SECONDS
        for number in asked[passed_on:]:
            passed_on += 1
            _pass_on(handle, number, again=passed_on > 1)
        time.sleep(POLL_SECONDS)
    return code


def _pass_on(handle: RunHandle, number: int, *, again: bool) -> None:
    if again or number == signal.SIGUSR1:
        handle.kill()
    elif number == signal.SIGTERM:
        handle.terminate()
    else:
        handle.interrupt()


def _write(path: Path, content: object) -> None:
    """Write a small file atomically; on a full disk whoever looks finds the processes gone."""
    temporary = path.with_name(f".{path.name}.tmp")
    with contextlib.suppress(OSError):
        temporary.write_bytes(msgspec.json.encode(content))
        temporary.replace(path)


if __name__ == "__main__":
    raise SystemExit(main())
