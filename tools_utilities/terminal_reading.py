"""A reading drawn under its sentence: a bracket under each owned span, carets under the rest. Pure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tools_utilities.terminal_text import Line, Span, width_of


class Mark(NamedTuple):
    """A span of the sentence (code points) and what to write under it."""

    start: int
    end: int
    label: str
    style: str = ""
    """`error`: carets instead of a bracket; `yellow`: a correction."""


def reading_lines(
    sentence: str, marks: Iterable[Mark], *, width: int | None, draw: bool
) -> list[Line]:
    """Return the sentence, cut to pieces that fit `width`, with its marks under every piece."""
    ordered = sorted(marks)
    lines: list[Line] = []
    for start, end in _pieces(sentence, width):
        inside = [
            mark._replace(start=max(mark.start, start), end=min(mark.end, end))
            for mark in ordered
            if mark.start < end and mark.end > start
        ]
        lines.append(sentence[start:end])
        if inside:
            lines.append(_underlines(sentence, start, inside, draw=draw))
            lines.extend(_labels(sentence, start, inside))
    return lines


def _pieces(sentence: str, width: int | None) -> Iterable[tuple[int, int]]:
    """Yield (start, end) of pieces at most `width` cells wide, cut after blanks where possible."""
    start = 0
    while start < len(sentence):
        end, cells, blank = start, 0, 0
        while end < len(sentence):
            cells += width_of(sentence[end])
            if width is not None and cells > width and end > start:
                break
            end += 1
            blank = end if sentence[end - 1] == " " else blank
        if end < len(sentence) and blank > start:
            end = blank
        yield start, end
        start = end


def _underlines(sentence: str, start: int, marks: Sequence[Mark], *, draw: bool) -> Line:
    left, line, right, single = ("└", "─", "┘", "│") if draw else ("+", "-", "+", "|")
    spans: list[Span] = []
    column = 0
    for mark in marks:
        at = width_of(sentence[start : mark.start])
        cells = max(1, width_of(sentence[mark.start : mark.end]))
        if mark.style == "error":
            bracket = "^" * cells
        else:
            bracket = single if cells == 1 else left + line * (cells - 2) + right
        spans += [Span(" " * max(0, at - column)), Span(bracket, mark.style or "dim")]
        column = at + cells
    return spans


def _labels(sentence: str, start: int, marks: Sequence[Mark]) -> list[Line]:
    """Put each label under the start of its span, in the first row that has room."""
    rows: list[tuple[int, list[Span]]] = []
    for mark in marks:
        at = width_of(sentence[start : mark.start])
        for i, (column, spans) in enumerate(rows):
            if at > column:
                rows[i] = (_place(spans, mark, at, column), spans)
                break
        else:
            spans = []
            rows.append((_place(spans, mark, at, 0), spans))
    return [spans for _, spans in rows]


def _place(spans: list[Span], mark: Mark, at: int, column: int) -> int:
    spans += [Span(" " * (at - column)), Span(mark.label, mark.style or "cyan")]
    return at + width_of(mark.label)
