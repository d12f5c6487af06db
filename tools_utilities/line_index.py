"""Where the lines of a byte range begin: numpy offsets, 4 bytes a line, only LF ends a line.

A line belongs to the range its first byte lies in, so ranges that cover a file hold each line once,
whatever their bounds.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import ShardBytes, Split

Offsets = npt.NDArray[np.unsignedinteger]
"""uint32 while the range is below 4 GiB, else uint64; one more than there are lines."""

PIECE_BYTES = 4 << 20
_LOOK_BYTES = 64 << 10
BOM = b"\xef\xbb\xbf"


def plan_byte_ranges(info: ObjectInfo, target_bytes: int, *, unit_bytes: int = 1) -> list[Split]:
    """Cut an object into equal byte ranges of about `target_bytes`, on multiples of `unit_bytes`.

    The bounds depend on nothing but the size; an empty object gives one empty range.
    """
    size, num_units = info.size_bytes, -(-info.size_bytes // unit_bytes)
    pieces = max(1, min(num_units, round(size / max(1, target_bytes))))
    bounds = [min(size, num_units * i // pieces * unit_bytes) for i in range(pieces + 1)]
    return [
        Split(key=info.key, start=start, end=end, num_bytes=end - start)
        for start, end in pairwise(bounds)
    ]


def whole_object(info: ObjectInfo) -> Split:
    """Return the one split of an object that cannot be cut."""
    return Split(key=info.key, start=0, end=info.size_bytes, num_bytes=info.size_bytes)


def own_lines(shard: ShardBytes, split: Split) -> tuple[memoryview, int]:
    """Return the bytes of the lines that begin in a range, and where in the object they start.

    Looks one byte back, and past the end for the rest of the last line; a byte order mark at the
    object's start is left out.
    """
    start = _line_at_or_after(shard, split.start, split.end)
    end = _line_at_or_after(shard, split.end, shard.info.size_bytes)
    if start >= split.end:
        return memoryview(b""), start
    view = shard.read(start, end)
    if start == 0 and view[:3] == BOM:
        return view[3:], 3
    return view, start


def _line_at_or_after(shard: ShardBytes, offset: int, limit: int) -> int:
    """Return the first line start ≥ `offset`, or `limit` when there is none before it."""
    if offset == 0:
        return 0
    position, num_bytes = offset - 1, _LOOK_BYTES
    while position < limit:
        piece = bytes(shard.read(position, min(limit, position + num_bytes)))
        found = piece.find(b"\n")
        if found >= 0:
            return position + found + 1
        position += len(piece)
        num_bytes = min(num_bytes * 2, PIECE_BYTES)
    return limit


def count_lines(view: memoryview) -> int:
    """Return how many LF bytes there are."""
    return sum(int(np.count_nonzero(piece == ord("\n"))) for piece in _pieces(view))


def count_lines_before(shard: ShardBytes, offset: int) -> int:
    """Return how many lines end before an offset; reads everything before it, in pieces."""
    return sum(
        count_lines(shard.read(start, min(offset, start + PIECE_BYTES)))
        for start in range(0, offset, PIECE_BYTES)
    )


def no_pages(num_bytes: int) -> None:
    """Let go of nothing: what was passed is in memory anyway."""
    del num_bytes


def line_starts(view: memoryview, passed: Callable[[int], None] = no_pages) -> Offsets:
    """Return where each line of `view` begins, and its length as the last entry.

    A last line without LF counts; nothing follows a final LF. `passed` is told what was gone through.
    """
    dtype = np.uint32 if len(view) < 1 << 32 else np.uint64
    parts = []
    for piece in _pieces(view):
        parts.append((piece == ord("\n")).nonzero()[0])
        passed(len(piece))
    num_ends, has_rest = sum(map(len, parts)), bool(len(view)) and view[-1] != ord("\n")
    starts: Offsets = np.empty(1 + num_ends + has_rest, dtype)
    starts[0], first = 0, 1
    # As few steps over arrays as there can be: at each the interpreter's lock may be lost.
    for number, ends in enumerate(parts):
        last = first + len(ends)
        np.add(ends, number * PIECE_BYTES + 1, out=starts[first:last], casting="unsafe")
        first = last
    if has_rest:
        starts[-1] = len(view)
    return starts


def _pieces(view: memoryview) -> Iterator[npt.NDArray[np.uint8]]:
    array = np.frombuffer(view, np.uint8)
    for start in range(0, len(array), PIECE_BYTES):
        yield array[start : start + PIECE_BYTES]
