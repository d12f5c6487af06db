"""One tracker of one start of a run, as a process: follows metrics.jsonl and passes it on.

`python -m brain.ml.tracking JOB TRACKER OFFSET`, started by rank 0 (`tracker_processes.py`), which it
does not outlive by much. What goes wrong is one line of JSON on standard output and exit code 1; the rest
goes to the run's log. Imports no torch.
"""

import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import brain.ml.trackers
from brain.ml.code_versions import code_versions
from brain.ml.run_files import METRICS_FILE
from brain.ml.tracker import Figures, OpenTracker, TrackedRun, Tracker
from brain.ml.training_job import TrainingJob, load_job
from tools_utilities.json_text import decode_json
from tools_utilities.plugins import load_plugins
from tools_utilities.private_files import write_private
from tools_utilities.redaction import guard_process, redact, redact_data

LOOK_SECONDS = 1.0
STEP_FIGURES = (
    "loss", "lr", "grad_norm", "tokens_per_second", "step_seconds", "data_wait_share", "mfu",
    "data_bytes_per_second", "cache_hit_rate", "epoch", "samples", "tokens",
)  # fmt: skip
EVAL_FIGURES = ("loss", "accuracy", "r2")
OWN_PLACES = frozenset({"run_dir", "project_dir", "cache_dir", "counts_dir", "schema", "track"})
"""Job fields that say where things lie on a machine, not what the run is."""
VANISHED = 1

logger = logging.getLogger("quark.tracking")


def trackers() -> dict[str, Tracker]:
    """Return every tracker by its name."""
    return load_plugins(brain.ml.trackers.__name__, "TRACKER")


def config_of(job: TrainingJob) -> dict[str, Any]:
    """Return what a tracker is told of a job: its fields by name, nested ones as text; no secret."""
    fields = {
        name: value
        for name, value in msgspec.to_builtins(job).items()
        if name not in OWN_PLACES and value is not None
    }
    told = {**fields, **{f"version_{name}": text for name, text in code_versions(job).items()}}
    flat = {
        name: json.dumps(value) if isinstance(value, dict | list | tuple) else value
        for name, value in told.items()
    }
    clean: dict[str, Any] = redact_data(flat)
    return clean


def figures_in(events: Sequence[Mapping[str, Any]]) -> list[Figures]:
    """Return the figures of `step` and `eval` events; what is not finite is left out."""
    kinds = {"step": ("train", STEP_FIGURES), "eval": ("validation", EVAL_FIGURES)}
    found = []
    for event in events:
        lead, names = kinds.get(str(event.get("event")), ("", ()))
        values = {
            f"{lead}/{name}": float(event[name])
            for name in names
            if isinstance(event.get(name), int | float) and math.isfinite(event[name])
        }
        if values:
            found.append(Figures(float(event["time"]), int(event["step"]), values))
    return found


def follow(
    path: Path,
    offset: int,
    opened: OpenTracker,
    goes_on: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Pass a run's events on from `offset` until its end; returns its exit code.

    `goes_on`: whether whoever writes them lives.
    """
    rest = b""
    while True:
        # Asked before the last look: what was written last is there by then.
        alive = goes_on()
        events, offset, rest = _read(path, offset, rest)
        if events:
            opened.log(figures_in(events))
        ends = [event for event in events if event.get("event") in ("end", "error")]
        if ends:
            return int(ends[-1].get("exit_code") or 0)
        if not alive:
            return VANISHED
        sleep(LOOK_SECONDS)


def _read(path: Path, offset: int, rest: bytes) -> tuple[list[dict[str, Any]], int, bytes]:
    if not path.exists():
        return [], offset, rest
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read()
    *lines, left = (rest + data).split(b"\n")
    events = []
    for line in lines:
        try:
            event = decode_json(line)
        except msgspec.DecodeError:
            continue  # torn by an earlier start that was killed
        if isinstance(event, dict):
            events.append(event)
    return events, offset + len(data), left


def track(job: TrainingJob, name: str, offset: int, goes_on: Callable[[], bool]) -> None:
    """Open a tracker and pass the run on to it, until the run's end."""
    folder = Path(job.run_dir)
    kept = folder / f".tracker-{name}"
    earlier = kept.read_text("utf-8") if kept.exists() else None
    run = TrackedRun(job.name, folder, config_of(job), earlier)
    opened = trackers()[name].open(run)
    write_private(kept, opened.id.encode())
    opened.close(follow(folder / METRICS_FILE, offset, opened, goes_on))


def main(arguments: Sequence[str] | None = None) -> int:
    """Track one start of a run; returns 1 where the tracker could not."""
    guard_process()
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s tracker %(levelname)s %(message)s")
    path, name, offset = sys.argv[1:] if arguments is None else arguments
    writer = os.getppid()
    # Libraries print what they like; standard output is this program's own word.
    word = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        track(load_job(Path(path)), name, int(offset), lambda: os.getppid() == writer)
    except Exception as error:  # the border of the process
        logger.exception("%s", name)
        first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        word.write(json.dumps({"message": redact(first)}) + "\n")
        word.flush()
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    logging.shutdown()
    sys.stderr.flush()
    # Threads of a library that has failed are not waited for.
    os._exit(code)
