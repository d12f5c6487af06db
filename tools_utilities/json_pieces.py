"""JSON lines of a byte range in order, piece by piece: checked and cut without an index of lines."""

from collections.abc import Iterator

import msgspec

from tools_utilities.json_records import decode_objects

BATCH_BYTES = 2 << 20
"""Of memory that the lines of a batch take, about."""
BATCH_RECORDS = 4096
_FIRST_BYTES = 64 << 10
_LOOK_BYTES = 64 << 10
_LINE_OVERHEAD_BYTES = 50


class LineBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive records of a range, each as its own bytes without the line end."""

    first: int
    """Index of the first of them in the range."""
    lines: list[bytes]
    start_byte: int
    """Of `range_bytes`, where they begin."""
    end_byte: int
    range_bytes: int


def regular_lines(view: memoryview) -> Iterator[LineBatch]:
    """Yield the lines of `view` as long as all of a piece are one plain JSON object each.

    Ends before the first piece of which that is not so: a blank line, a carriage return, blanks
    around a record, or one that cannot be read.
    """
    start, first, size = 0, 0, _FIRST_BYTES
    while start < len(view):
        end = _line_end(view, min(start + size, len(view)))
        lines = _plain_lines(bytes(view[start:end]))
        if lines is None:
            return
        yield LineBatch(
            first=first, lines=lines, start_byte=start, end_byte=end, range_bytes=len(view)
        )
        each = (end - start) / len(lines)
        held = BATCH_BYTES * each / (each + _LINE_OVERHEAD_BYTES)
        size = max(1, int(min(held, BATCH_RECORDS * each)))
        start, first = end, first + len(lines)


def _line_end(view: memoryview, position: int) -> int:
    """Return where the line ends that byte `position` lies in; a last one without LF at the end."""
    while position < len(view):
        piece = bytes(view[position : position + _LOOK_BYTES])
        found = piece.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(piece)
    return len(view)


def _plain_lines(piece: bytes) -> list[bytes] | None:
    """Return the lines of a piece when each is one JSON object and nothing else."""
    lines = piece.split(b"\n")
    if not lines[-1]:
        lines.pop()
    # Lines in braces: so the boundary between two records can only be the one between two lines.
    in_braces = {line[:1] for line in lines} == {b"{"} and {line[-1:] for line in lines} == {b"}"}
    if in_braces and decode_objects([memoryview(piece)], count=len(lines)) is not None:
        return lines
    return None
