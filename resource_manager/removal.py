"""What is removed on request: a run's folder, the cache. Shown exactly, then asked; default No."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resource_manager.launch_places import asked_target
from resource_manager.next_commands import runs_flag
from resource_manager.remote_record import read_record
from resource_manager.remote_runs import current_run, is_elsewhere
from resource_manager.runs import RunInfo, find_run, newest_run, out_dir_of
from tools_utilities.cache_cleaning import (
    CacheContents,
    Cleaned,
    cache_contents,
    clean_cache,
    leftovers,
)
from tools_utilities.console import Console
from tools_utilities.errors import InputNeededError, MachineError, UsageError
from tools_utilities.run_words import said_run
from tools_utilities.settings import Settings
from tools_utilities.terminal_text import Line, human_bytes, pairs


def delete_command(
    settings: Settings, slots: Mapping[str, Any], console: Console, *, plan_only: bool = False
) -> int:
    """Delete a run's folder after showing what is in it; `plan_only` shows it and stops.

    Raises:
        DataNotFoundError: there is no such run.
        UsageError: it is running, is a link, or all runs are meant.
        InputNeededError: there is no terminal to confirm at and no `--yes`.
    """
    name = slots.get("run")
    if name == "all":
        raise UsageError("delete takes one run at a time", hint="`quark list` names the runs.")
    out_dir = out_dir_of(settings)
    info = newest_run(out_dir) if name in (None, "latest") else find_run(out_dir, str(name))
    info = current_run(info, console.note)
    folder = Path(info.path)
    if info.status == "running":
        raise UsageError(
            f"{info.name} is running",
            hint=f"Stop it first: quark stop {said_run(info.name)}{runs_flag(settings)}",
        )
    if folder.is_symlink():
        raise UsageError(f"{folder} is a link: it is not deleted", hint="Remove it by hand.")
    files = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    size = sum(path.lstat().st_size for path in files)
    what = f"{info.name}: {len(files)} files, {human_bytes(size)}"
    facts = _run_facts(info, what)
    data = {
        "schema": 1, "run": info.name, "folder": str(folder), "files": len(files), "bytes": size,
    }  # fmt: skip
    if plan_only:
        console.result([*facts, f"would delete {what}"], {**data, "plan": True})
        return 0
    if not _agreed(console, facts, f"delete {folder}", f"Delete {what}?"):
        return UsageError.exit_code
    _remove_elsewhere(info, console)
    # The job file first: a removal that is cut short leaves no run that looks whole.
    (folder / "job.yaml").unlink(missing_ok=True)
    shutil.rmtree(folder)
    console.result([f"deleted {what}"], data)
    return 0


def _remove_elsewhere(info: RunInfo, console: Console) -> None:
    """Remove what is left of a run on another machine; what cannot be reached is said and stays."""
    folder = Path(info.path)
    if not is_elsewhere(folder):
        return
    record = read_record(folder)
    try:
        with asked_target(folder, console.note) as target:
            target.remove(folder)
    except MachineError as error:
        stays = f"; {record.remote.folder}/{record.run} stays on {info.where}" if record else ""
        console.note(f"{error}{stays}")


def clean_command(
    settings: Settings, slots: Mapping[str, Any], console: Console, *, plan_only: bool = False
) -> int:
    """Empty the cache after showing what is in it; only files that the cache made go.

    `plan_only` shows it and stops.

    Raises:
        InputNeededError: there is no terminal to confirm at and no `--yes`.
    """
    del slots  # `cache_dir` is a setting
    folder = settings.path("cache_dir")
    if folder is None:
        raise UsageError("no cache folder is configured", hint="Name one: cache_dir=FOLDER.")
    contents = cache_contents(folder)
    if not contents.num_files and not contents.num_learned and not leftovers(folder):
        data = {
            "schema": 1, "folder": contents.folder, "files": 0, "bytes": 0, "in_use": 0, "learned": 0,
        }  # fmt: skip
        console.result([f"nothing is cached in {contents.folder}"], data)
        return 0
    what = _cached(contents)
    facts = pairs([("folder", contents.folder), ("removes", what)], width=console.note_width)
    question = f"Remove {what}?"
    if plan_only:
        data = {
            "schema": 1, "folder": contents.folder, "files": contents.num_files,
            "bytes": contents.num_bytes, "learned": contents.num_learned, "plan": True,
        }  # fmt: skip
        console.result([*facts, f"would remove {what}"], data)
        return 0
    if not _agreed(console, facts, f"remove {what} from {contents.folder}", question):
        return UsageError.exit_code
    cleaned = clean_cache(folder)
    lines = [f"removed {_cached(cleaned)}"]
    if cleaned.num_in_use:
        lines.append(f"{cleaned.num_in_use} are being read and stay")
    data = {
        "schema": 1, "folder": contents.folder, "files": cleaned.num_files,
        "bytes": cleaned.num_bytes, "in_use": cleaned.num_in_use, "learned": cleaned.num_learned,
    }  # fmt: skip
    console.result(lines, data)
    return 0


def _cached(found: CacheContents | Cleaned) -> str:
    objects = f"{found.num_files} cached objects, {human_bytes(found.num_bytes)}"
    learned = found.num_learned
    return f"{objects}, and {learned} files of counts" if learned else objects


def _run_facts(info: RunInfo, what: str) -> list[Line]:
    saved = "none" if info.checkpoint_step is None else f"up to step {info.checkpoint_step}"
    rows = [("folder", info.path), ("removes", what), ("status", info.status)]
    lines: list[Line] = pairs([*rows, ("checkpoints", saved)], width=None)
    return lines


def _agreed(console: Console, facts: Sequence[Line], deed: str, question: str) -> bool:
    """Show what would go and ask.

    Raises:
        InputNeededError: nobody can be asked and `--yes` was not given.
    """
    console.note(*facts)
    if console.about.yes:
        return True
    if not console.can_ask:
        raise InputNeededError(f"this would {deed}", hint="Add --yes to do it.")
    if console.confirm(question, default=False):
        return True
    console.note("Nothing done.")
    return False
