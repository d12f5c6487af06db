"""`show`: one run's figures and its curves, at the terminal and as files in its folder."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.event_text import figure_texts
from brain.ml.run_files import PLOTS_FOLDER
from resource_manager.remote_runs import current_run
from resource_manager.rental.rental_record import cost_reader
from resource_manager.run_commands import STATUS_STYLES, run_of
from resource_manager.run_figures import (
    SLOW_DATA_SHARE,
    Figures,
    RunRecord,
    figures_of,
    is_slow_data,
    record_of,
)
from resource_manager.run_pictures import PageTable, charts_of, save_page, save_png
from resource_manager.run_summary import EVALUATED, PLOT_HEIGHT
from resource_manager.runs import RunInfo, read_events
from resource_manager.tensorboard_events import (
    FOLDER,
    is_written_live,
    told_last,
    write_event_files,
)
from tools_utilities.console import Console
from tools_utilities.settings import Settings
from tools_utilities.terminal_curves import Curve, curve_lines
from tools_utilities.terminal_text import (
    Line,
    Span,
    human_count,
    human_number,
    human_seconds,
    pairs,
)

PICTURE_COLUMNS = 78


def show_command(
    settings: Settings,
    slots: Mapping[str, Any],
    console: Console,
    *,
    clock: Callable[[], float] = time.time,
) -> int:
    """Print one run's figures and curves; a PNG, a page and TensorBoard files where those can be made.

    `clock`: Unix seconds, for what a rented machine has cost so far.
    """
    info = current_run(run_of(settings, slots.get("run")), console.note)
    events = read_events(Path(info.path))
    record = record_of(info, events)
    figures = figures_of(record)
    width = console.result_width
    cost = cost_reader(Path(info.path), clock)()
    facts = [*_facts(record, figures), *([("cost", cost)] if cost else []), ("folder", info.path)]
    lines: list[Line] = [
        [Span(info.name, "title"), "  ", Span(info.status, STATUS_STYLES.get(info.status, ""))],
        *pairs(facts, width=width),
        *_curves(record, width=width, draw=console.draws_blocks),
    ]
    for label, shown in _files(record, facts, events).items():
        lines.append([Span(f"{label}  ", "dim"), shown])
    losses = [loss for _, loss in record.points("loss")]
    data = {"schema": 1, "run": msgspec.to_builtins(info), "losses": losses}
    console.result(lines, {**data, "figures": msgspec.to_builtins(figures)})
    return 0


def _facts(record: RunRecord, figures: Figures) -> list[tuple[str, str]]:
    info, counts = record.info, str(record.start.get("counts") or "tokens")
    total = f" of {info.total_steps}" if info.total_steps else ""
    facts = []
    if info.reason != EVALUATED:
        facts = [
            ("steps", f"{info.step}{total}, epoch {info.epoch:.2f}"),
            ("loss", human_number(info.loss)),
        ]
    facts.append(("validation loss", _validation(record, figures)))
    in_tokens = f" ({human_count(info.tokens)} tokens)" if counts == "tokens" else ""
    facts += [
        ("samples", f"{human_count(info.samples)}{in_tokens}"),
        ("time", human_seconds(max(0.0, info.seen_at - info.created_at))),
    ]
    if figures.per_second is not None:
        facts.append(("speed", f"{human_count(figures.per_second)} {counts}/s"))
    if figures.data_wait_share is not None:
        facts.append(("data wait", wait_text(figures)))
    if info.checkpoint_step is not None:
        facts.append(("checkpoint", f"step {info.checkpoint_step}"))
    if info.reason:
        facts.append(("ended", info.reason))
    return facts


def wait_text(figures: Figures) -> str:
    """Return the share of time that a run waited for data, and what that means where it is much."""
    share = f"{figures.data_wait_share or 0:.1%} of the time in steps"
    if not is_slow_data(figures):
        often = (figures.data_wait_share or 0) >= SLOW_DATA_SHARE
        return share + (", at the start of epochs; else the loader keeps up" if often else "")
    cause = f", most for {figures.wait_cause.replace('_', ' ')}" if figures.wait_cause else ""
    return f"{share}: the loader is slower than the model{cause}"


def _validation(record: RunRecord, figures: Figures) -> str:
    info = record.info
    if info.val_loss is None:
        return "-"
    # All digits: this is the figure that two runs are compared by.
    told = [f"{info.val_loss:.9g}"]
    if record.evals:
        told += figure_texts(record.evals[-1])
    if figures.best_val_loss is not None and figures.best_val_loss < info.val_loss:
        told.append(f"best {figures.best_val_loss:.9g} at step {figures.best_val_step}")
    return ", ".join(told)


def _curves(record: RunRecord, *, width: int | None, draw: bool) -> list[Line]:
    curves = [Curve("loss", record.points("loss"))]
    validation = record.eval_points()
    if validation:
        curves.append(Curve("validation", validation))
    room = min(PICTURE_COLUMNS, (width or 80) - 2)
    lines = curve_lines(curves, width=room, height=PLOT_HEIGHT, x_label="steps", draw=draw)
    return ["", *lines] if lines else []


def _files(
    record: RunRecord, facts: list[tuple[str, str]], events: list[dict[str, Any]]
) -> dict[str, str]:
    """Write what a run's steps can be made into; returns what each is called, and where it is."""
    folder = Path(record.info.path) / PLOTS_FOLDER
    charts = charts_of([record])
    found: dict[str, str] = {}
    if charts:
        name = record.info.name
        table = PageTable(title="Figures", head=("", ""), rows=tuple(facts))
        written = {
            "picture": save_png(charts[0], folder / "loss.png", name),
            "page": save_page(charts, folder / "report.html", name, [table]),
        }
        found = {label: str(path) for label, path in written.items() if path is not None}
    event_files = _event_files(record.info, events)
    if event_files is not None:
        found["tensorboard"] = f"tensorboard --logdir {event_files}"
    return found


def _event_files(info: RunInfo, events: list[dict[str, Any]]) -> Path | None:
    """Write TensorBoard's files, unless whoever watches the run is at it."""
    run_dir = Path(info.path)
    if info.status == "running" and is_written_live(run_dir):
        return run_dir / FOLDER
    try:
        return write_event_files(run_dir, told_last(events))
    except OSError:
        return None  # a folder of another person
