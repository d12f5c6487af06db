"""Splits of formats with a table of offsets (MDS, LitData): ranges of samples, known from their number."""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import Split
from tools_utilities.split_content import SplitContent


def cut_samples(
    info: ObjectInfo, num_samples: int, target_bytes: int, *, unit: int = 1
) -> list[Split]:
    """Cut an object into equal ranges of samples, about `target_bytes` of it each.

    Bounds are multiples of `unit` samples. The bounds depend on nothing but the number and the size,
    so the offsets need not be read; num_bytes is each split's share of the object's size.
    """
    num_units = -(-num_samples // unit)
    pieces = max(1, min(num_units, round(info.size_bytes / max(1, target_bytes))))
    bounds = [min(num_samples, num_units * i // pieces * unit) for i in range(pieces + 1)]
    shares = [info.size_bytes * i // pieces for i in range(pieces + 1)]
    return [
        Split(
            key=info.key,
            start=start,
            end=end,
            num_bytes=high - low,
            num_samples=end - start,
        )
        for (start, end), (low, high) in zip(pairwise(bounds), pairwise(shares), strict=True)
    ]


def check_offsets(content: SplitContent, offsets: npt.NDArray[Any], *, at: int, limit: int) -> None:
    """Make sure that offsets do not run backwards, nor past `limit`; `at`: where they are stored.

    Raises:
        RecordError: they do; it names the first such offset.
    """
    wrong = np.flatnonzero(offsets[1:] < offsets[:-1])
    if not len(wrong) and int(offsets[-1]) <= limit:
        return
    index = int(wrong[0]) + 1 if len(wrong) else len(offsets) - 1
    raise content.bad_record(
        f"damaged: the offset of a sample is {int(offsets[index])}"
        + (f", after {int(offsets[index - 1])}" if len(wrong) else f" of {limit} bytes"),
        offset=at + offsets.itemsize * index,
    )
