"""Text for terminals: the one escape function, folding by width, units, sparklines and plots. Pure.

Everything a terminal shows passes through `shown` (see `render`), so that a key, a path or an error
body can neither move the cursor nor vanish as markup.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from itertools import groupby, pairwise
from typing import NamedTuple

from rich.cells import cell_len  # 5 ms; the rest of rich is imported where it is used


class Span(NamedTuple):
    """A piece of a line: plain text (escaped when it is rendered) and how it looks."""

    text: str
    style: str = ""
    """A key of STYLES; empty: as it is."""


Line = str | Sequence[str | Span]
"""One line, unescaped. A line feed inside it is shown escaped, never as a new line."""

STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
    "error": "1;31",
    "title": "1;36",
    "command": "1",
}
COMMAND = "command"
"""The style of a command that is meant to be copied: its line is never cut."""
_COMMANDS = re.compile(r"(?<=`)quark [^`]+(?=`)|(?:(?<=: )|^)quark [^`]+$")
LEAST_ROOM = 8
"""Cells that folded text takes even where less was asked for."""
_SPARKS = " ▁▂▃▄▅▆▇█"
_ASCII_SPARKS = " .:-=+*#@"


def shown(text: str) -> str:
    r"""Return `text` with everything that is not plainly visible written as an escape.

    Control, bidirectional, zero-width and unpaired characters become `\x1b`, `\u202e` …; spaces
    and all printable text (brackets, backslashes, any script) stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    # Combining marks are printable; a joiner or a mark of direction is not.
    return char if char.isprintable() else char.encode("unicode_escape").decode("ascii")


def spans_of(line: Line) -> list[Span]:
    """Return a line as spans."""
    if isinstance(line, str):
        return [Span(line)]
    return [part if isinstance(part, Span) else Span(part) for part in line]


def plain(line: Line) -> str:
    """Return a line's escaped text without its looks."""
    return "".join(shown(span.text) for span in spans_of(line))


def render(line: Line, *, colour: bool) -> str:
    """Return a line ready to write: escaped, and coloured only if asked."""
    if not colour:
        return plain(line)
    return "".join(
        f"\x1b[{STYLES[span.style]}m{shown(span.text)}\x1b[0m" if span.style else shown(span.text)
        for span in spans_of(line)
    )


def fit(text: str, encoding: str) -> str:
    r"""Return `text` with what `encoding` cannot write shown as an escape (`\xe9`)."""
    return text.encode(encoding, "backslashreplace").decode(encoding)


def width_of(text: str) -> int:
    """Return the terminal cells `text` takes once shown."""
    return cell_len(shown(text))


def fold(text: str, width: int, *, indent: str = "") -> list[str]:
    """Cut escaped text into lines of at most `width` cells: at blanks where it can, else anywhere.

    Nothing is dropped: joined without the indents, the lines hold every character of the text.
    """
    room = max(LEAST_ROOM, width - cell_len(indent))
    lines, line, cells = [], "", 0
    for char in shown(text):
        char_cells = cell_len(char)
        if cells + char_cells > room:
            head, blank, tail = line.rpartition(" ")
            if not blank or not head.strip():
                head, blank, tail = line, "", ""
            lines.append(indent + head + blank)
            line, cells = tail, cell_len(tail)
        line += char
        cells += char_cells
    return [*lines, indent + line]


def fold_line(line: Line, width: int) -> list[Line]:
    """Cut a line into lines of at most `width` cells, between words where it can; looks are kept.

    What goes on is set in two cells deeper than the line begins. A command is never cut: where it is
    wider than a line, the line stays whole and the terminal wraps it, so that what is copied there is
    the command without a break in it.
    """
    spans = spans_of(line)
    text = "".join(shown(span.text) for span in spans)
    if cell_len(text) <= width:
        return [line]
    hang = len(text) - len(text.lstrip(" ")) + 2
    hang = hang if hang <= min(width // 2, width - LEAST_ROOM) else 0
    commands = [shown(span.text) for span in spans if span.style == COMMAND]
    if any(cell_len(command) > width - hang for command in commands):
        return [line]
    held = "".join(_held(span) for span in spans)
    first = fold(held, width)[0]
    pieces = [first, *fold(held[len(first) :], width - hang)]
    styles = [span.style for span in spans for _ in shown(span.text)]
    lines: list[Line] = []
    at = 0
    for piece in pieces:
        end = at + len(piece)
        lead = [Span(" " * hang)] if at else []
        lines.append([*lead, *_styled(text[at:end].rstrip(" "), styles[at:end])])
        at = end
    return lines


def _held(span: Span) -> str:
    """Return a span's text, the blanks of a command filled so that no line is cut there."""
    text = shown(span.text)
    return text.replace(" ", "_") if span.style == COMMAND else text


def with_commands(text: str) -> list[Span]:
    """Return text as spans, the commands in it (in backticks, or at its end) marked as such."""
    spans, at = [], 0
    for found in _COMMANDS.finditer(text):
        spans += [Span(text[at : found.start()]), Span(found[0], COMMAND)]
        at = found.end()
    return [span for span in (*spans, Span(text[at:])) if span.text]


def _styled(text: str, styles: Sequence[str]) -> list[Span]:
    """Return escaped text as spans, one for each stretch of one look."""
    found = groupby(zip(text, styles, strict=False), key=lambda pair: pair[1])
    return [Span("".join(char for char, _ in chars), style) for style, chars in found]


def pad(text: str, width: int, *, right: bool = False) -> str:
    """Return shown text filled with blanks to `width` cells."""
    blanks = " " * max(0, width - width_of(text))
    return blanks + shown(text) if right else shown(text) + blanks


def human_bytes(count: float) -> str:
    """Return a size in binary units: `8.2 MiB`."""
    step = 1024
    if count < step:
        return f"{count:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count /= step
        if count < step:
            return f"{count:.1f} {unit}"
    return f"{count / step:.1f} PiB"


def human_count(count: float) -> str:
    """Return a count with thousands commas, or shortened from ten million: `12.3 M`."""
    for limit, scale, unit in ((1e12, 1e12, "T"), (1e9, 1e9, "B"), (1e7, 1e6, "M")):
        if count >= limit:
            return f"{count / scale:.1f} {unit}"
    return f"{count:,.0f}"


def human_seconds(seconds: float) -> str:
    """Return a duration: `0.8 s`, `42 s`, `3 min 5 s`, `2 h 10 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s" if seconds >= 10 else f"{seconds:.1f} s"  # noqa: PLR2004 - two digits
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def human_age(seconds: float) -> str:
    """Return how long ago something was, in its largest unit: `42 s ago`, `3 h ago`, `12 d ago`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def human_number(number: float | None) -> str:
    """Return a measured number in four digits; `-` when there is none."""
    return "-" if number is None else f"{number:.4g}"


def can_draw(encoding: str) -> bool:
    """Return whether block characters can be written in `encoding`."""
    try:
        (_SPARKS + "│└─•").encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def thin(values: Sequence[float], count: int) -> list[float]:
    """Return `values` averaged down to at most `count` of them; infinities and NaN are left out."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) <= count:
        return finite
    edges = [round(i * len(finite) / count) for i in range(count + 1)]
    return [sum(finite[low:high]) / (high - low) for low, high in pairwise(edges)]


def sparkline(values: Sequence[float], *, width: int, draw: bool = True) -> str:
    """Return a one-line picture of `values`, lowest to highest over their own range."""
    marks = _SPARKS if draw else _ASCII_SPARKS
    points = thin(values, width)
    if not points:
        return ""
    low, high = min(points), max(points)
    span = (high - low) or 1.0
    return "".join(marks[1 + round((value - low) / span * 7)] for value in points)


def plot(
    values: Sequence[float], *, width: int, height: int, draw: bool = True, label: str = ""
) -> list[str]:
    """Return a picture of `values` in `height` lines, the range written at the left."""
    marks = _SPARKS if draw else _ASCII_SPARKS
    points = thin(values, max(4, width - 11))
    if not points:
        return []
    low, high = min(points), max(points)
    span = (high - low) or 1.0
    eighths = [max(1, round((value - low) / span * height * 8)) for value in points]
    rows = []
    for row in range(height - 1, -1, -1):
        edge = f"{high:9.4g}" if row == height - 1 else f"{low:9.4g}" if row == 0 else " " * 9
        cells = "".join(marks[min(8, max(0, eighth - row * 8))] for eighth in eighths)
        rows.append(f"{edge} {'│' if draw else '|'}{cells}".rstrip())
    rows.append(" " * 10 + ("└" + "─" * len(points) if draw else "+" + "-" * len(points)))
    return [*rows, " " * 11 + label] if label else rows


def table(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, width: int | None, right: str = ""
) -> list[str] | None:
    """Return aligned lines (escaped), titles first; None when a row is wider than `width`.

    `right` holds one letter a column: `r` aligns to the right. `width=None`: as wide as it takes.
    """
    table_rows = [list(titles), *[list(row) for row in rows]]
    widths = [max(width_of(row[i]) for row in table_rows) for i in range(len(titles))]
    lines = [
        "  ".join(
            pad(cell, widths[i], right=right[i : i + 1] == "r") for i, cell in enumerate(row)
        ).rstrip()
        for row in table_rows
    ]
    if width is not None and any(cell_len(line) > width for line in lines):
        return None
    return lines


def pairs(rows: Iterable[tuple[str, str]], *, width: int | None, indent: int = 2) -> list[Line]:
    """Return `name  value` lines, names in one column and long values folded under themselves."""
    listed = list(rows)
    column = max((width_of(name) for name, _ in listed), default=0)
    narrow = width is not None and width < column + 24
    lines: list[Line] = []
    for name, value in listed:
        head = " " * indent + pad(name, 0 if narrow else column)
        if width is None:
            lines.append([Span(head, "dim"), "  ", value])
            continue
        hang = " " * (indent + 2 if narrow else len(head) + 2)
        first, *rest = fold(value, width, indent=hang)
        if narrow:
            lines.extend([[Span(head, "dim")], first, *rest])
        else:
            lines.extend([[Span(head, "dim"), "  ", first.removeprefix(hang)], *rest])
    return lines


def caseless(text: str) -> str:
    """Return text for comparing what a person typed: folded case, composed, without outer blanks."""
    return unicodedata.normalize("NFKC", text).casefold().strip()
