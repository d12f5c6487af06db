"""The command to give next, by how a run stands: one that works as it is shown. Reads run folders only.

A run is looked for in the folder of runs that the settings name; a command that names another one by
itself names it in the next command too.
"""

import shlex
from pathlib import Path

import msgspec

from brain.ml.run_files import JOB_FILE
from brain.ml.training_job import TrainingJob, load_job
from resource_manager.run_summary import EVALUATED
from resource_manager.runs import RunInfo, out_dir_of, read_run
from tools_utilities.run_words import said_run
from tools_utilities.settings import Settings, load_settings
from tools_utilities.terminal_text import COMMAND, Line, Span


def runs_flag(settings: Settings, out_dir: Path | None = None) -> str:
    """Return what a command about a run needs to find it: nothing, or ` --override out_dir=…`.

    `out_dir`: where the run lies, if not where `settings` say.
    """
    lies = out_dir or out_dir_of(settings)
    usual = out_dir_of(load_settings(start_dir=settings.start_dir))
    if lies.resolve() == usual.resolve():
        return ""
    return f" --override {shlex.quote(f'out_dir={lies}')}"


def after_launch(job: TrainingJob, flag: str = "") -> list[Line]:
    """Return the commands that find a run which goes on in the background."""
    return _lines(
        [f"quark {verb} {said_run(job.name)}{flag}" for verb in ("attach", "show", "logs", "stop")]
    )


def after_end(job: TrainingJob, reason: str | None = None, flag: str = "") -> list[Line]:
    """Return the commands that make sense after a run that ended by itself."""
    said = said_run(job.name)
    commands = [f"quark show {said}{flag}"]
    if not job.evaluate_only and reason != EVALUATED:
        commands.append(f"quark resume {said} for 1 more epoch{flag}")
    return _lines(commands)


def after_stop(job: TrainingJob, *, saved: bool, flag: str = "") -> list[Line]:
    """Return the commands that go on with a run that was stopped; an evaluation is made anew."""
    said = said_run(job.name)
    verb = "again" if job.evaluate_only else "resume"
    lines: list[Line] = [_line(verb, f"quark {verb} {said}{flag}")]
    if not saved:
        lines.append(_line("delete", f"quark delete {said}{flag}"))
    return lines


def taken_hint(run_dir: Path, otherwise: str = "choose another name", flag: str = "") -> str:
    """Return what to do about a run that is there already, as it stands."""
    try:
        job, info = load_job(run_dir / JOB_FILE), read_run(run_dir)
    except (OSError, msgspec.DecodeError):  # no run, or one of another version
        return f"{otherwise.capitalize()}."
    return f"{_first_word(job, info)} with `{_onward(job, info)}{flag}`, or {otherwise}."


def _first_word(job: TrainingJob, info: RunInfo) -> str:
    if info.status == "running":
        return "See it"
    return "Measure again" if job.evaluate_only else "Continue it"


def _onward(job: TrainingJob, info: RunInfo) -> str:
    said = said_run(info.name)
    if info.status == "running":
        return f"quark show {said}"
    if job.evaluate_only:
        return f"quark again {said}"
    more = " for 1 more epoch" if info.status == "finished" else ""
    return f"quark resume {said}{more}"


def _lines(commands: list[str]) -> list[Line]:
    return [_line("" if at else "next", command) for at, command in enumerate(commands)]


def _line(lead: str, command: str) -> Line:
    width = 8 if lead not in ("next", "") else 6
    return [Span(lead.ljust(width), "dim"), Span(command, COMMAND)]
