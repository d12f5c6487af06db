"""The trackers of a run (`track=wandb,mlflow`) as rank 0 starts them, each a process; imports no torch.

A tracker that fails is told once, as a warning of the run, and the run goes on without it.
"""

import contextlib
import importlib.util
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from brain.ml.run_files import JOB_FILE, METRICS_FILE
from brain.ml.tracking import trackers
from brain.ml.training_job import TrainingJob
from tools_utilities.errors import UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.process_environment import OWN_PATH, child_environment, own_program

FINISH_SECONDS = 60.0
"""What trackers get, of all together, to keep what is left when the run has ended."""


def check_trackers(names: Sequence[str]) -> None:
    """Raise unless each name is a tracker whose library is installed here.

    Raises:
        UsageError: naming what is missing.
    """
    known = trackers()
    for name in names:
        if name not in known:
            raise UsageError(f"track={name}: no such tracker", hint=f"Known: {', '.join(known)}.")
        if importlib.util.find_spec(known[name].package) is None:
            raise UsageError(
                f"track={name}: {known[name].package} is not installed",
                hint=f"pip install 'quark-launcher[{name}]'",
            )


class TrackerProcesses:
    """The trackers of one start of a run."""

    def __init__(self, job: TrainingJob, tell: Callable[[str], None]) -> None:
        """Start them; `tell` is given what went wrong, in a line, from any thread."""
        self._tell = tell
        self._children = {name: _start(job, name) for name in job.track}
        self._threads = [
            threading.Thread(target=self._wait, args=(name,), name=f"tracker {name}", daemon=True)
            for name in self._children
        ]
        for thread in self._threads:
            thread.start()

    def _wait(self, name: str) -> None:
        child = self._children[name]
        out, _ = child.communicate()
        if child.returncode:
            self._tell(f"{name}: {_message(out, child.returncode)}; the run goes on without it")

    def close(self, seconds: float = FINISH_SECONDS) -> None:
        """Wait until they have kept what the run's end told them; at most so long."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _start(job: TrainingJob, name: str) -> "subprocess.Popen[bytes]":
    run_dir = Path(job.run_dir)
    metrics = run_dir / METRICS_FILE
    # What an earlier start wrote was told by its own trackers.
    offset = metrics.stat().st_size if metrics.exists() else 0
    return subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
        own_program("brain.ml.tracking", str(run_dir / JOB_FILE), name, str(offset)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        env=child_environment(OWN_PATH),
        start_new_session=True,  # a Ctrl-C that ends the run must not end what keeps its end
    )


def _message(out: bytes, code: int) -> str:
    with contextlib.suppress(msgspec.DecodeError):
        told = decode_json(out.splitlines()[-1] if out else b"")
        return str(told["message"]).rstrip(". ")
    return f"its process ended with {code}; the log has what it said"
