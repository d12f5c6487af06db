"""`logs`: the end of a run's log, and what is added to it while the run goes on."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from resource_manager.launch_places import LOCAL, asked_target
from resource_manager.launch_target import LaunchTarget
from resource_manager.next_commands import runs_flag
from resource_manager.run_commands import run_of
from resource_manager.runs import RunInfo, read_run
from tools_utilities.console import Console
from tools_utilities.errors import DataNotFoundError
from tools_utilities.run_words import said_run
from tools_utilities.settings import Settings

DEFAULT_LINES = 50
POLL_SECONDS = 0.25
BLOCK_BYTES = 1 << 16


def logs_command(
    settings: Settings,
    slots: Mapping[str, Any],
    console: Console,
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Print the last lines of a run's log; with `follow`, what comes until the run ends or Ctrl-C.

    Raises:
        DataNotFoundError: there is no such run, or it has no log yet.
    """
    info = run_of(settings, slots.get("run"))
    run_dir = Path(info.path)
    with asked_target(run_dir, console.note) as target:
        path = target.logs(run_dir)
        if not path.is_file():
            raise DataNotFoundError(
                f"{info.name} has no log yet",
                hint=f"`quark show {said_run(info.name)}{runs_flag(settings)}` says how it is.",
            )
        lines, end = last_lines(path, int(slots.get("lines") or DEFAULT_LINES))
        if not slots.get("follow"):
            console.result(lines, {"schema": 1, "run": info.name, "lines": lines})
            return 0
        goes_on = _goes_on(info, target)
        # Ctrl-C is how a person stops looking: the run goes on.
        with contextlib.suppress(KeyboardInterrupt):
            for line in lines:
                console.result([line], {"event": "log", "run": info.name, "line": line})
            for line in added_lines(path, end, goes_on, sleep):
                console.result([line], {"event": "log", "run": info.name, "line": line})
    return 0


def _goes_on(info: RunInfo, target: LaunchTarget) -> Callable[[], bool]:
    """Return what tells whether a run goes on; of one elsewhere it also brings what it writes."""
    run_dir = Path(info.path)
    if info.where == LOCAL or info.status != "running":
        return lambda: read_run(run_dir).status == "running"
    handle = target.attach(run_dir)
    return lambda: handle.poll() is None


def last_lines(path: Path, count: int) -> tuple[list[str], int]:
    """Return the last `count` lines of a file and where they end, reading from its end only."""
    with path.open("rb") as file:
        end = start = file.seek(0, os.SEEK_END)
        tail = b""
        while start and tail.count(b"\n") <= count:
            length = min(BLOCK_BYTES, start)
            start -= length
            file.seek(start)
            tail = file.read(length) + tail
    lines = tail[: end - start].splitlines()
    return [_text(line) for line in lines[-count:]], end


def added_lines(
    path: Path, offset: int, is_running: Callable[[], bool], sleep: Callable[[float], None]
) -> Iterator[str]:
    """Yield the lines that are added behind `offset`, until the run has ended and all is read."""
    rest = b""
    with path.open("rb") as file:
        file.seek(offset)
        while True:
            # Asked before the last look: what an ended run wrote last is there by then.
            goes_on = is_running()
            *lines, rest = (rest + file.read()).split(b"\n")
            yield from (_text(line) for line in lines)
            if not goes_on:
                break
            sleep(POLL_SECONDS)
    if rest:
        yield _text(rest)


def _text(line: bytes) -> str:
    return line.rstrip(b"\r\n").decode("utf-8", "backslashreplace")
