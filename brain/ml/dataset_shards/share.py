"""Which positions of the global order are whose: ranks by turns, workers by whole batches.

Rank r of R takes positions r, r + R, r + 2R, … counted from where the iteration began, so that every
global batch is the same set of samples at any world size that divides it, rank counts differ by at
most one, and (lanes being dealt by turns too) a split is read by few ranks. Of its rank's samples,
worker w of W takes every W-th batch, as DataLoader collects them.
"""

import msgspec

from brain.ml.dataset_shards.shuffle_order import Indices


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """One reader's part: a rank's, or that of one of its workers."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1
    batch_size: int = 1
    """Samples of one batch of a rank."""
    equalize: str = "drop"

    def turn(self, slot: int) -> int:
        """Return which of its rank's samples (from 0) the reader's n-th is."""
        batch, place = divmod(slot, self.batch_size)
        return (batch * self.num_workers + self.worker) * self.batch_size + place

    def mine(self, offsets: Indices) -> Indices:
        """Return which entries of `offsets` (positions counted from the start) are this reader's."""
        own = offsets % self.world_size == self.rank
        if self.num_workers > 1:
            batches = offsets // (self.world_size * self.batch_size)
            own &= batches % self.num_workers == self.worker
        chosen: Indices = own.nonzero()[0]
        return chosen

    def rank_samples(self, num_positions: int, rank: int | None = None) -> int:
        """Return how many of so many positions a rank takes."""
        if self.equalize == "drop":
            return num_positions // self.world_size
        if self.equalize == "pad":
            return -(-num_positions // self.world_size)
        rank = self.rank if rank is None else rank
        return max(0, -(-(num_positions - rank) // self.world_size))

    def own_samples(self, num_positions: int) -> int:
        """Return how many of them this reader takes of its rank's."""
        return self.part_of(self.rank_samples(num_positions))

    def part_of(self, rank_samples: int) -> int:
        """Return how many of its rank's samples this reader takes."""
        rounds, rest = divmod(rank_samples, self.batch_size * self.num_workers)
        tail = min(max(rest - self.worker * self.batch_size, 0), self.batch_size)
        return rounds * self.batch_size + tail

    def dropped(self, num_positions: int) -> int:
        """Return how many positions no rank takes."""
        return num_positions % self.world_size if self.equalize == "drop" else 0
