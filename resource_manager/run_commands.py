"""What is done with runs that exist: list, show, stop, and the job that resumes one."""

import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.training_job import TrainingJob
from resource_manager.job_making import moved_cache
from resource_manager.job_settings import job_fields
from resource_manager.launch_places import LOCAL
from resource_manager.next_commands import runs_flag
from resource_manager.relative_values import make_absolute
from resource_manager.remote_runs import bring_up_to_date, current_run, stop_anywhere, wait_anywhere
from resource_manager.remote_settings import REMOTE_SETTINGS, RENTED_ONLY, settings_of_remote
from resource_manager.repeating import ALL_STOP_RULES, NEAREST, earlier_run
from resource_manager.runs import (
    RunInfo,
    find_run,
    list_runs,
    newest_run,
    out_dir_of,
    run_dirs_of,
)
from tools_utilities.console import Console
from tools_utilities.errors import ChangedError, InputNeededError, UsageError
from tools_utilities.run_words import said_run
from tools_utilities.settings import Settings
from tools_utilities.terminal_text import (
    human_age,
    human_count,
    human_number,
    table,
)

STOP_SECONDS = 60.0
"""How long `stop` waits for the runs to save."""
STATUS_STYLES = {"running": "cyan", "finished": "green", "failed": "error", "lost": "error"}


def list_command(
    settings: Settings,
    slots: Mapping[str, Any],
    console: Console,
    *,
    clock: Callable[[], float] = time.time,
) -> int:
    """Print every run, newest first; `lines` says how many at most."""
    out_dir = out_dir_of(settings)
    bring_up_to_date(run_dirs_of(out_dir), console.note)
    infos = [
        info
        for info in list_runs(out_dir)
        if slots.get("state") is None or info.status == slots["state"]
    ][: slots.get("lines")]
    titles = ("run", "status", "step", "epoch", "loss", "validation", "samples", "started")
    elsewhere = any(info.where != LOCAL for info in infos)
    where = ("where",) if elsewhere else ()
    now = clock()
    rows = [
        (
            info.name, info.status,
            f"{info.step}/{info.total_steps}" if info.total_steps else str(info.step),
            f"{info.epoch:.2f}", human_number(info.loss), human_number(info.val_loss),
            human_count(info.samples), human_age(now - info.created_at),
            *((info.where,) * elsewhere),
        )
        for info in infos
    ]  # fmt: skip
    lines = table((*titles, *where), rows, width=console.result_width, right="llrrrrrrl") or [
        f"{row[0]}  {row[1]}  step {row[2]}  loss {row[4]}  {row[7]}" for row in rows
    ]
    if not infos:
        state = f"{slots['state']} " if slots.get("state") else ""
        console.note(f"no {state}runs in {out_dir}")
        lines = []
    data = {"schema": 1, "runs": [msgspec.to_builtins(info) for info in infos]}
    console.result(lines, data)
    return 0


def run_of(settings: Settings, name: str | None) -> RunInfo:
    """Return the named run, or the last one (`latest` or None).

    Raises:
        DataNotFoundError: there is none.
    """
    out_dir = out_dir_of(settings)
    return newest_run(out_dir) if name in (None, "latest") else find_run(out_dir, str(name))


def stop_command(
    settings: Settings, slots: Mapping[str, Any], console: Console, *, plan_only: bool = False
) -> int:
    """Ask runs to save and stop, after showing which; default No. `plan_only` shows which.

    Raises:
        InputNeededError: there is no terminal to confirm at and no `--yes`.
    """
    running = _runs_to_stop(settings, slots.get("run"))
    names = ", ".join(info.name for info in running)
    console.note(*[f"{info.name}  {info.status}  step {info.step}" for info in running])
    if plan_only:
        listed = [info.name for info in running]
        console.result([f"would stop {names}"], {"schema": 1, "would_stop": listed})
        return 0
    if not console.about.yes:
        if not console.can_ask:
            raise InputNeededError(f"this would stop {names}", hint="Add --yes to do it.")
        if not console.confirm(f"Stop {names}?", default=False):
            console.note("Nothing done.")
            return UsageError.exit_code
    for info in running:
        stop_anywhere(Path(info.path), console.note)
    late = [
        info.name
        for info in running
        if not wait_anywhere(Path(info.path), STOP_SECONDS, console.note)
    ]
    stopped = [info.name for info in running if info.name not in late]
    console.result([f"stopped {name}" for name in stopped], {"schema": 1, "stopped": stopped})
    if late:
        console.failure(
            f"still saving after {STOP_SECONDS:.0f} s: {', '.join(late)}",
            "`quark list` shows when they have ended.",
        )
        return 1
    return 0


def _runs_to_stop(settings: Settings, name: str | None) -> list[RunInfo]:
    if name == "all":
        running = [info for info in list_runs(out_dir_of(settings)) if info.status == "running"]
        if not running:
            raise UsageError("no run is running", hint="`quark list` shows the runs.")
        return running
    info = run_of(settings, name)
    if info.status != "running":
        raise UsageError(
            f"{info.name} is not running: {info.status}",
            hint=f"`quark show {said_run(info.name)}{runs_flag(settings)}` says how it ended.",
        )
    return [info]


def resumed_job(
    settings: Settings, slots: Mapping[str, Any], tell: Callable[[str], None] = lambda _line: None
) -> tuple[TrainingJob, RunInfo]:
    """Return the job that continues a run, with what the command changes in it.

    Raises:
        DataNotFoundError: there is no such run.
        ChangedError: its job file cannot be read by this version.
        UsageError: it is running, or its stop rules are met and no new one was given.
    """
    info, job = earlier_run(settings, slots.get("run"))
    info = current_run(info, tell, whole=True)
    said = f"{said_run(info.name)}{runs_flag(settings)}"
    if info.status == "running":
        raise UsageError(f"{info.name} is running", hint=f"`quark show {said}` says how it is.")
    check_program(settings, job, info.name)
    if job.evaluate_only:
        raise UsageError(
            f"{info.name} is an evaluation: there is nothing to resume",
            hint=f"Measure again: quark again {said}",
        )
    changes = _changes(settings, job, info)
    if info.status == "finished" and not any(rule in changes for rule in ALL_STOP_RULES):
        raise UsageError(
            f"{info.name} has finished",
            hint=f"Go on with `quark resume {said_run(info.name)} for 1 more epoch{runs_flag(settings)}`.",
        )
    step = slots.get("from_step")
    # Stopped before it saved it has no checkpoint: then it begins. One that finished has had one.
    begins = info.checkpoint_step is None and info.status != "finished" and step is None
    # Its folder may have been moved since it was written: where it lies now is where it goes on.
    return msgspec.structs.replace(
        job, **changes, run_dir=info.path, resume="auto" if begins else "latest", from_step=step
    ), info


def check_program(settings: Settings, job: TrainingJob, name: str) -> None:
    """Refuse a run that would start what this project does not name: its folder may be a stranger's.

    Raises:
        ChangedError: its program is another than the one of that name here, or is in another folder.
    """
    if job.command is not None and settings.models.get(job.model) != tuple(job.command):
        raise ChangedError(
            f"{name} runs `{shlex.join(job.command)}`, and quark.yaml here does not say so",
            hint=f"If it is yours, write it there: models: {{{job.model}: {{command: …}}}}",
        )
    folder = job.project_dir
    if folder is not None and Path(folder).resolve() != settings.root.resolve():
        raise ChangedError(
            f"{name} takes its program from {folder}, and this project is {settings.root}",
            hint=f"If it is yours, go there, or say it: --override root={shlex.quote(folder)}",
        )


def _changes(settings: Settings, job: TrainingJob, info: RunInfo) -> dict[str, Any]:
    """Return the job fields that this command sets itself."""
    said = {name: value for name, value, source in settings.non_defaults() if source in NEAREST}
    if not said:
        return {}

    def base_of(name: str) -> float | None:
        if name == "epochs" and job.epochs is None:
            return info.epoch
        return getattr(job, name, None)

    absolute = make_absolute(said, base_of)
    # As many GPUs as before, where a machine is rented for it now.
    gpus = job.processes if job.processes > 1 else settings.value("gpus")
    values = {**settings.values, "gpus": gpus, **settings_of_remote(job.remote), **absolute}
    fields = job_fields(msgspec.structs.replace(settings, values=values), job.model)
    also = {"gpus": "processes", "cache_gb": "cache_bytes", "parameters": "layers"}
    also |= dict.fromkeys(("where", *REMOTE_SETTINGS, *RENTED_ONLY), "remote")
    names = {also.get(name, name) for name in said} - {"resume"}
    changed = {name: fields[name] for name in fields if name in names}
    if "remote" in changed and changed["remote"] != job.remote:
        changed |= moved_cache(settings, job, changed["remote"])
    if any(rule in said for rule in ALL_STOP_RULES):
        # New stop rules stand instead of the old ones: "for 2 more epochs" is not ended by those.
        changed = {**dict.fromkeys(ALL_STOP_RULES), **changed}
        changed["epochs"] = absolute.get("epochs")
    return changed
