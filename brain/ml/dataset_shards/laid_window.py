"""Where a window's records lie, in the window's order: a stretch of it is found by slices alone.

The order takes one record here and one there: to look up each of a block's in its split costs a call
a split. So a window's bounds are put in order once, on the thread that opens ahead; the records stay
where they are. Ten bytes a sample.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from brain.ml.dataset_shards.bulk_reading import Kind, records_of
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.split_source import OpenedSplit

_MOST_PARTS = 1 << 16


class LaidWindow(NamedTuple):
    """The records of one window in its order."""

    parts: tuple[memoryview, ...]
    """Memory, a split's each."""
    which: npt.NDArray[np.uint16]
    """Of each record, the part that it lies in."""
    begins: npt.NDArray[np.unsignedinteger]
    ends: npt.NDArray[np.unsignedinteger]
    kind: Kind


def lay_out(opened: Sequence[OpenedSplit], order: Indices) -> LaidWindow | None:
    """Put the records of a window's splits, laid end to end and numbered so, into `order`.

    Returns:
        None where the splits are not made of such records, or not all of one kind.
    """
    found = [records_of(split, np.arange(split.num_samples)) for split in opened]
    known = [one for one in found if one is not None]
    if not known or not len(known) == len(found) <= _MOST_PARTS:
        return None
    kind = known[0].kind
    if any(one.kind != kind for one in known):
        return None
    counts = [len(one.begins) for one in known]
    which = np.repeat(np.arange(len(known), dtype=np.uint16), counts)[order]
    begins = np.concatenate([one.begins for one in known])[order]
    ends = np.concatenate([one.ends for one in known])[order]
    return LaidWindow(tuple(one.part for one in known), which, begins, ends, kind)
