"""Watching a pipeline on a rented machine: what it says, what it costs, and Ctrl-C as for training."""

from collections import deque
from pathlib import Path
from typing import Any

from brain.ml.run_files import METRICS_FILE
from resource_manager.live_view import LiveRun, flow
from resource_manager.rental.rental_record import cost_reader
from resource_manager.run_watch import Bond, RunWatch
from tools_utilities.console import Console
from tools_utilities.terminal_text import Line, Span, fold

SHOWN_LINES = 6


class LivePipeline(LiveRun):
    """What a pipeline has said last."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._said: deque[str] = deque(maxlen=SHOWN_LINES)

    def take(self, event: dict[str, Any]) -> None:
        """Take in something that was said; its own events are for the end."""
        if event.get("event") == "warning":
            self._said.append(str(event.get("message", "")))

    def lines(self, width: int, *, draw: bool, saying: str = "", keys: str = "") -> list[Line]:
        """As of LiveRun."""
        del draw  # there is no picture
        cost = f"cost {self.cost}" if self.cost else ""
        block: list[Line] = [*flow([self.name, cost], width, first_style="title")]
        block += [line for said in self._said for line in fold(said, width)]
        if saying:
            block.extend([Span(line, "yellow")] for line in fold(saying, width))
        elif keys:
            block.extend([Span(line, "dim")] for line in fold(keys, width))
        return block


class PipelineWatch(RunWatch):
    """One watched pipeline."""

    def __init__(self, name: str, folder: Path, console: Console) -> None:
        bond = Bond(saves=False, asks=True, leave=lambda: None, cost=cost_reader(folder))
        super().__init__(name, folder / METRICS_FILE, console, bond=bond)
        self.run = LivePipeline(name)
