"""Where the lines of a whole JSON lines object begin, found once and kept as a sidecar of it.

Its splits take their parts of it by bisection, and neither another split's rest of a line nor the
kinds of the lines are looked at again. Only for objects whose every line is one plain record:
what is irregular, or without a last LF, or ends lines in CR LF, is looked at split by split.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tools_utilities.line_index import PIECE_BYTES, Offsets
from tools_utilities.open_objects import SharedShard
from tools_utilities.shard_format import ShardBytes, Split

_NAME = "json-lines-1"
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 64 << 20
"""Smaller objects are not worth an entry more; what is gone through for a larger one may not be needed."""
_LEAST_LINE_BYTES = 64
"""On average; the offsets of shorter ones are too large to be worth their room."""
_LF, _OPEN, _CLOSE = ord("\n"), ord("{"), ord("}")


class KnownLines(NamedTuple):
    """The lines that begin in a split."""

    view: memoryview
    base: int
    """Where in the object `view` begins."""
    starts: Offsets
    """As `line_starts(view)`."""


def known_lines(shard: ShardBytes, split: Split) -> KnownLines | None:
    """Return the lines of a split by the object's sidecar; None: look at the split itself.

    An empty split, or one in the middle of a line, is left to those who look.
    """
    size = shard.info.size_bytes
    if not (isinstance(shard, SharedShard) and _LEAST_BYTES <= size <= _MOST_BYTES):
        return None
    kept = shard.sidecar(_NAME, _offsets)
    if not kept:  # not there yet, or nothing to be kept
        return None
    starts = np.frombuffer(kept, np.uint32)
    bounds = np.array((split.start, split.end), np.uint32)  # of another type all would be converted
    first, last = np.searchsorted(starts[:-1], bounds).tolist()
    if first == last:
        return None
    base, end = int(starts[first]), int(starts[last])
    shard.bring_pages(base, end)  # to look through them would have done that
    return KnownLines(shard.read(base, end), base, starts[first : last + 1] - np.uint32(base))


def _offsets(view: memoryview, forget: Callable[[int, int], None]) -> bytes:
    """Return where each line begins, and the size, as uint32; nothing where a line is irregular."""
    array = np.frombuffer(view, np.uint8)
    if not len(array) or array[0] != _OPEN or array[-1] != _LF:
        return b""
    parts, num_lines = [np.zeros(1, np.uint32)], 0
    for begin in range(0, len(array), PIECE_BYTES):
        piece = array[begin : begin + PIECE_BYTES]
        ends = (piece == _LF).nonzero()[0] + begin
        num_lines += len(ends)
        following = ends[:-1] if begin + len(piece) == len(array) else ends
        regular = (array[ends - 1] == _CLOSE).all() and (array[following + 1] == _OPEN).all()
        if not regular or num_lines * _LEAST_LINE_BYTES > len(array):
            return b""
        parts.append((ends + 1).astype(np.uint32))
        forget(begin, begin + len(piece))
    return np.concatenate(parts).tobytes()
