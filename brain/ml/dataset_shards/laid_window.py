"""A window's records copied into the window's order, so that stretches of it decode as they lie.

Where the records of a window are spans of bytes, the order takes one here and one there: a slice and
a copy for each while the interpreter's lock is held. Arrow's `take` gathers a whole window in one
call without that lock, on the thread that opens ahead; what is left for the reader is one decoding a
lane. The copy takes the place of the splits, which are closed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brain.ml.dataset_shards.shuffle_order import Indices
from tools_utilities.shard_format import DecodeSpans, RecordSpans

MOST_BYTES = 64 << 20
"""A window above this is read where it lies: for a moment a laid one is held twice."""


class LaidWindow(NamedTuple):
    """The records of one window, end to end, in its order."""

    view: memoryview
    starts: Indices
    """Where each record begins in `view`, and where the last one ends."""
    decode: DecodeSpans

    def read(self, places: Indices) -> list[Any] | None:
        """Decode the records at ascending places; None: not a stretch, or not decodable in one go."""
        first, count = int(places[0]), len(places)
        if int(places[-1]) - first + 1 != count:
            return None
        start, end = self.starts[[first, first + count]].tolist()
        return self.decode([self.view[start:end]], count=count)


def lay_out(spans: Sequence[RecordSpans | None], order: Indices) -> LaidWindow | None:
    """Copy the records of a window's splits, laid end to end and numbered so, into `order`.

    Returns:
        None where a split is not made of such records, or they are too large together.
    """
    known = [one for one in spans if one is not None]
    if len(known) < len(spans) or not known or len(order) == 0:
        return None
    decode = known[0].decode
    num_bytes = sum(int(one.starts[-1]) - int(one.starts[0]) for one in known)
    if num_bytes > MOST_BYTES or any(one.decode is not decode for one in known):
        return None
    import pyarrow as pa

    # Numpy copies without the interpreter's lock; the memory of the last window is used again.
    end_to_end, bounds, start = np.empty(num_bytes, np.uint8), [], 0
    for one in known:
        first, size = int(one.starts[0]), int(one.starts[-1]) - int(one.starts[0])
        end_to_end[start : start + size] = np.frombuffer(one.view, np.uint8, size, first)
        bounds.append(one.starts[:-1].astype(np.int64) + (start - first))
        start += size
    offsets = np.concatenate([*bounds, [num_bytes]])
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(end_to_end.data)]
    laid = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers).take(order)
    _, ends, data = laid.buffers()
    if ends is None or data is None:
        return None
    starts = np.frombuffer(memoryview(ends), np.int64, len(order) + 1, laid.offset * 8)
    return LaidWindow(memoryview(data).cast("B"), starts, decode)
