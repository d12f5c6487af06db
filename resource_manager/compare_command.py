"""`compare`: two or more runs side by side, as lines, as JSON, and as pictures in the first one's folder."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.run_files import PLOTS_FOLDER
from resource_manager.repeating import job_of
from resource_manager.run_comparison import Comparison, Difference, Stretch, compare_runs
from resource_manager.run_figures import Figures, RunRecord, is_slow_data, read_record
from resource_manager.run_pictures import PageTable, charts_of, save_page, save_png
from resource_manager.runs import find_run, out_dir_of
from tools_utilities.console import Console
from tools_utilities.errors import UsageError
from tools_utilities.settings import Settings
from tools_utilities.terminal_curves import Curve, curve_lines
from tools_utilities.terminal_text import (
    Line,
    Span,
    human_count,
    human_number,
    human_seconds,
    pairs,
    table,
)

PICTURE_COLUMNS, PICTURE_LINES = 78, 12
LONGEST_NAME = 100
VERDICTS = {
    "same": "the same, in the same order for the same seed",
    "cut otherwise": "the same objects, dealt and shuffled otherwise",
    "changed": "the same names and sizes, but written anew in between",
    "other": "other data",
    "unknown": "the same names; whether they hold the same, these runs do not say",
}
SAME = "nothing"


def compare_command(settings: Settings, slots: Mapping[str, Any], console: Console) -> int:
    """Print how runs differ, and what came of it.

    Raises:
        DataNotFoundError: there is no such run.
        ChangedError: a job file cannot be read by this version.
        UsageError: fewer than two runs.
    """
    names = list(dict.fromkeys(str(name) for name in slots["runs"]))
    if len(names) < 2:  # noqa: PLR2004 - a comparison
        raise UsageError(f"{names[0]} with itself", hint="quark compare fox-12 and heron-31")
    out_dir = out_dir_of(settings)
    infos = [find_run(out_dir, name) for name in names]
    records = [read_record(info) for info in infos]
    found = compare_runs(records, [job_of(info) for info in infos])
    lines = comparison_lines(found, width=console.result_width, draw=console.draws_blocks)
    for label, path in save_pictures(found, records).items():
        lines.append([Span(f"{label:<9}", "dim"), str(path)])
    console.result(lines, {"schema": 1, **msgspec.to_builtins(found)})
    return 0


def comparison_lines(found: Comparison, *, width: int | None, draw: bool) -> list[Line]:
    """Return a comparison for people."""
    losses = found.stretches
    lines = _section("what came of them", result_rows(found), found.runs, width)
    if losses:
        lines += _section(f"mean loss over {_unit(found)}", stretch_rows(losses), found.runs, width)
    room = min(PICTURE_COLUMNS, (width or 80) - 2)
    curves = [Curve(name, points) for name, points in zip(found.runs, found.curves, strict=True)]
    drawn = curve_lines(curves, width=room, height=PICTURE_LINES, x_label=_unit(found), draw=draw)
    lines += ["", *drawn] if drawn else []
    told = f"settings: {'' if found.settings else SAME + ' differs'}"
    lines += _section(told, _rows(found.settings), found.runs, width)
    lines += ["", *_data_lines(found, width)]
    if found.versions_known or found.versions:
        told = f"code: {'' if found.versions else SAME + ' differs'}"
        lines += _section(told, _rows(found.versions), found.runs, width)
    else:
        lines += [
            "",
            [Span("code:", "bold"), " a run that began before versions were written down"],
        ]
    return lines


def result_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Return the rows of what came of the runs: a name, then a value for each."""
    of_samples = "samples" in found.counts

    def row(name: str, *values: str) -> tuple[str, ...]:
        return (name, *values)

    figures = found.figures
    rows = [
        row("status", *found.statuses),
        row("steps", *(human_count(one.steps) for one in figures)),
        row("samples", *(human_count(one.samples) for one in figures)),
        row("loss at the end", *(human_number(one.last_loss) for one in figures)),
        row("best validation", *(_best(one) for one in figures)),
        row("last validation", *(human_number(one.last_val_loss) for one in figures)),
        row("time in steps", *(_time(one.seconds) for one in figures)),
        row(f"{'a second' if of_samples else 'tokens a second'}",
            *(_rate(one, counts) for one, counts in zip(figures, found.counts, strict=True))),
        row("data wait", *(_wait(one) for one in figures)),
    ]  # fmt: skip
    return [one for one in rows if any(value != "-" for value in one[1:])]


def stretch_rows(stretches: Sequence[Stretch]) -> list[tuple[str, ...]]:
    """Return one row for each stretch of training."""
    return [
        (f"{one.after:,.0f} to {one.to:,.0f}", *(human_number(loss) for loss in one.losses))
        for one in stretches
    ]


def save_pictures(found: Comparison, records: Sequence[RunRecord]) -> dict[str, Path]:
    """Write the curves side by side into the first run's folder; returns what could be written."""
    charts = charts_of(records, found.by)
    if not charts:
        return {}
    title = " and ".join(found.runs)
    stem = "compare-" + "-".join(found.runs[1:])
    if len(stem) > LONGEST_NAME:
        stem = f"compare-{hashlib.sha256(stem.encode()).hexdigest()[:12]}"
    folder = Path(records[0].info.path) / PLOTS_FOLDER
    tables = [
        PageTable(title=name, head=("", *found.runs), rows=tuple(rows))
        for name, rows in (
            ("What came of them", result_rows(found)),
            (f"Mean loss over {_unit(found)}", stretch_rows(found.stretches)),
            ("Settings that differ", _rows(found.settings)),
            ("Code that differs", _rows(found.versions)),
        )
    ]
    written = {
        "picture": save_png(charts[0], folder / f"{stem}.png", title),
        "page": save_page(charts, folder / f"{stem}.html", title, tables),
    }
    return {label: path for label, path in written.items() if path is not None}


def _section(
    title: str, rows: Sequence[tuple[str, ...]], runs: Sequence[str], width: int | None
) -> list[Line]:
    """Return a titled table, or each row under its name where the runs do not fit side by side."""
    head, *_ = title.split(": ")
    if not rows:
        return [
            "",
            [Span(head if head.endswith(":") else f"{head}:", "bold"), title[len(head) + 1 :]],
        ]
    lines = table((head.rstrip(":"), *runs), rows, width=width, right="l" + "r" * len(runs))
    if lines is not None:
        first, *rest = lines
        return ["", [Span(first, "bold")], *rest]
    found: list[Line] = ["", [Span(head.rstrip(":"), "bold")]]
    for name, *values in rows:
        found += [f"  {name}", *pairs(zip(runs, values, strict=True), width=width, indent=4)]
    return found


def _data_lines(found: Comparison, width: int | None) -> list[Line]:
    data = found.data
    lines: list[Line] = [[Span("data:", "bold"), f" {VERDICTS[data.verdict]}"]]
    for role, groups in (("train", data.train), ("validation", data.val)):
        if len(set(groups)) == 1:
            if groups[0]:
                lines += pairs([(role, ", ".join(groups[0]))], width=width)
            continue
        rows = [
            (name, ", ".join(own) or "none") for name, own in zip(found.runs, groups, strict=True)
        ]
        lines += [f"  {role}", *pairs(rows, width=width, indent=4)]
    return lines


def _rows(differences: Sequence[Difference]) -> list[tuple[str, ...]]:
    return [(one.name, *(_text(value) for value in one.values)) for one in differences]


def _text(value: Any) -> str:
    value = msgspec.to_builtins(value)
    if value is None:
        return "-"
    if isinstance(value, dict):
        told = [f"{item} {name}" for name, item in value.items() if item is not None]
        return ", ".join(told) or "-"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unit(found: Comparison) -> str:
    return "steps" if found.by == "step" else "samples"


def _best(one: Figures) -> str:
    if one.best_val_loss is None:
        return "-"
    return f"{human_number(one.best_val_loss)} (step {one.best_val_step})"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else human_seconds(seconds)


def _rate(one: Figures, counts: str) -> str:
    if one.per_second is None:
        return "-"
    return human_count(one.per_second) + (" samples" if counts == "samples" else "")


def _wait(one: Figures) -> str:
    if one.data_wait_share is None:
        return "-"
    cause = (one.wait_cause or "").replace("_", " ") if is_slow_data(one) else ""
    return f"{one.data_wait_share:.1%}" + (f" ({cause})" if cause else "")
