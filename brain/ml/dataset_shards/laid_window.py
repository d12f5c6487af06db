"""A window's records copied into the window's order, so that stretches of it are read as they lie.

Where the records of a window are spans of bytes or rows of an array, the order takes one here and one
there: a slice and a copy for each while the interpreter's lock is held. Arrow's and numpy's `take`
gather a whole window in one call without that lock, on the thread that opens ahead; what is left for
the reader is one decoding, or one copy, a lane. The copy takes the place of the splits, which are
closed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from brain.ml.dataset_shards.bulk_reading import RowBlock, inverse
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.split_source import OpenedSplit
from tools_utilities.shard_format import DecodeSpans, RecordRows, RecordSpans

MOST_BYTES = 64 << 20
"""A window above this is read where it lies: for a moment a laid one is held twice."""


class LaidWindow(Protocol):
    """The records of one window in its order."""

    def read(self, places: Indices, *, shared_rows: bool) -> Sequence[Any] | None:
        """Return the samples at ascending places; None: they do not decode in one go.

        `shared_rows`: they may be rows of one array, as a RowBlock.
        """
        ...


class LaidSpans(NamedTuple):
    """Records that are spans of bytes, end to end."""

    view: memoryview
    starts: Indices
    """Where each record begins in `view`, and where the last one ends."""
    decode: DecodeSpans

    def read(self, places: Indices, *, shared_rows: bool) -> list[Any] | None:  # noqa: ARG002 - no rows
        """Decode a stretch as it lies, or records apart."""
        if _is_stretch(places):
            start, end = self.starts[[places[0], places[-1] + 1]].tolist()
            return self.decode([self.view[start:end]], count=len(places))
        begins, ends = self.starts[places].tolist(), self.starts[places + 1].tolist()
        return self.decode([self.view[a:b] for a, b in zip(begins, ends, strict=True)])


class LaidRows(NamedTuple):
    """Records that are rows of an array."""

    rows: npt.NDArray[Any]
    field: str

    def read(self, places: Indices, *, shared_rows: bool) -> Sequence[Any]:
        """Return the rows, or copies that are the samples' own."""
        stretch = slice(int(places[0]), int(places[-1]) + 1)
        rows = self.rows[stretch if _is_stretch(places) else places]
        block = RowBlock(rows, self.field)
        return block if shared_rows else [{self.field: row.copy()} for row in rows]


def _is_stretch(places: Indices) -> bool:
    return int(places[-1]) - int(places[0]) + 1 == len(places)


def lay_out(opened: Sequence[OpenedSplit], order: Indices) -> LaidWindow | None:
    """Copy the records of a window's splits, laid end to end and numbered so, into `order`.

    Returns:
        None where the splits are not made of such records, or they are too large together.
    """
    if not len(order):
        return None
    rows = [split.rows for split in opened]
    if rows[0] is not None:
        whole = all(
            one and len(one.rows) == s.num_samples for one, s in zip(rows, opened, strict=True)
        )
        return _lay_rows([one for one in rows if one is not None], order) if whole else None
    spans = [split.spans for split in opened]
    known = [one for one in spans if one is not None]
    return _lay_spans(known, order) if len(known) == len(spans) else None


def merge(parts: Sequence[tuple[Indices, Sequence[Any]]], length: int) -> Sequence[Any]:
    """Return the samples of parts, each given with the places of its samples among all of them."""
    blocks = [block for _, block in parts if isinstance(block, RowBlock)]
    first = blocks[0] if len(blocks) == len(parts) else None
    if first is not None and all(_alike(block, first) for block in blocks):
        rows = np.empty((length, *first.rows.shape[1:]), first.rows.dtype)
        for (places, _), block in zip(parts, blocks, strict=True):
            rows[places] = block.rows
        return RowBlock(rows, first.field)
    samples = [sample for _, part in parts for sample in part]
    return [samples[n] for n in inverse(np.concatenate([places for places, _ in parts])).tolist()]


def _alike(one: RowBlock | RecordRows, other: RowBlock | RecordRows) -> bool:
    same_rows = one.rows.shape[1:] == other.rows.shape[1:] and one.rows.dtype == other.rows.dtype
    return same_rows and one.field == other.field


def _lay_rows(known: Sequence[RecordRows], order: Indices) -> LaidRows | None:
    rows, field = known[0]
    num_bytes = sum(one.rows.nbytes for one in known)
    if num_bytes > MOST_BYTES or not all(_alike(one, known[0]) for one in known):
        return None
    laid = np.empty((len(order), *rows.shape[1:]), rows.dtype)
    start = 0
    for one in known:
        end = start + len(one.rows)
        places = ((order >= start) & (order < end)).nonzero()[0]
        laid[places] = one.rows.take(order[places] - start, axis=0)
        start = end
    return LaidRows(laid, field)


def _lay_spans(known: Sequence[RecordSpans], order: Indices) -> LaidSpans | None:
    decode = known[0].decode
    num_bytes = sum(int(one.starts[-1]) - int(one.starts[0]) for one in known)
    if num_bytes > MOST_BYTES or any(one.decode is not decode for one in known):
        return None
    import pyarrow as pa
    import pyarrow.compute as pc

    # Numpy copies without the interpreter's lock; the memory of the last window is used again.
    end_to_end, bounds, start = np.empty(num_bytes, np.uint8), [], 0
    for one in known:
        first, size = int(one.starts[0]), int(one.starts[-1]) - int(one.starts[0])
        end_to_end[start : start + size] = np.frombuffer(one.view, np.uint8, size, first)
        bounds.append(one.starts[:-1].astype(np.int64) + (start - first))
        start += size
    offsets = np.concatenate([*bounds, [num_bytes]])
    buffers = [None, pa.py_buffer(offsets.data), pa.py_buffer(end_to_end.data)]
    records = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    # The system's pool, for the same reason: fresh pages cost more than the copy.
    laid = pc.take(records, pa.array(order, pa.int64()), memory_pool=pa.system_memory_pool())
    _, ends, data = laid.buffers()
    if ends is None or data is None:
        return None
    starts = np.frombuffer(memoryview(ends), np.int64, len(order) + 1, laid.offset * 8)
    return LaidSpans(memoryview(data).cast("B"), starts, decode)
