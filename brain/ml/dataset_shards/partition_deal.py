"""How far each partition has been read, and what each rank has left of its own: arithmetic only.

Rank r of R owns partitions r, r + R, … and always takes its next sample from the one that is least
far (of those, the lowest number): from wherever it stands, that goes on as if it had never stopped.
All ranks take the same number of turns: those of the one that has least left (`drop`) or most (`pad`).
"""

import logging
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.shuffle_order import Indices
from tools_utilities.errors import UsageError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Deal:
    """The rest of an epoch, dealt to the ranks of one world."""

    totals: Indices
    """Samples of every partition."""
    starts: Indices
    """How many of them are read already."""
    world_size: int
    equalize: str

    def owned(self, rank: int) -> Indices:
        """Return the partitions of a rank."""
        return np.arange(rank, len(self.totals), self.world_size)

    @cached_property
    def lefts(self) -> tuple[int, ...]:
        """How many samples are left of each rank's own."""
        ranks = np.arange(len(self.totals)) % self.world_size
        left = np.zeros(self.world_size, np.int64)
        np.add.at(left, ranks, self.totals - self.starts)
        return tuple(left.tolist())

    def turns(self, rank: int) -> int:
        """Return how many samples a rank still takes, those of padding included."""
        if self.equalize == "none":
            return self.lefts[rank]
        return min(self.lefts) if self.equalize == "drop" else max(self.lefts)

    @property
    def most_turns(self) -> int:
        """What the rank that takes most still takes; equal on all ranks."""
        return min(self.lefts) if self.equalize == "drop" else max(self.lefts)

    @property
    def dropped(self) -> int:
        """Samples that no rank takes."""
        if self.equalize != "drop":
            return 0
        return sum(self.lefts) - min(self.lefts) * self.world_size

    def after(self, turns: int) -> tuple[int, ...]:
        """Return how far every partition is once every rank has taken so many samples."""
        positions = self.starts.copy()
        for rank in range(self.world_size):
            own = self.owned(rank)
            positions[own] = advance(self.starts[own], self.totals[own], turns)
        return tuple(positions.tolist())

    def check(self, max_drop: float) -> None:
        """Refuse to drop more than `max_drop` of the epoch; says how much is dropped.

        Raises:
            UsageError: more ranks than partitions, or too much would be lost.
        """
        count, total = len(self.totals), int(self.totals.sum())
        if count < self.world_size:
            raise UsageError(
                f"insufficient partitions: {count} for {self.world_size} workers",
                hint="The number of partitions is fixed at the first launch; use fewer workers.",
            )
        share = self.dropped / max(1, total)
        if share > max_drop:
            raise UsageError(
                f"{self.dropped} of {total} samples ({share:.1%}) would be dropped, more than "
                f"max_drop={max_drop:g}: ranks have from {min(self.lefts)} to {max(self.lefts)} samples",
                hint="Use equalize=pad, a larger max_drop, or partition=round_robin.",
                key="max_drop",
                dropped=self.dropped,
                total=total,
            )
        if self.dropped:
            logger.info("%d of %d samples (%.2f %%) are dropped", self.dropped, total, 100 * share)


def advance(starts: Indices, totals: Indices, turns: int) -> Indices:
    """Return where partitions stand after so many turns, each taken from the least far of them."""
    low, high = 0, int(totals.max(initial=0))
    while low < high:
        middle = (low + high + 1) // 2
        if int((np.clip(middle, starts, totals) - starts).sum()) <= turns:
            low = middle
        else:
            high = middle - 1
    level: Indices = np.clip(low, starts, totals)
    rest = turns - int((level - starts).sum())
    next_ones = ((level == low) & (level < totals)).nonzero()[0]
    level[next_ones[:rest]] += 1
    return level


def turn_order(starts: Indices, ends: Indices) -> Indices:
    """Return the partition of every turn that leads from `starts` to `ends`, in order."""
    counts = ends - starts
    which = np.repeat(np.arange(len(starts)), counts)
    offsets = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = starts[which] + offsets
    ordered: Indices = which[np.lexsort((which, positions))]
    return ordered


def deal_for(totals: Indices, starts: tuple[int, ...], share: Share) -> Deal:
    """Return the deal of partitions of which so much is read; nothing at all if `starts` is empty."""
    read = np.array(starts, np.int64) if starts else np.zeros(len(totals), np.int64)
    return Deal(totals, np.minimum(read, totals), share.world_size, share.equalize)
