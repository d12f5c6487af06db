"""What may be answered to a question that a sentence left open: runs by name, datasets by name."""

import time
from collections.abc import Callable
from pathlib import Path

from resource_manager.runs import RunInfo, list_runs, out_dir_of
from tools_utilities.reading_dialogue import Offered
from tools_utilities.settings import Settings, load_settings
from tools_utilities.terminal_text import human_age, human_number

MOST_RUNS = 9
"""Runs offered, newest first; another is answered by its name."""
STATES = {"stop": True, "attach": True, "delete_run": False}
"""Intents that take only runs that are running, or that are not."""


def offered_answers(
    slot: str, intent: str | None, start_dir: Path, *, clock: Callable[[], float] = time.time
) -> list[Offered]:
    """Return the answers that can be told for a slot, the likeliest first; a listing, no store."""
    settings = load_settings(start_dir=start_dir)
    if slot == "run":
        infos = [
            info
            for info in list_runs(out_dir_of(settings), clock=clock)
            if (info.status == "running") is STATES.get(intent or "", info.status == "running")
        ][:MOST_RUNS]
        return [Offered(answer=info.name, about=_about(info, clock())) for info in infos]
    if slot == "data":
        return _datasets(settings)
    return []


def _about(info: RunInfo, now: float) -> str:
    steps = f"step {info.step}" + (f"/{info.total_steps}" if info.total_steps else "")
    age = human_age(now - info.created_at)
    return f"{info.status}, {steps}, loss {human_number(info.loss)}, {age}"


def _datasets(settings: Settings) -> list[Offered]:
    return [Offered(answer=name, about=path) for name, path in sorted(settings.aliases.items())]
