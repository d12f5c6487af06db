"""What a run's events come to: its curves and the figures that runs are compared by. Pure."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from resource_manager.runs import RunInfo, read_events
from resource_manager.tensorboard_events import told_last

LATE_SHARE = 0.05
"""The last loss of a run is the mean over this share of its steps: one step's is mostly noise."""
SLOW_DATA_SHARE = 0.02
"""From this share of waiting on, the loader is slower than the model."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the events of one run say."""

    info: RunInfo
    start: Mapping[str, Any] = {}
    """The last `start` event."""
    steps: tuple[Mapping[str, Any], ...] = ()
    """`step` events, one a step, in order."""
    evals: tuple[Mapping[str, Any], ...] = ()
    end: Mapping[str, Any] = {}

    def points(self, field: str, by: str = "step") -> list[tuple[float, float]]:
        """Return (`by`, `field`) of every step that has both."""
        return [
            (float(step[by]), float(step[field]))
            for step in self.steps
            if step.get(by) is not None and step.get(field) is not None
        ]

    def eval_points(self, by: str = "step") -> list[tuple[float, float]]:
        """Return (`by`, validation loss) of every evaluation."""
        at = {step["step"]: step.get(by) for step in self.steps}
        found = [
            (one["step"] if by == "step" else at.get(one["step"]), one.get("loss"))
            for one in self.evals
        ]
        return [(float(x), float(y)) for x, y in found if x is not None and y is not None]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """A run in numbers; None: its events do not tell."""

    steps: int
    samples: int
    tokens: int
    last_loss: float | None
    best_val_loss: float | None
    best_val_step: int | None
    last_val_loss: float | None
    seconds: float | None
    """In steps: without starting, evaluating and saving."""
    per_second: float | None
    """Tokens, or samples of a model that takes records; over all steps."""
    data_wait_share: float | None
    """Of the time in steps."""
    steady_wait_share: float | None
    """The same without the first step of each start and epoch, which wait however fast the loader is."""
    wait_cause: str | None
    """What the data was waited for most."""


def read_record(info: RunInfo) -> RunRecord:
    """Return what a run's events say."""
    return record_of(info, read_events(Path(info.path)))


def record_of(info: RunInfo, events: Sequence[dict[str, Any]]) -> RunRecord:
    """Return what a run's `events` say; of steps made again after a resume the last."""
    kept = told_last(events)
    latest = {event["event"]: event for event in kept}
    return RunRecord(
        info=info,
        start=latest.get("start", {}),
        steps=_in_order(kept, "step"),
        evals=_in_order(kept, "eval"),
        end=latest.get("end", {}),
    )


def figures_of(record: RunRecord) -> Figures:
    """Return a run in numbers."""
    steps = record.steps
    last: Mapping[str, Any] = steps[-1] if steps else record.end
    measured = [(one["loss"], one["step"]) for one in record.evals if one.get("loss") is not None]
    best = min(measured, default=(None, None))
    seconds = _total(steps, "step_seconds")
    return Figures(
        steps=int(last.get("step") or 0),
        samples=int(last.get("samples") or 0),
        tokens=int(last.get("tokens") or 0),
        last_loss=late_loss(record),
        best_val_loss=best[0],
        best_val_step=best[1],
        last_val_loss=measured[-1][0] if measured else None,
        seconds=seconds,
        per_second=_rate(steps),
        data_wait_share=wait_share(steps),
        steady_wait_share=wait_share(steady(steps)),
        wait_cause=wait_cause(steps),
    )


def late_loss(record: RunRecord) -> float | None:
    """Return the mean loss over the last twentieth of a run's steps."""
    losses = [y for _, y in record.points("loss")]
    count = max(1, round(len(losses) * LATE_SHARE))
    return sum(losses[-count:]) / count if losses else None


def wait_share(steps: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the share of the steps' time that went by waiting for data; None where none tells."""
    told = [step for step in steps if step.get("step_seconds") and "data_wait_share" in step]
    seconds = _total(told, "step_seconds")
    if not seconds:
        return None
    waits = [float((step["data_wait_share"] or 0) * step["step_seconds"]) for step in told]
    return sum(waits) / seconds


def steady(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the steps before which data was being read already: no first one of a start or an epoch."""
    return [
        step
        for before, step in pairwise(steps)
        if int(step.get("epoch") or 0) == int(before.get("epoch") or 0)
        and _waited(step) >= _waited(before)  # the sums begin anew with every start
    ]


def wait_cause(steps: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what a run's data was waited for most, over all its starts."""
    totals: dict[str, float] = {}
    before: Mapping[str, float] = {}
    for step in steps:
        now = step.get("wait_seconds") or {}
        for cause, seconds in now.items():
            fresh = seconds - before.get(cause, 0.0)
            # The sums begin anew with every start.
            totals[cause] = totals.get(cause, 0.0) + (fresh if fresh >= 0 else seconds)
        before = now
    cause = max(totals, key=lambda name: totals[name], default=None)
    return cause if cause is not None and totals[cause] > 0 else None


def is_slow_data(figures: Figures) -> bool:
    """Tell whether a run waited for data all along: its loader is slower than its model."""
    share = figures.steady_wait_share
    return share is not None and share >= SLOW_DATA_SHARE


def _waited(step: Mapping[str, Any]) -> float:
    return float(sum((step.get("wait_seconds") or {}).values()))


def _in_order(events: Sequence[dict[str, Any]], kind: str) -> tuple[dict[str, Any], ...]:
    found = {int(event["step"]): event for event in events if event["event"] == kind}
    return tuple(found[number] for number in sorted(found))


def _total(steps: Sequence[Mapping[str, Any]], field: str) -> float | None:
    values = [float(step[field]) for step in steps if step.get(field) is not None]
    return sum(values) if values else None


def _rate(steps: Sequence[Mapping[str, Any]]) -> float | None:
    """Return what was trained on a second, over all steps: not the mean of the steps' own rates."""
    told = [step for step in steps if step.get("step_seconds") and step.get("tokens_per_second")]
    seconds = _total(told, "step_seconds")
    if not seconds:
        return None
    made = [float(step["tokens_per_second"] * step["step_seconds"]) for step in told]
    return sum(made) / seconds
