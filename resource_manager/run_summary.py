"""How a run ended, in lines: figures and a picture of the loss. Pure."""

from typing import Any

from brain.ml.event_text import figure_texts
from resource_manager.live_view import LiveRun
from tools_utilities.terminal_text import (
    Line,
    Span,
    human_count,
    human_number,
    human_seconds,
    pairs,
    plot,
)

PLOT_HEIGHT = 8
EVALUATED = "evaluated"
"""Why a run ended that trained nothing."""


def summary_lines(run: LiveRun, *, width: int | None, draw: bool) -> list[Line]:
    """Return the figures of a run that ended and a picture of its loss; `width=None`: off a terminal."""
    end = run.end or run.step
    rows = []
    if end.get("reason") != EVALUATED:
        rows = [
            ("steps", f"{human_count(end.get('step') or 0)}, {_epochs(end)}"),
            ("loss", human_number(end.get("loss"))),
        ]
    val_loss = end.get("val_loss", run.evaluation.get("loss"))
    if val_loss is not None:
        # All digits: this is the figure that two runs are compared by.
        rows.append(("validation loss", f"{val_loss:.9g}"))
    figures = figure_texts(run.evaluation)
    if figures:
        rows.append(("validation", ", ".join(figures)))
    samples, tokens = end.get("samples") or 0, end.get("tokens") or 0
    of_text = run.start.get("counts") != "samples"
    in_tokens = f" ({human_count(tokens)} tokens)" if of_text else ""
    rows.append(("samples", f"{human_count(samples)}{in_tokens}"))
    if end.get("seconds") is not None:
        rows.append(("time", human_seconds(end["seconds"])))
    if run.checkpoint.get("path"):
        rows.append(("checkpoint", str(run.checkpoint["path"])))
    return [
        [Span(run.name, "title"), f"  {_ended(run.end)}"],
        *pairs(rows, width=width),
        *picture(run.losses, width=width, draw=draw),
    ]


def picture(losses: list[float], *, width: int | None, draw: bool) -> list[Line]:
    """Return a small plot of the loss over the steps."""
    if len(losses) < 2:  # noqa: PLR2004 - one point is no curve
        return []
    room = min(72, (width or 80) - 2)
    return ["", *plot(losses, width=room, height=PLOT_HEIGHT, draw=draw, label="loss by step")]


def _epochs(end: dict[str, Any]) -> str:
    epoch = end.get("epoch")
    return "" if epoch is None else f"epoch {epoch:.2f}"


def _ended(end: dict[str, Any]) -> str:
    reason = str(end.get("reason") or "ended")
    return {"interrupt": "interrupted and saved", "terminate": "terminated and saved"}.get(
        reason, f"ended: {reason}"
    )
