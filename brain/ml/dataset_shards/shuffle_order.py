"""Seed and epoch → order. Pure: nothing here reads a clock, a machine or a process.

An epoch's order is made in three steps, each a keyed permutation:

1. Objects are permuted and taken in pools of at least `POOL_BYTES` and `POOL_OBJECTS`; the splits of
   a pool are permuted among themselves. (Without pools an object would be touched all through the
   epoch, and a cache smaller than the data would fetch it once a split.)
2. The splits are dealt like cards to the lanes.
3. A lane reads windows of its splits, the samples of a window permuted; lanes take turns.

Random bits come straight from Philox, whose stream numpy promises never to change.
"""

from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt

ORDER_VERSION = 1

POOL_BYTES = 2 << 30
POOL_OBJECTS = 64
"""A pool of few, huge objects would shuffle badly …"""
POOL_LIMIT_BYTES = 8 << 30
"""… but past this many bytes a pool of `POOL_MINIMUM` objects is enough, for the cache's sake."""
POOL_MINIMUM = 8

NUM_LANES = 24
"""Many divisors: a split is then read by few ranks."""
NUM_WINDOW_SPLITS = 4
OPEN_BYTES = 144 << 20
"""Budget over all open splits; a constant, since probing the machine would change the order."""
SPLIT_BYTES = OPEN_BYTES // (NUM_LANES * NUM_WINDOW_SPLITS)
LARGE_OPEN_BYTES = 1 << 30
"""Where splits cannot be cut (compressed files, row groups) fewer are open, to stay below this."""

Indices = npt.NDArray[np.int64]


class LaneShape(msgspec.Struct, frozen=True, kw_only=True):
    """How many splits are open together: `num_lanes` times `num_window_splits`."""

    num_lanes: int
    num_window_splits: int


SEQUENTIAL = LaneShape(num_lanes=1, num_window_splits=1)
"""File order."""


def keyed_permutation(length: int, *key: str | int) -> Indices:
    """Return a permutation of range(length) that depends on `key` alone; O(n log n)."""
    if length <= 1:
        return np.zeros(length, np.int64)
    digest = blake2b(repr(key).encode(), digest_size=16, person=b"quark order").digest()
    bits = np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(length)
    return np.argsort(bits, kind="stable")


def choose_shape(split_bytes: npt.NDArray[np.int64], *, shuffle: bool) -> LaneShape:
    """Return lanes and window for splits of these stored sizes; a pure function of the data."""
    num_splits = len(split_bytes)
    if not shuffle or num_splits == 0:
        return SEQUENTIAL
    typical = max(1, int(np.sort(split_bytes)[(num_splits * 3) // 4]))
    lanes, window = NUM_LANES, NUM_WINDOW_SPLITS
    while window > 1 and lanes * window * typical > LARGE_OPEN_BYTES:
        window -= 1
    while lanes > 4 and lanes * typical > LARGE_OPEN_BYTES:  # noqa: PLR2004 - the floor, see below
        lanes = {24: 12, 12: 8, 8: 6, 6: 4}[lanes]
    # Fewer than four lanes would hardly mix at all: huge splits then cost more memory or disk.
    return LaneShape(num_lanes=min(lanes, num_splits), num_window_splits=window)


def deal_order(object_of: Indices, object_bytes: Indices, seed: int, epoch: int) -> Indices:
    """Return the split numbers in the order in which they are dealt to the lanes.

    `object_of` names each split's object (ascending), `object_bytes` each object's size. O(splits).
    """
    num_objects = len(object_bytes)
    shuffled = keyed_permutation(num_objects, "objects", seed, epoch)
    first = np.searchsorted(object_of, np.arange(num_objects + 1))
    parts = []
    for number, (start, end) in enumerate(_pools(object_bytes[shuffled])):
        objects = shuffled[start:end]
        counts = first[objects + 1] - first[objects]
        offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        members = np.repeat(first[objects], counts) + offsets
        parts.append(members[keyed_permutation(len(members), "splits", seed, epoch, number)])
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _pools(sizes: Indices) -> list[tuple[int, int]]:
    """Cut a sequence of sizes into pools; returns half-open index ranges."""
    ends = np.cumsum(sizes)
    pools, start = [], 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        full = int(np.searchsorted(ends, before + POOL_BYTES)) + 1
        limit = int(np.searchsorted(ends, before + POOL_LIMIT_BYTES)) + 1
        end = max(full, min(start + POOL_OBJECTS, limit), start + POOL_MINIMUM)
        pools.append((start, min(end, len(sizes))))
        start = pools[-1][1]
    return pools


def window_bounds(lane: int, window: int, shape: LaneShape) -> tuple[int, int]:
    """Return which of its splits a lane has in its n-th window (half-open, not clipped).

    First windows have different lengths, so that lanes do not turn over together.
    """
    first = 1 + lane % shape.num_window_splits
    if window == 0:
        return 0, first
    start = first + (window - 1) * shape.num_window_splits
    return start, start + shape.num_window_splits


def window_permutation(length: int, seed: int, epoch: int, lane: int, window: int) -> Indices:
    """Return the order of the samples of a window, as numbers into its splits laid end to end."""
    return keyed_permutation(length, "window", seed, epoch, lane, window)
