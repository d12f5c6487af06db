"""Seed and epoch → order. Pure: nothing here reads a clock, a machine or a process.

An epoch's order is made in three steps, each keyed by seed and epoch:

1. Objects are permuted and laid end to end; each one's splits are strewn at random over a stretch
   around its place (`SPREAD_BYTES`, at most a quarter of the data). Without that bound an object would
   be touched all through the epoch, and a cache smaller than the data would fetch it once a split.
   What an epoch ends with is what the next one begins with, so that it is still in the cache. In epoch 0
   the stretches grow from the start, because its first batch waits for whole, verified objects.
2. The splits are dealt like cards to the lanes.
3. A lane reads windows of its splits, the samples of a window permuted; lanes take turns. Its first
   window is one split, for the first batch's sake.

Random bits come straight from Philox, whose stream numpy promises never to change.
"""

from hashlib import blake2b

import msgspec
import numpy as np
import numpy.typing as npt

ORDER_VERSION = 4

SPREAD_BYTES = 2 << 30
SPREAD_OBJECTS = 64
"""A stretch of few, huge objects would shuffle badly …"""
SPREAD_LIMIT_BYTES = 8 << 30
"""… but it is made longer up to this many bytes only, for the cache's sake."""
SPREAD_SHARE = 4
"""A stretch is at most a quarter of the data: a cache of half of it must hold what is in use …"""
SPREAD_MINIMUM = 8
"""… but this many objects, whatever the cache, since fewer would hardly mix."""
FIRST_OBJECTS = 2
"""The stretch that epoch 0 begins with, in objects."""
BORDER_SHARE = 3 / 8
"""Of the data: what an epoch ends with and the next one begins with."""

NUM_LANES = 24
"""Many divisors: a split is then read by few ranks."""
NUM_WINDOW_SPLITS = 4
OPEN_BYTES = 72 << 20
"""Budget over all open splits; a constant, since probing the machine would change the order."""
SPLIT_BYTES = OPEN_BYTES // (NUM_LANES * NUM_WINDOW_SPLITS)
LARGE_OPEN_BYTES = 1 << 30
"""Where splits cannot be cut (compressed files, row groups) fewer are open, to stay below this."""
FEWEST_OPEN = 64
OPEN_SHARE = 4
"""At most a quarter of few splits is open, down to `FEWEST_OPEN`: a cache of half of them holds those too."""
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


def keyed_bits(length: int, *key: str | int) -> npt.NDArray[np.uint64]:
    """Return random words that depend on `key` alone."""
    # Numbers as Python writes them: numpy's of the same value would be another key.
    plain = tuple(part if isinstance(part, str) else int(part) for part in key)
    digest = blake2b(repr(plain).encode(), digest_size=16, person=b"quark order").digest()
    return np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(length)


def keyed_permutation(length: int, *key: str | int) -> Indices:
    """Return a permutation of range(length) that depends on `key` alone; O(n log n)."""
    if length <= 1:
        return np.zeros(length, np.int64)
    return np.argsort(keyed_bits(length, *key), kind="stable")


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
        while lanes * window * OPEN_SHARE > num_splits and lanes * (window - 1) >= FEWEST_OPEN:
            window -= 1
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

    `object_of` names each split's object (ascending), `object_bytes` each object's size. O(n log n).
    """
    if not len(object_of):
        return np.zeros(0, np.int64)
    sizes = np.maximum(1, object_bytes)
    total, spread = int(sizes.sum()), spread_bytes(sizes)
    middles = _middles(sizes, seed, epoch)
    lengths = np.full(len(sizes), float(min(spread, total)))
    if epoch == 0:
        lengths = np.minimum(lengths, middles + (FIRST_OBJECTS - 0.5) * total / len(sizes))
    # In place from here: there may be millions of splits, and this is the most that an index takes.
    # 53 bits: a float of each is exact, and so are all sums and products the same everywhere.
    places = (keyed_bits(len(object_of), "splits", seed, epoch) >> np.uint64(11)) / 2.0**53
    places -= 0.5
    places *= lengths[object_of]
    places += middles[object_of]
    np.abs(places, out=places)
    # What lies beyond an end is turned back, so that as much lies at the ends as anywhere.
    beyond = places > total
    places[beyond] = 2.0 * total - places[beyond]
    return np.argsort(places, kind="stable")


def _middles(sizes: Indices, seed: int, epoch: int) -> npt.NDArray[np.float64]:
    """Return where the middle of each object lies when they are laid end to end in their order."""
    order = _object_order(sizes, seed, epoch)
    ends = np.cumsum(sizes[order])
    middles = np.empty(len(sizes), np.float64)
    middles[order] = ends - sizes[order] / 2
    return middles


def spread_bytes(sizes: Indices) -> int:
    """Return the length of the stretch over which an object's splits are strewn."""
    mean = -(-int(sizes.sum()) // len(sizes))
    wanted = max(SPREAD_BYTES, min(SPREAD_OBJECTS * mean, SPREAD_LIMIT_BYTES))
    return max(min(wanted, int(sizes.sum()) // SPREAD_SHARE), SPREAD_MINIMUM * mean)


def _object_order(sizes: Indices, seed: int, epoch: int) -> Indices:
    """Return the objects in their order; it ends with those that the next epoch begins with."""
    shuffled = keyed_permutation(len(sizes), "objects", seed, epoch)
    part = np.ones(len(sizes), np.int8)
    if epoch:
        part[_border(sizes, seed, epoch - 1)] = 0
    part[_border(sizes, seed, epoch)] = 2
    return shuffled[np.argsort(part[shuffled], kind="stable")]


def _border(sizes: Indices, seed: int, epoch: int) -> Indices:
    """Return the objects around the end of an epoch.

    Those of odd and even epochs are of different halves of the data, so that none is at both ends.
    """
    halves = keyed_permutation(len(sizes), "halves", seed)
    middle = (len(sizes) + 1) // 2
    half = halves[middle:] if epoch % 2 else halves[:middle]
    chosen = half[keyed_permutation(len(half), "border", seed, epoch)]
    wanted = BORDER_SHARE * int(sizes.sum())
    return chosen[: int(np.searchsorted(np.cumsum(sizes[chosen]), wanted)) + 1]


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
