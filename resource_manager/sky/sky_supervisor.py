"""`python -m resource_manager.sky.sky_supervisor FOLDER DEADLINE HEAD`: a run as SkyPilot's job, on its machine.

All that comes back from there is what the job prints, so the run's log and its metrics are printed: an
event of the metrics is a line that begins with MARK. At DEADLINE (Unix seconds), or when the file `stop`
appears, the run is asked to save and end; a while later it is ended. HEAD is the first of several
nodes, empty where there is one. Log and metrics are kept in the store too, for who looks too late.
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from brain.ml.run_files import JOB_FILE, LOG_FILE, METRICS_FILE
from brain.ml.training_job import TrainingJob, load_job, save_job
from resource_manager.export_format import RENDEZVOUS_PORT
from resource_manager.launch_target import RunHandle
from resource_manager.launch_targets.local import LAUNCH_TARGET
from resource_manager.sky.sky_task import MARK, STOP_FILE
from resource_manager.sky.sky_told import tells_store

POLL_SECONDS = 0.1
GRACE_SECONDS = 120.0
"""From being asked to being ended."""


class Told:
    """Prints what is added to a file, whole lines only; `lead` stands before each."""

    def __init__(self, path: Path, out: TextIO, *, lead: str = "") -> None:
        self._path, self._out, self._lead = path, out, lead
        # A run that goes on here appends: its beginning was told before.
        self._offset = path.stat().st_size if path.exists() else 0
        self._rest = b""

    def tell(self, *, last: bool = False) -> None:
        """Print what is new; `last`: a line without an end too."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if last and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self._out.write(f"{self._lead}{line.decode('utf-8', 'replace')}\n")
        if lines:
            self._out.flush()


def main(arguments: Sequence[str] | None = None, out: TextIO | None = None) -> int:
    """Supervise one run; returns its exit code."""
    folder, deadline, head = sys.argv[1:] if arguments is None else arguments
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _frame: asked.append(got))
    run_dir = Path(folder)
    stop = run_dir / STOP_FILE
    stop.unlink(missing_ok=True)
    job = _met(load_job(run_dir / JOB_FILE), head)
    save_job(job, run_dir / JOB_FILE)
    out = sys.stdout if out is None else out
    told = _tellers(run_dir, out)
    handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))

    def tell() -> None:
        for one in told:
            one.tell()

    kept = tells_store(job, time.time(), lambda text: print(text, file=out, flush=True))
    code = supervise(
        handle, lambda: _wanted(asked, stop, float(deadline)), tell, several=bool(head)
    )
    for one in told:
        one.tell(last=True)
    if kept is not None:
        kept.end()
    return code


def supervise(
    handle: RunHandle,
    wanted: Callable[[], int | None],
    tell: Callable[[], None],
    *,
    several: bool = False,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Wait for a run's end and return its exit code.

    `wanted`: the signal by which somebody asks for its end; GRACE_SECONDS after it the run is ended.
    `several`: it is one of several nodes.
    """
    ends_at: float | None = None
    while (code := handle.poll()) is None:
        tell()
        number = wanted()
        if number is not None and ends_at is None:
            # One of several nodes that is told to terminate leaves; interrupted, all agree to end.
            (handle.interrupt if number == signal.SIGINT or several else handle.terminate)()
            ends_at = clock() + GRACE_SECONDS
        elif ends_at is not None and clock() >= ends_at:
            handle.kill()
        sleep(POLL_SECONDS)
    return code


def _wanted(asked: list[int], stop: Path, deadline: float) -> int | None:
    if asked:
        return asked[0]
    if stop.exists():
        return signal.SIGINT
    return signal.SIGTERM if time.time() >= deadline else None


def _met(job: TrainingJob, head: str) -> TrainingJob:
    meeting = f"{head}:{RENDEZVOUS_PORT}" if head else None
    return msgspec.structs.replace(job, rendezvous=meeting)


def _tellers(run_dir: Path, out: TextIO) -> list[Told]:
    return [Told(run_dir / LOG_FILE, out), Told(run_dir / METRICS_FILE, out, lead=MARK)]


if __name__ == "__main__":
    raise SystemExit(main())
