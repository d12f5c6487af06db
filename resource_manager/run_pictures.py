"""Pictures of runs: a PNG through matplotlib (`[plot]`), and a page of HTML that needs nothing else.

A folder that cannot be written is no error: whoever looks at a run may not own it.
"""

import html
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from resource_manager.run_figures import RunRecord
from tools_utilities.terminal_curves import averaged
from tools_utilities.terminal_text import human_number, shown

Points = tuple[tuple[float, float], ...]
PAGE_POINTS = 600
"""Of each curve in a page."""
COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf")
WIDTH, HEIGHT, LEFT, BOTTOM = 760, 300, 70, 40
TICKS = 5
CURVES = (
    ("loss", "loss"),
    ("learning rate", "lr"),
    ("gradient norm", "grad_norm"),
    ("throughput (a second)", "tokens_per_second"),
    ("share of time waiting for data", "data_wait_share"),
)
"""Title of a chart, and the field of a step that it shows."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One curve."""

    name: str
    points: Points
    colour: int = 0
    """A run's number; its validation has the same."""
    dotted: bool = False


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """Curves over one pair of axes."""

    title: str
    x_label: str
    series: tuple[Series, ...]


def charts_of(records: Sequence[RunRecord], by: str = "step") -> list[Chart]:
    """Return the charts of one run or several, over steps or samples; those without a curve are left out."""
    charts = []
    for title, field in CURVES:
        series = [
            Series(name=record.info.name, points=tuple(record.points(field, by)), colour=number)
            for number, record in enumerate(records)
        ]
        if field == "loss":
            series += [
                Series(
                    name=f"{record.info.name} validation",
                    points=tuple(record.eval_points(by)), colour=number, dotted=True,
                )
                for number, record in enumerate(records)
            ]  # fmt: skip
        charts.append(Chart(title=title, x_label=by, series=tuple(s for s in series if s.points)))
    return [chart for chart in charts if chart.series]


def save_png(chart: Chart, path: Path, title: str) -> Path | None:
    """Write a chart as PNG and return it; None without matplotlib, or where it cannot be written."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for series in chart.series:
        axes.plot(
            *zip(*series.points, strict=True),
            color=COLOURS[series.colour % len(COLOURS)],
            linestyle="--" if series.dotted else "-",
            marker="o" if series.dotted else None,
            # A label that begins with `_` would be left out; a name is no formula, whatever it has.
            label=" " + shown(series.name).replace("$", r"\$"),
        )
    axes.set(xlabel=chart.x_label, ylabel=chart.title)
    axes.set_title(shown(title), parse_math=False)
    if len(chart.series) > 1:
        axes.legend()

    def write(target: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a script that the font lacks is drawn as boxes
            figure.savefig(target, dpi=110, format="png")

    return _written(path, write)


def save_page(
    charts: Sequence[Chart], path: Path, title: str, tables: Sequence["PageTable"]
) -> Path | None:
    """Write charts and tables as one HTML file that loads nothing; None where it cannot be written."""
    text = page(charts, title, tables)
    return _written(path, lambda target: _write_text(target, text))


class PageTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a page."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def page(charts: Sequence[Chart], title: str, tables: Sequence[PageTable]) -> str:
    """Return the page's text. Everything in it is escaped."""
    body = [_table(one) for one in tables if one.rows]
    body += [f"<h2>{_safe(chart.title)}</h2>\n{_svg(chart)}\n{_names(chart)}" for chart in charts]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        # No script and nothing from elsewhere, whatever a name may hold.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">\n"
        f"<title>{_safe(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{_safe(title)}</h1>\n" + "\n".join(body) + "\n</body>\n</html>\n"
    )


STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;border-bottom:1px solid #ddd;"
    "text-align:left;font-variant-numeric:tabular-nums}svg{width:100%;height:auto}"
    "svg text{font:12px system-ui,sans-serif;fill:#555}.key{margin-right:1.5em;white-space:nowrap}"
)


def _table(table: PageTable) -> str:
    head = "".join(f"<th>{_safe(cell)}</th>" for cell in table.head)
    rows = "\n".join(
        "<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    return f"<h2>{_safe(table.title)}</h2>\n<table>\n<tr>{head}</tr>\n{rows}\n</table>"


def _names(chart: Chart) -> str:
    keys = [
        f'<span class="key" style="color:{COLOURS[series.colour % len(COLOURS)]}">'
        f"{'┄' if series.dotted else '━'} {_safe(series.name)}</span>"
        for series in chart.series
    ]
    return f"<p>{''.join(keys)}</p>"


def _svg(chart: Chart) -> str:
    """Return a chart as a drawing: axes with numbers, a line for each series."""
    drawn = [(series, averaged(series.points, PAGE_POINTS)) for series in chart.series]
    xs = [x for _, points in drawn for x, _ in points] or [0.0]
    ys = [y for _, points in drawn for _, y in points] or [0.0]
    across = _scale(min(xs), max(xs), LEFT, WIDTH - 10)
    up = _scale(min(ys), max(ys), HEIGHT - BOTTOM, 10)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for number in range(TICKS):
        share = number / (TICKS - 1)
        x, y = min(xs) + share * (max(xs) - min(xs)), min(ys) + share * (max(ys) - min(ys))
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - 10}" y1="{up(y):.1f}" y2="{up(y):.1f}" stroke="#eee"/>'
            f'<text x="{LEFT - 8}" y="{up(y) + 4:.1f}" text-anchor="end">{human_number(y)}</text>'
            f'<text x="{across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{x:,.0f}</text>'
        )
    parts.append(
        f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 4}" text-anchor="middle">'
        f"{_safe(chart.x_label)}</text>"
    )
    for series, points in drawn:
        colour = COLOURS[series.colour % len(COLOURS)]
        places = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in points)
        dashes = ' stroke-dasharray="5 4"' if series.dotted else ""
        parts.append(
            f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>'
        )
        if series.dotted or len(points) == 1:
            parts += [
                f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>'
                for x, y in points
            ]
    return "\n".join([*parts, "</svg>"])


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = (high - low) or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _safe(text: str) -> str:
    return html.escape(shown(text))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _written(path: Path, write: Callable[[Path], None]) -> Path | None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(exist_ok=True)
        write(temporary)
        temporary.replace(path)
    except OSError:
        return None
    return path
