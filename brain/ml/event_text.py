"""The events of a run as lines of its log: every one that says something, steps ten seconds apart.

The log is what a person reads first (`tail -f`, `quark logs`), so a run in health says there what it
does. Pure, but for the clock; imports no torch.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from brain.ml.rank_pace import slow_text

STEP_SECONDS = 10.0
"""Between two steps in the log; metrics.jsonl holds every one."""


class EventText:
    """Turns events into lines; knows which steps were said."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said_at: float | None = None
        self._total: int | None = None
        self._counts = "tokens"

    def line(self, event: str, fields: Mapping[str, Any]) -> str | None:
        """Return what the log says of an event; None for one that it leaves to metrics.jsonl."""
        if event == "step":
            return self._step(fields)
        if event == "start":
            self._total = fields.get("total_steps")
            self._counts = fields.get("counts") or "tokens"
        say = LINES.get(event)
        return None if say is None else say(fields)

    def _step(self, fields: Mapping[str, Any]) -> str | None:
        now = self._clock()
        if self._said_at is not None and now - self._said_at < STEP_SECONDS:
            return None
        self._said_at = now
        total = f"/{self._total}" if self._total else ""
        rate = fields.get("tokens_per_second") or 0
        wait = fields.get("data_wait_share") or 0
        slow = slow_text(fields.get("slow_ranks") or ())
        return (
            f"step {fields.get('step')}{total} · epoch {fields.get('epoch') or 0:.2f}"
            f" · loss {_number(fields.get('loss'))} · lr {_number(fields.get('lr'))}"
            f" · {rate:,.0f} {self._counts}/s · data wait {wait:.0%}"
            + (f" · {slow}" if slow else "")
        )


def _start(fields: Mapping[str, Any]) -> str:
    resumed = fields.get("resumed_from_step")
    facts = [
        f"start {fields.get('run')}" + (f" after step {resumed}" if resumed else ""),
        f"{fields.get('device')}, {fields.get('precision')}, ranks {fields.get('world_size')}",
        f"{fields.get('parameters') or 0:,} parameters",
    ]
    if fields.get("total_steps"):
        facts.append(f"{fields['total_steps']:,} steps")
    return " · ".join(facts)


def _eval(fields: Mapping[str, Any]) -> str:
    figures = [f"loss {_number(fields.get('loss'))}", *figure_texts(fields)]
    return " · ".join(
        [f"validation at step {fields.get('step')}", *figures, f"{fields.get('samples')} samples"]
    )


def figure_texts(evaluation: Mapping[str, Any]) -> list[str]:
    """Return what an evaluation measured beside its loss, for people."""
    shown = {"accuracy": "accuracy {:.1%}", "r2": "R² {:.3f}"}
    return [
        form.format(evaluation[name])
        for name, form in shown.items()
        if evaluation.get(name) is not None
    ]


def _checkpoint(fields: Mapping[str, Any]) -> str:
    return f"saved step {fields.get('step')} in {fields.get('seconds') or 0:.1f} s: {fields.get('path')}"


def _end(fields: Mapping[str, Any]) -> str:
    loss = _number(fields.get("loss"))
    return f"end ({fields.get('reason')}) · step {fields.get('step')} · loss {loss}"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}"


LINES: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "start": _start,
    "evaluating": lambda fields: f"evaluating at step {fields.get('step')}",
    "eval": _eval,
    "checkpoint": _checkpoint,
    "warning": lambda fields: str(fields.get("message")),
    "stopping": lambda fields: f"stopping ({fields.get('reason')}): saving first",
    "end": _end,
}
"""Errors and stalls are logged where they arise, with their stacks."""
