"""From a confirmed plan to a watched run and its last words: the only place that makes run folders."""

import os
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.guardians import hold, let_go
from brain.ml.run_files import LOG_FILE, METRICS_FILE, PLAN_FILE
from brain.ml.training_job import TrainingJob
from resource_manager.launch_target import LaunchTarget, RunHandle
from resource_manager.next_commands import after_end, after_launch, after_stop
from resource_manager.plan import Plan
from resource_manager.remote_record import forget_record
from resource_manager.remote_runs import checkpoint_here, error_here
from resource_manager.rental.rental_record import cost_reader, forget_rental
from resource_manager.run_summary import summary_lines
from resource_manager.run_watch import Bond, RunWatch, last_log_lines
from resource_manager.runs import create_run, read_run, write_job
from resource_manager.tensorboard_events import LiveEventFiles
from tools_utilities.console import Console
from tools_utilities.private_files import open_to_append, write_private
from tools_utilities.redaction import redact_data
from tools_utilities.run_words import said_run
from tools_utilities.terminal_text import Span, shown

INTERRUPTED, TERMINATED = 130, 143


def start_run(
    job: TrainingJob,
    plan: Plan | None,
    target: LaunchTarget,
    console: Console,
    *,
    flag: str = "",
    left: Callable[[], None] = lambda: None,
) -> int:
    """Write the run folder, launch the job, watch it and say how it ended; returns its exit code.

    `plan=None`: the run exists and goes on; its folder and plan stay. `flag`: what the next commands
    need to find the run. `left` is called when the person leaves it running; then the code is 0.

    Raises:
        UsageError: the target refuses the job, or the run's name is taken; nothing was made.
    """
    run_dir = Path(job.run_dir)
    launch_plan = target.plan(job)
    if plan is not None and not run_dir.exists():
        # Not a fixed seed: names must differ between launches. The name is chosen already.
        create_run(run_dir.parent, name=job.name, source=random.Random())  # noqa: S311
    write_job(job)
    if job.remote is None:
        forget_record(run_dir)  # of an earlier launch of it elsewhere
    if job.remote is None or job.remote.terms is None:
        forget_rental(run_dir)
    if plan is not None:
        _write_plan(run_dir, plan)
    os.close(open_to_append(launch_plan.log_path))  # the owner's alone from its first line on
    hold(run_dir)
    if job.detach:
        handle = target.launch(launch_plan)
        console.result(
            [
                f"{job.name} runs in the background ({_process_of(handle, job)})",
                *after_launch(job, flag),
            ],
            {"schema": 1, "run": job.name, "pid": handle.pid},
        )
        return 0
    with LiveEventFiles(run_dir) as event_files:
        watch = RunWatch(
            job.name, run_dir / METRICS_FILE, console, also=event_files.take,
            bond=Bond(
                saves=not job.evaluate_only,
                asks=job.remote is not None and job.remote.terms is not None,
                cost=cost_reader(run_dir),
                # Elsewhere whoever watches is no guardian of the run.
                leave=(lambda: let_go(run_dir)) if job.remote is None else lambda: None,
            ),
        )  # fmt: skip
        code = watch.follow(lambda: target.launch(launch_plan))
    if job.remote is not None:
        watch.run.checkpoint = dict(checkpoint_here(watch.run.checkpoint, run_dir))
        watch.run.error = dict(error_here(watch.run.error, run_dir))
    if watch.left:
        left()
        return say_left(job, console, flag)
    return say_how_it_ended(watch, code, job, console, flag)


def _process_of(handle: RunHandle, job: TrainingJob) -> str:
    there = "" if job.remote is None else f"on {job.remote.where}"
    return " ".join(filter(None, [f"process {handle.pid}" if handle.pid else "", there]))


def _write_plan(run_dir: Path, plan: Plan) -> None:
    path = run_dir / PLAN_FILE
    write_private(path, msgspec.json.format(msgspec.json.encode(redact_data(plan)), indent=2))


def say_left(job: TrainingJob, console: Console, flag: str) -> int:
    """Say that a run goes on that is watched no more, and how to find it; returns the exit code."""
    console.result(
        [f"{job.name} goes on in the background", *after_launch(job, flag)],
        {"schema": 1, "run": job.name, "left": True},
    )
    return 0


def say_how_it_ended(
    watch: RunWatch, code: int, job: TrainingJob, console: Console, flag: str
) -> int:
    """Say how a watched run ended and what to do next; returns the exit code."""
    run = watch.run
    done = code == 0 and run.end.get("exit_code") == 0  # before it heard of any signal
    if not done and (watch.signals or code in (INTERRUPTED, TERMINATED)):
        return _say_stopped(watch, code, job, console, flag)
    if code == 0:
        lines = summary_lines(run, width=console.result_width, draw=console.draws_blocks)
        console.result([*lines, "", *after_end(job, run.end.get("reason"), flag)])
        return 0
    its_log = f"`quark logs {said_run(run.name)}{flag}` shows its log."
    if run.error:
        console.failure(_told(run.error), str(run.error.get("hint") or its_log))
        return code
    tail = last_log_lines(Path(job.run_dir) / LOG_FILE)
    console.note(*[[Span(shown(line), "dim")] for line in tail])
    console.failure(
        f"{run.name} ended with exit code {code} and did not say why",
        its_log,
    )
    return code


def _told(error: Mapping[str, Any]) -> str:
    """Return an error in a line: the rank, where in the code if it is none of ours, and what."""
    message = str(error.get("message") or "the run failed")
    rank, frame = error.get("rank"), error.get("frame")
    where = [f"rank {rank}"] if rank else []
    if frame and message.startswith(f"{error.get('kind')}:"):
        where.append(str(frame))
    return f"{', '.join(where)}: {message}" if where else message


def _say_stopped(watch: RunWatch, code: int, job: TrainingJob, console: Console, flag: str) -> int:
    run = watch.run
    # Of an earlier start too.
    saved = read_run(Path(job.run_dir)).checkpoint_step or run.start.get("resumed_from_step")
    if len(watch.signals) > 1:
        code = INTERRUPTED
    if job.evaluate_only:
        said = "stopped; an evaluation saves nothing on its way"
    elif len(watch.signals) > 1:
        said = "stopped without saving" + (f"; step {saved} is saved" if saved is not None else "")
    elif saved is None:
        said = "stopped before the first step; nothing to save"
    elif saved == run.checkpoint.get("step"):
        said = f"saved step {saved}"
    else:
        said = f"stopped before another step; step {saved} is saved"
    console.note(f"{run.name}: {said}", *after_stop(job, saved=saved is not None, flag=flag))
    return code
