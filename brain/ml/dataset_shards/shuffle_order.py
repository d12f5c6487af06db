"""Seed and epoch → order. Pure: nothing here reads a clock, a machine or a process.

An epoch's order is made in three steps, each a keyed permutation:

1. Objects are permuted and taken in pools of at least `POOL_BYTES` and `POOL_OBJECTS`; the splits of
   a pool are permuted among themselves. (Without pools an object would be touched all through the
   epoch, and a cache smaller than the data would fetch it once a split.) Epoch 0 begins with small
   pools that double, because its first batch waits for whole, verified objects.
2. The splits are dealt like cards to the lanes.
3. A lane reads windows of its splits, the samples of a window permuted; lanes take turns. Its first
   window is one split, for the first batch's sake.

Random bits come straight from Philox, whose stream numpy promises never to change.
"""

from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt

ORDER_VERSION = 2

POOL_BYTES = 2 << 30
POOL_OBJECTS = 64
"""A pool of few, huge objects would shuffle badly …"""
POOL_LIMIT_BYTES = 8 << 30
"""… but past this many bytes a pool of `POOL_MINIMUM` objects is enough, for the cache's sake."""
POOL_MINIMUM = 8
FIRST_POOL_BYTES = 48 << 20
FIRST_POOL_OBJECTS = 4
"""The first pool of epoch 0; each one after it is twice as large, up to the usual size."""

NUM_LANES = 24
"""Many divisors: a split is then read by few ranks."""
NUM_WINDOW_SPLITS = 4
OPEN_BYTES = 144 << 20
"""Budget over all open splits; a constant, since probing the machine would change the order."""
SPLIT_BYTES = OPEN_BYTES // (NUM_LANES * NUM_WINDOW_SPLITS)
LARGE_OPEN_BYTES = 1 << 30
"""Where splits cannot be cut (compressed files, row groups) fewer are open, to stay below this."""
MOST_WINDOW_SPLITS = 64
"""A budget that somebody sets opens no more than these a lane."""
_FEWER_LANES = {24: 12, 12: 8, 8: 6, 6: 4, 4: 2, 2: 1}

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


def choose_shape(
    split_bytes: npt.NDArray[np.int64], *, shuffle: bool, open_bytes: int | None = None
) -> LaneShape:
    """Return lanes and window for splits of these stored sizes; a pure function of its arguments.

    `open_bytes` is a budget over the open splits that somebody has set; None: `OPEN_BYTES`, or up
    to `LARGE_OPEN_BYTES` where splits cannot be cut.
    """
    num_splits = len(split_bytes)
    if not shuffle or num_splits == 0:
        return SEQUENTIAL
    typical = int(np.sort(split_bytes)[(num_splits * 3) // 4])
    return shape_for(typical, num_splits, open_bytes)


def shape_for(typical: int, num_splits: int, open_bytes: int | None = None) -> LaneShape:
    """Return lanes and window for splits that typically have `typical` stored bytes."""
    typical = max(1, typical)
    lanes, window, fewest = NUM_LANES, NUM_WINDOW_SPLITS, 4
    if open_bytes is None:
        # Fewer than four lanes would hardly mix at all: huge splits then cost more memory or disk.
        open_bytes = LARGE_OPEN_BYTES
    else:
        window = min(MOST_WINDOW_SPLITS, open_bytes // (lanes * typical))
        fewest = 1
    while window > 1 and lanes * window * typical > open_bytes:
        window -= 1
    while lanes > fewest and lanes * typical > open_bytes:
        lanes = _FEWER_LANES[lanes]
    return LaneShape(num_lanes=min(lanes, num_splits), num_window_splits=max(1, window))


def deal_order(object_of: Indices, object_bytes: Indices, seed: int, epoch: int) -> Indices:
    """Return the split numbers in the order in which they are dealt to the lanes.

    `object_of` names each split's object (ascending), `object_bytes` each object's size. O(splits).
    """
    num_objects = len(object_bytes)
    shuffled = keyed_permutation(num_objects, "objects", seed, epoch)
    first = np.searchsorted(object_of, np.arange(num_objects + 1))
    parts = []
    pools = _pools(object_bytes[shuffled], growing=epoch == 0)
    for number, (start, end) in enumerate(pools):
        objects = shuffled[start:end]
        counts = first[objects + 1] - first[objects]
        offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        members = np.repeat(first[objects], counts) + offsets
        parts.append(members[keyed_permutation(len(members), "splits", seed, epoch, number)])
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _pools(sizes: Indices, *, growing: bool) -> list[tuple[int, int]]:
    """Cut a sequence of sizes into pools; returns half-open index ranges."""
    ends = np.cumsum(sizes)
    pools: list[tuple[int, int]] = []
    start = 0
    while start < len(sizes):
        before = int(ends[start - 1]) if start else 0
        num_bytes, num_objects = POOL_BYTES, POOL_OBJECTS
        if growing:
            num_bytes = min(num_bytes, FIRST_POOL_BYTES << min(len(pools), 30))
            num_objects = min(num_objects, FIRST_POOL_OBJECTS << min(len(pools), 30))
        full = int(np.searchsorted(ends, before + num_bytes)) + 1
        limit = int(np.searchsorted(ends, before + POOL_LIMIT_BYTES)) + 1
        end = max(full, min(start + num_objects, limit), start + min(POOL_MINIMUM, num_objects))
        pools.append((start, min(end, len(sizes))))
        start = pools[-1][1]
    return pools


def window_bounds(lane: int, window: int, shape: LaneShape) -> tuple[int, int]:
    """Return which of its splits a lane has in its n-th window (half-open, not clipped).

    The first window is one split; second windows have different lengths, so that lanes do not turn
    over together.
    """
    if window == 0:
        return 0, 1
    second = 2 + lane % shape.num_window_splits
    if window == 1:
        return 1, second
    start = second + (window - 2) * shape.num_window_splits
    return start, start + shape.num_window_splits


def window_of(lane: int, split: int, shape: LaneShape) -> int:
    """Return the number of the window that holds a lane's n-th split; inverse of `window_bounds`."""
    second = 2 + lane % shape.num_window_splits
    if split < second:
        return min(split, 1)
    return 2 + (split - second) // shape.num_window_splits


def window_permutation(length: int, seed: int, epoch: int, lane: int, window: int) -> Indices:
    """Return the order of the samples of a window, as numbers into its splits laid end to end."""
    return keyed_permutation(length, "window", seed, epoch, lane, window)
