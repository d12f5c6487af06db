"""What a run looks like while it goes on: events in, lines out. Pure; `run_watch.py` feeds it."""

from collections.abc import Iterable
from typing import Any

from brain.ml.event_text import figure_texts
from brain.ml.rank_pace import slow_text
from tools_utilities.terminal_text import (
    Line,
    Span,
    fold,
    human_bytes,
    human_count,
    human_number,
    human_seconds,
    plain,
    sparkline,
)

NAMED_WAIT = 0.05
"""Share of a step from which on it is said what the data waits for."""
WARNING_LINES = 2
"""Of the last warning; the log has all."""
KEPT_LOSSES = 4096
"""Losses kept for the pictures; older ones are thinned to every second when there are more."""


class LiveRun:
    """The state of one run as its events tell it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.start: dict[str, Any] = {}
        self.step: dict[str, Any] = {}
        self.evaluation: dict[str, Any] = {}
        self.error: dict[str, Any] = {}
        self.end: dict[str, Any] = {}
        self.checkpoint: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.stall = ""
        """What a rank that gets nowhere waits for; empty once a step is made."""
        self.evaluating = False
        """Whether the validation data is being read; until whatever comes next."""
        self.losses: list[float] = []
        self.news = ""
        """What was said last of the way to the run: of its machine, of the connection."""
        self.cost = ""
        """Dollars so far and the cap, of a rented machine: `$0.42 of $15`."""

    def take(self, event: dict[str, Any]) -> None:
        """Take in one event of metrics.jsonl; unknown ones are left alone."""
        kind = event.get("event")
        if kind not in ("checkpoint", "stall", "warning"):  # these come from beside it
            self.evaluating = kind == "evaluating"
        if kind == "start":
            # A resumed run starts again in the same file.
            self.start, self.error, self.end = event, {}, {}
        elif kind == "step":
            self.step, self.stall = event, ""
            self._keep_loss(event.get("loss"))
        elif kind == "eval":
            self.evaluation = event
        elif kind == "stall":
            self.stall = f"rank {event.get('rank', 0)}: {event.get('message', '')}"
        elif kind == "warning":
            self.warnings.append(str(event.get("message", "")))
        elif kind in ("checkpoint", "error", "end"):
            setattr(self, kind, event)

    def _keep_loss(self, loss: Any) -> None:
        if isinstance(loss, int | float):
            self.losses.append(float(loss))
        if len(self.losses) > KEPT_LOSSES:
            self.losses = self.losses[::2]

    def lines(self, width: int, *, draw: bool, saying: str = "", keys: str = "") -> list[Line]:
        """Return the live block, at most `width` columns wide; `keys`: what can be typed."""
        if not self.step:
            block: list[Line] = [[Span(self.name, "title"), f"  {self._before_steps()} …"]]
        else:
            block = [
                *flow(self._progress(width, draw=draw), width, first_style="title"),
                *flow([self._loss(width, draw=draw), self._val_loss()], width, gap="   "),
                *flow(self._learning(), width),
                *flow(self._data(), width, style="dim"),
                *(["evaluating …"] if self.evaluating else []),
            ]
        if self.cost:
            block.extend(flow([f"cost {self.cost}"], width, style="dim"))
        if self.warnings:
            warning = fold(f"warning: {self.warnings[-1]}", width)[:WARNING_LINES]
            block.extend([Span(line, "yellow")] for line in warning)
        if self.news:
            block.extend([Span(line, "yellow")] for line in fold(self.news, width)[:WARNING_LINES])
        if self.stall:
            block.extend([Span(line, "yellow")] for line in fold(self.stall, width))
        if saying:
            block.extend([Span(line, "yellow")] for line in fold(saying, width))
        elif keys:
            block.extend([Span(line, "dim")] for line in fold(keys, width))
        return block

    def log_line(self) -> str:
        """Return the same as one line, for where nothing can be repainted."""
        cost = f"cost {self.cost}" if self.cost else ""
        if not self.step:
            return " · ".join(filter(None, [self._before_steps(), cost]))
        pieces = [self._steps(), f"loss {human_number(self.step.get('loss'))}", self._val_loss()]
        pieces += ["evaluating"] if self.evaluating else []
        return " · ".join(filter(None, [*pieces, *self._learning(), *self._data(), cost]))

    def _before_steps(self) -> str:
        if self.evaluating:
            return "evaluating"
        return "waiting for the first step" if self.start else "starting"

    def _steps(self) -> str:
        total = self.start.get("total_steps")
        return f"step {self.step.get('step', 0)}" + (f"/{total}" if total else "")

    def _progress(self, width: int, *, draw: bool) -> list[str]:
        pieces = [self.name, self._steps(), f"epoch {self.step.get('epoch') or 0:.2f}"]
        total = self.start.get("total_steps")
        if total:
            share = min(1.0, self.step.get("step", 0) / total)
            cells = min(24, max(8, width // 4))
            full = round(share * cells)
            bar = ("█" * full + "░" * (cells - full)) if draw else "#" * full + "." * (cells - full)
            pieces.append(f"{bar} {share:.0%}")
        return pieces

    def _loss(self, width: int, *, draw: bool) -> str:
        picture = sparkline(self.losses, width=max(8, min(40, width - 40)), draw=draw)
        return f"loss {human_number(self.step.get('loss'))}  {picture}"

    def _val_loss(self) -> str:
        if not self.evaluation:
            return ""
        figures = "".join(f", {text}" for text in figure_texts(self.evaluation))
        return (
            f"validation {human_number(self.evaluation.get('loss'))}{figures}"
            f" (step {self.evaluation.get('step')})"
        )

    @property
    def _counts(self) -> str:
        """What is counted: `tokens`, or `samples` of a model that takes records."""
        return str(self.start.get("counts") or "tokens")

    def _learning(self) -> list[str]:
        step = self.step
        pieces = [
            f"lr {human_number(step.get('lr'))}",
            f"grad norm {human_number(step.get('grad_norm'))}",
            f"{human_count(step.get('tokens_per_second') or 0)} {self._counts}/s",
        ]
        if step.get("mfu") is not None:
            pieces.append(f"MFU {step['mfu']:.0%}")
        if step.get("eta_seconds") is not None:
            pieces.append(f"ETA {human_seconds(step['eta_seconds'])}")
        return pieces

    def _data(self) -> list[str]:
        step = self.step
        hit_rate = step.get("cache_hit_rate")
        return [
            f"data {human_bytes(step.get('data_bytes_per_second') or 0)}/s",
            "no cache" if hit_rate is None else f"cache hit {hit_rate:.0%}",
            _data_wait(step),
            f"retries {step.get('retries') or 0}",
            f"ranks {self.start.get('world_size', 1)}",
            slow_text(step.get("slow_ranks") or ()),
        ]


def _data_wait(step: dict[str, Any]) -> str:
    share, cause = step.get("data_wait_share") or 0, step.get("wait_cause")
    named = cause and share >= NAMED_WAIT
    return f"data wait {share:.0%}" + (f" ({str(cause).replace('_', ' ')})" if named else "")


def flow(
    pieces: Iterable[str], width: int, *, gap: str = " · ", style: str = "", first_style: str = ""
) -> list[Line]:
    """Return `pieces` side by side, going on to a new line where the next does not fit."""
    lines: list[list[Span]] = [[]]
    for place, piece in enumerate(piece for piece in pieces if piece):
        look = first_style if first_style and not place else style
        if lines[-1] and len(plain(lines[-1])) + len(gap) + len(piece) > width:
            lines.append([])
        lead = [Span(gap, style)] if lines[-1] else []
        lines[-1] += [*lead, Span(piece, look)]
    return [line for line in lines if line]
