"""A run of the user's own program (`command:` in quark.yaml): started with the job file, watched, told of.

Its heartbeat, log, stop and end are those of every run. What it trains, and how, it says itself
(`own_script.py`). Imports no torch.
"""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.code_versions import code_versions
from brain.ml.process_group import host_name
from brain.ml.run_files import JOB_FILE, METRICS_FILE, RunProcess, write_process
from brain.ml.session import Session
from brain.ml.stop_request import EXIT_CODES
from tools_utilities.activity import ACTIVITY
from tools_utilities.errors import QuarkError
from tools_utilities.json_text import decode_json
from tools_utilities.process_environment import child_environment
from tools_utilities.process_identity import identify

POLL_SECONDS = 0.1
_SIGNALS = {"interrupt": signal.SIGINT, "terminate": signal.SIGTERM}


class CommandFailedError(QuarkError):
    """The user's own program ended with another exit code than 0."""


def run(session: Session) -> int:
    """Start the program and wait for its end; returns the exit code of the run.

    Raises:
        CommandFailedError: it could not be started, or failed by itself.
    """
    job, started = session.job, time.monotonic()
    command = [*(job.command or ()), str(session.run_dir / JOB_FILE)]
    own = identify(os.getpid())
    write_process(
        session.run_dir,
        RunProcess(host=host_name(), parent_pid=os.getppid(), ranks=(own,), started_at=time.time()),
    )
    session.tell(
        "start", schema=1, run=job.name, world_size=1, device=job.device or "", parameters=None,
        resumed_from_step=None, total_steps=job.max_steps, precision=job.precision or "",
        counts="samples", command=list(job.command or ()), versions=code_versions(job),
    )  # fmt: skip
    try:
        child = subprocess.Popen(  # noqa: S603 - what the user wrote, no shell
            command, cwd=job.project_dir, stdin=subprocess.DEVNULL, env=child_environment({})
        )
    except OSError as error:
        raise CommandFailedError(
            f"{command[0]}: cannot be started: {error.strerror}",
            hint="Its command in quark.yaml is started in the project's folder.",
        ) from error
    code = _wait(session, child)
    reason = session.stop.reason
    if code and reason not in _SIGNALS:
        raise CommandFailedError(
            f"{command[0]} ended with exit code {code}",
            hint="The run's log holds what it wrote.",
            code=code,
        )
    _tell_end(session, reason or "done", time.monotonic() - started)
    return EXIT_CODES.get(reason or "", 0)


def _wait(session: Session, child: "subprocess.Popen[bytes]") -> int:
    """Return the program's exit code; a wish to stop is passed on to it."""
    passed = ""
    while True:
        try:
            return child.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            ACTIVITY.moved()  # whether it gets anywhere, only it knows
        asked = session.stop.reason
        if asked in _SIGNALS and asked != passed:
            passed = asked
            child.send_signal(_SIGNALS[asked])


def _tell_end(session: Session, reason: str, seconds: float) -> None:
    step = last_step(session.run_dir)
    session.tell(
        "end", reason=reason, exit_code=EXIT_CODES.get(reason, 0), step=step.get("step") or 0,
        epoch=step.get("epoch"), loss=step.get("loss"), val_loss=None, seconds=seconds,
        samples=step.get("samples") or 0, tokens=step.get("tokens") or 0, stats={},
    )  # fmt: skip


def last_step(run_dir: Path) -> dict[str, Any]:
    """Return the last step that a run has told of; nothing when it told of none."""
    for line in reversed((run_dir / METRICS_FILE).read_bytes().splitlines()):
        try:
            event: dict[str, Any] = decode_json(line)
        except msgspec.DecodeError:
            continue
        if event.get("event") == "step":
            return event
    return {}
