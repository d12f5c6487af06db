"""Run folders: named, made, listed, read and stopped. `brain/ml/run_files.py` says what lies where.

A run's state is never stored: it is told from its last event, its processes and its heartbeat, so it
is right after a crash too.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import msgspec

from brain.ml import run_files
from brain.ml.checkpoint_files import list_checkpoints, step_of
from brain.ml.process_group import host_name
from brain.ml.training_job import TrainingJob, save_job
from resource_manager.remote_record import read_record
from resource_manager.rental.rental_record import UNPROVEN, read_rental, rented_where
from resource_manager.run_events import event_of
from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.run_words import is_run_name, said_run
from tools_utilities.settings import Settings

WORDS = (
    "adder", "badger", "beaver", "bison", "bobcat", "camel", "caracal", "cicada", "condor", "cougar",
    "coyote", "cricket", "dingo", "dolphin", "donkey", "eagle", "egret", "falcon", "ferret", "finch",
    "fox", "gazelle", "gecko", "gibbon", "heron", "hornet", "ibex", "iguana", "impala", "jackal",
    "jaguar", "kestrel", "koala", "lemur", "linnet", "lizard", "magpie", "marmot", "marten", "merlin",
    "mole", "narwhal", "newt", "ocelot", "osprey", "otter", "panda", "pelican", "petrel", "puffin",
    "rabbit", "raven", "robin", "salmon", "sparrow", "stork", "tapir", "tiger", "toucan", "walrus",
    "weasel", "wombat", "yak", "zebra",
)  # fmt: skip
HEARTBEAT_LIMIT_SECONDS = 30.0
"""A run on another machine counts as lost when its metrics have not been touched for so long."""
STARTING_SECONDS = 60.0
"""What a new run has until its ranks have met."""
TAIL_BYTES = 1 << 16
INTERRUPTED_CODES = (130, 143)


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One run as it stands."""

    name: str
    path: str
    status: str
    """running, finished, failed, interrupted or lost."""
    created_at: float
    """Unix seconds."""
    seen_at: float
    """Last sign of life, unix seconds."""
    step: int = 0
    total_steps: int | None = None
    epoch: float = 0.0
    loss: float | None = None
    val_loss: float | None = None
    samples: int = 0
    tokens: int = 0
    reason: str | None = None
    """Why it ended: the stop rule, `interrupt`, or the error's message."""
    exit_code: int | None = None
    checkpoint_step: int | None = None
    """Of the newest checkpoint."""
    where: str = "local"
    """The machine it was launched on; on another one it is as it was last seen."""


def out_dir_of(settings: Settings) -> Path:
    """Return the folder that runs are kept in, absolute."""
    return settings.path("out_dir") or settings.root / "runs"


def new_run_name(taken: Container[str], source: random.Random) -> str:
    """Return a name like `fox-12` that is not taken."""
    highest = 99
    while True:
        for _ in range(100):
            name = f"{source.choice(WORDS)}-{source.randint(2, highest)}"
            if name not in taken:
                return name
        highest = highest * 10 + 9


def check_run_name(name: str) -> None:
    """Raise unless a run may be called that.

    Raises:
        UsageError: no folder's name, or a word that a sentence means other runs by.
    """
    if not is_run_name(name):
        raise UsageError(
            f"name={name}: not a name for a run", hint="Use another, such as name=genomes."
        )


def create_run(out_dir: Path, *, name: str | None = None, source: random.Random) -> Path:
    """Make a new run folder and return it, absolute.

    Raises:
        UsageError: the name was taken in between, or is no folder's name.
    """
    out_dir.mkdir(parents=True, exist_ok=True)
    if name is not None:
        check_run_name(name)
    while True:
        chosen = name or new_run_name({path.name for path in out_dir.iterdir()}, source)
        folder = out_dir.resolve() / chosen
        try:
            folder.mkdir()
        except FileExistsError as error:
            if name is None:
                continue  # another launch took it in between
            raise UsageError(
                f"run {name} exists in {out_dir}",
                hint=f"`quark show {said_run(name)}` says how it is; or choose another name.",
                name=name,
            ) from error
        return folder


def write_job(job: TrainingJob) -> Path:
    """Write a job into its run folder, readable by its owner alone, and return the file."""
    path = Path(job.run_dir) / run_files.JOB_FILE
    save_job(job, path)
    return path


def run_dirs_of(out_dir: Path) -> list[Path]:
    """Return every run's folder, in no order."""
    if not out_dir.is_dir():
        return []
    return [path for path in out_dir.iterdir() if (path / run_files.JOB_FILE).is_file()]


def list_runs(out_dir: Path, *, clock: Callable[[], float] = time.time) -> list[RunInfo]:
    """Return every run of a folder, newest first."""
    infos = [read_run(path, clock=clock) for path in run_dirs_of(out_dir)]
    return sorted(infos, key=lambda info: (info.created_at, info.name), reverse=True)


def newest_run(out_dir: Path) -> RunInfo:
    """Return the run that was launched last.

    Raises:
        DataNotFoundError: there is none.
    """
    found = list_runs(out_dir)
    if not found:
        raise DataNotFoundError(f"no runs in {out_dir}", hint="Train one, or give out_dir=.")
    return found[0]


def find_run(out_dir: Path, name: str) -> RunInfo:
    """Return a run by name.

    Raises:
        DataNotFoundError: there is none; the hint names the nearest.
    """
    folder = out_dir / name
    if "/" not in name and (folder / run_files.JOB_FILE).is_file():
        return read_run(folder)
    from rapidfuzz import process

    names = [info.name for info in list_runs(out_dir)]
    near = process.extractOne(name, names, score_cutoff=60)
    hint = f"Did you mean {near[0]}?" if near else "`quark list runs` names them all."
    raise DataNotFoundError(f"no run {name} in {out_dir}", hint=hint, name=name)


def read_run(run_dir: Path, *, clock: Callable[[], float] = time.time) -> RunInfo:
    """Return how a run stands; reads the beginning and the end of its metrics."""
    events = last_events(run_dir)
    latest = {str(event["event"]): event for event in events}
    step, start, end = (latest.get(name, {}) for name in ("step", "start", "end"))
    error = latest.get("error", {})
    last = events[-1] if events else {}
    now = clock()
    status = _status(run_dir, last, now)
    code = last.get("exit_code") if last.get("event") in {"end", "error"} else None
    progress = end if status in {"finished", "interrupted"} and end else step
    job_file = run_dir / run_files.JOB_FILE
    metrics = run_dir / run_files.METRICS_FILE
    elsewhere = read_record(run_dir)
    return RunInfo(
        name=run_dir.name,
        path=str(run_dir),
        status=status,
        created_at=job_file.stat().st_mtime,
        seen_at=(metrics if metrics.exists() else job_file).stat().st_mtime,
        step=int(progress.get("step") or step.get("step") or 0),
        total_steps=start.get("total_steps"),
        epoch=float(progress.get("epoch") or 0),
        loss=progress.get("loss"),
        val_loss=end.get("val_loss") or latest.get("eval", {}).get("loss"),
        samples=int(progress.get("samples") or 0),
        tokens=int(progress.get("tokens") or 0),
        reason=_reason(status, end, error),
        exit_code=code if status != "running" else None,
        checkpoint_step=_checkpoint_step(run_dir, latest.get("checkpoint", {}).get("step")),
        where=rented_where(run_dir, now)
        or ("local" if elsewhere is None else elsewhere.remote.where),
    )


def last_events(run_dir: Path) -> list[dict[str, Any]]:
    """Return the last start of a run and the events near the end of its metrics, in order."""
    path = run_dir / run_files.METRICS_FILE
    if not path.is_file():
        return []
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.readline()
        file.seek(max(0, size - TAIL_BYTES))
        lines = file.read().split(b"\n")
    if size > TAIL_BYTES:
        lines = [first, *lines[1:]]
    return _decoded(lines)


def read_events(run_dir: Path) -> list[dict[str, Any]]:
    """Return all events of a run, in order; half-written lines are left out."""
    path = run_dir / run_files.METRICS_FILE
    return _decoded(path.read_bytes().split(b"\n")) if path.is_file() else []


def step_events(run_dir: Path) -> list[dict[str, Any]]:
    """Return one event for each step, in order: the last where a resume repeated some."""
    steps = {event["step"]: event for event in read_events(run_dir) if event["event"] == "step"}
    return [steps[number] for number in sorted(steps)]


def stop_run(run_dir: Path, *, number: signal.Signals = signal.SIGINT) -> None:
    """Ask a run on this machine to save and stop; returns at once.

    Raises:
        UsageError: it does not run, or runs on another machine.
    """
    process = run_files.read_process(run_dir)
    if process is not None and process.host != host_name() and not process.ranks_here:
        raise UsageError(
            f"run {run_dir.name} is on {process.host}, this is {host_name()}",
            hint="Stop it from there.",
        )
    alive = _asked_pids(process)
    if not alive:
        raise UsageError(f"run {run_dir.name} is not running", hint="`quark list runs` shows why.")
    for pid in alive:
        _signal(pid, number)


def wait_stopped(
    run_dir: Path,
    timeout_seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Wait until no rank of a run lives; returns whether that came in time."""
    deadline = clock() + timeout_seconds
    process = run_files.read_process(run_dir)
    while process is not None and (process.alive_here or process.agent_alive):
        if clock() >= deadline:
            return False
        sleep(0.1)
    return True


def _asked_pids(process: run_files.RunProcess | None) -> list[int]:
    """Return whom to ask: the ranks, who agree on it; between two starts their agent."""
    if process is None:
        return []
    alive = [rank.pid for rank in process.alive_here]
    if not alive and process.agent is not None and process.agent_alive:
        return [process.agent.pid]
    return alive


def _decoded(lines: list[bytes]) -> list[dict[str, Any]]:
    """Return the events of lines; those half written by a run that was killed are left out."""
    found = map(event_of, filter(None, lines))
    return [{"time": 0.0, **event} for event in found if event is not None]


def _status(run_dir: Path, last: dict[str, Any], now: float) -> str:
    elsewhere, rental = read_record(run_dir), read_rental(run_dir)
    # Its machine may still be being made; what costs money counts as running.
    costs = rental is not None and not rental.is_over and rental.state != UNPROVEN
    if costs or (elsewhere is not None and not elsewhere.ended):
        return "running"
    # The processes of an earlier start here say nothing of one elsewhere.
    process = run_files.read_process(run_dir) if elsewhere is None else None
    ended = last.get("event") in {"end", "error"}
    if ended and process is not None and _starts_again(process, last):
        return "running"
    if ended and (process is None or last["time"] >= process.started_at):
        if last["event"] == "error":
            return "failed"
        code = last.get("exit_code")
        return "interrupted" if code in INTERRUPTED_CODES else "failed" if code else "finished"
    if elsewhere is None and rental is None and _lives(run_dir, process, now):
        return "running"
    return "interrupted" if last.get("event") == "stopping" else "lost"


def _starts_again(process: run_files.RunProcess, last: dict[str, Any]) -> bool:
    """Tell whether the ranks ended only to be started again; a moment too long after the last end."""
    return process.agent_alive and (last["event"] == "error" or last.get("reason") == "regroup")


def _lives(run_dir: Path, process: run_files.RunProcess | None, now: float) -> bool:
    if process is None:
        return now - (run_dir / run_files.JOB_FILE).stat().st_mtime < STARTING_SECONDS
    if process.ranks_here:
        return bool(process.alive_here) or process.agent_alive
    metrics = run_dir / run_files.METRICS_FILE
    return metrics.exists() and now - metrics.stat().st_mtime < HEARTBEAT_LIMIT_SECONDS


def _reason(status: str, end: dict[str, Any], error: dict[str, Any]) -> str | None:
    if status == "failed":
        return error.get("message") or end.get("reason")
    return end.get("reason") if status in {"finished", "interrupted"} else None


def _checkpoint_step(run_dir: Path, told: int | None) -> int | None:
    """Return the step of the newest checkpoint: of the run folder, else the one last told of."""
    found = list_checkpoints(run_dir / run_files.CHECKPOINTS_FOLDER)
    return step_of(found[0].name) if found else told


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # ended by itself in between
