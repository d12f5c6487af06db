"""Several curves in one picture of a terminal, over the same axes. Pure."""

import math
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from tools_utilities.terminal_text import Line, Span, width_of

MARKS, ASCII_MARKS = "●○▲△■□◆◇", "*o+x#@%&"
STYLES = ("cyan", "yellow", "green", "red")
EDGE = 10
"""Columns of the numbers at the left, and their blank."""
Points = Sequence[tuple[float, float]]


class Curve(NamedTuple):
    """One line of a picture."""

    name: str
    points: Points
    """(x, y), x rising."""


def curve_lines(
    curves: Sequence[Curve], *, width: int, height: int, x_label: str, draw: bool = True
) -> list[Line]:
    """Return the curves over one pair of axes, each with a mark of its own, and who has which.

    `width` columns at most (20 at least). A cell that several curves share shows them in turn. What is
    not finite is left out; nothing is returned where no curve has two points.
    """
    drawn = [Curve(name, _finite(points)) for name, points in curves]
    found = [point for _, points in drawn if len(points) > 1 for point in points]
    if not found:
        return []
    columns = max(8, width - EDGE - 1)
    lows, highs = (tuple(map(pick, zip(*found, strict=True))) for pick in (min, max))
    heights = [_columns_of(points, lows[0], highs[0], columns) for _, points in drawn]
    rows = [_rows_of(column, lows[1], highs[1], height) for column in heights]
    marks = MARKS if draw else ASCII_MARKS
    lines: list[Line] = []
    for row in range(height - 1, -1, -1):
        edge = highs[1] if row == height - 1 else lows[1] if row == 0 else None
        lead = " " * (EDGE - 1) if edge is None else f"{edge:{EDGE - 1}.4g}"
        cells = [_cell(rows, column, row, marks) for column in range(columns)]
        lines.append([f"{lead} {'│' if draw else '|'}", *_joined(cells)])
    lines.append(" " * EDGE + ("└" + "─" * columns if draw else "+" + "-" * columns))
    left, right = f"{lows[0]:,.0f}", f"{highs[0]:,.0f} {x_label}"
    gap = max(1, columns - len(left) - width_of(right))
    lines.append(" " * (EDGE + 1) + left + " " * gap + right)
    legend = [_legend(number, curve.name, marks) for number, curve in enumerate(drawn)]
    return [*lines, *(_folded(legend, width))]


def averaged(points: Points, count: int) -> list[tuple[float, float]]:
    """Return `points` averaged to at most `count`, over equal stretches of x; finite ones alone."""
    finite = _finite(points)
    if len(finite) <= count:
        return finite
    low, high = finite[0][0], finite[-1][0]
    scale = count / ((high - low) or 1.0)
    found: dict[int, list[tuple[float, float]]] = {}
    for x, y in finite:
        found.setdefault(min(count - 1, int((x - low) * scale)), []).append((x, y))
    return [
        (sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group))
        for group in found.values()
    ]


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]


def _columns_of(points: Points, low: float, high: float, columns: int) -> dict[int, float]:
    """Return the height at each column that a curve covers: the mean there, else between neighbours."""
    scale = (columns - 1) / ((high - low) or 1.0)
    sums: dict[int, list[float]] = {}
    for x, y in points:
        sums.setdefault(round((x - low) * scale), []).append(y)
    means = {column: sum(values) / len(values) for column, values in sums.items()}
    known = sorted(means)
    for before, after in pairwise(known):
        for column in range(before + 1, after):
            share = (column - before) / (after - before)
            means[column] = means[before] * (1 - share) + means[after] * share
    return means


def _rows_of(columns: dict[int, float], low: float, high: float, height: int) -> dict[int, int]:
    span = (high - low) or 1.0
    return {column: round((y - low) / span * (height - 1)) for column, y in columns.items()}


def _cell(rows: Sequence[dict[int, int]], column: int, row: int, marks: str) -> Span:
    there = [number for number, found in enumerate(rows) if found.get(column) == row]
    if not there:
        return Span(" ")
    number = there[column % len(there)]
    return Span(marks[number % len(marks)], STYLES[number % len(STYLES)])


def _joined(cells: Sequence[Span]) -> list[Span]:
    """Return cells of one look as one span, and no blanks at the end."""
    spans = [
        Span("".join(cell.text for cell in same), style)
        for style, same in groupby(cells, key=lambda cell: cell.style)
    ]
    return spans[:-1] if spans and not spans[-1].text.strip() else spans


def _legend(number: int, name: str, marks: str) -> list[Span]:
    return [Span(marks[number % len(marks)], STYLES[number % len(STYLES)]), Span(f" {name}")]


def _folded(legend: Sequence[list[Span]], width: int) -> list[Line]:
    """Return the names side by side, going on below where the next does not fit."""
    lines: list[list[Span]] = []
    used = 0
    for entry in legend:
        wide = sum(width_of(span.text) for span in entry) + 3
        if not lines or used + wide > width:
            lines.append([Span(" " * (EDGE + 1))])
            used = EDGE + 1
        elif used > EDGE + 1:
            lines[-1].append(Span("   "))
        lines[-1] += entry
        used += wide
    return [*lines]
