"""Reads one reader's share of one epoch, in order: the loop of the stream.

A block of the order is located by arithmetic, read split by split in bulk, and put back in order.
The next windows are being opened meanwhile.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from brain.ml.dataset_shards.epoch_plan import EpochCounts, EpochPlan
from brain.ml.dataset_shards.lane_walk import Chunk, LaneHint, LaneWalk, UpcomingWindow
from brain.ml.dataset_shards.object_uses import object_uses
from brain.ml.dataset_shards.shuffle_order import Indices, deal_order
from brain.ml.dataset_shards.window_reader import WindowReader, split_codes
from tools_utilities.errors import DataError
from tools_utilities.object_store import ObjectInfo

BLOCK_SAMPLES = 2048
BLOCK_BYTES = 4 << 20
"""A block holds at most so many samples, and about so many stored bytes."""
WINDOWS_AHEAD = 3
_MOST_HINTS = 512


class Block(NamedTuple):
    """Entries of the order that are this reader's, one after another."""

    slot: int
    """Number of the first among this reader's own."""
    entries: Sequence[Any]
    """Samples; `Unreadable` where there is none."""


class EpochReader:
    """One pass. `close` it, or run `blocks` to its end."""

    def __init__(self, plan: EpochPlan, counts: Indices) -> None:
        """Prepare; opens nothing yet. `counts` is updated in place as splits are counted."""
        self.plan = plan
        self.seen = EpochCounts()
        self._learned = counts
        self._windows = WindowReader(plan, counts.copy(), self.seen)
        self._walk = self._new_walk()
        self._hints: list[tuple[int, LaneHint]] = []
        self._slot = plan.start.slot
        self._ahead_of: tuple[int, ...] = ()

    @property
    def total(self) -> int | None:
        """Positions of the whole epoch, as soon as every lane is in its last window."""
        return self._walk.known_total

    @property
    def num_slots(self) -> int | None:
        """Samples that are this reader's from the start position on, once `total` is known."""
        total = self.total
        return None if total is None else self.plan.share.own_samples(self._remaining(total))

    @property
    def rank_samples(self) -> int | None:
        """Samples that are this rank's from the start position on, once `total` is known."""
        total = self.total
        return None if total is None else self.plan.share.rank_samples(self._remaining(total))

    def hint_at(self, position: int) -> LaneHint | None:
        """Return where the lanes stood at a position not before the last one asked for."""
        while len(self._hints) > 1 and self._hints[1][0] <= position:
            del self._hints[0]
        return self._hints[0][1] if self._hints and self._hints[0][0] <= position else None

    def blocks(self) -> Iterator[Block]:
        """Yield this reader's entries from its start to the epoch's end.

        Raises:
            DataError: what was read is not what was counted.
            QuarkError: a split could not be opened.
        """
        start, share = self.plan.start, self.plan.share
        self._walk.seek(start.position + share.turn(start.slot) * share.world_size, start.hint)
        # Nothing else is fetched before what the first batch waits for: see `_request_first`, or
        # first windows, which cannot be looked into before they are counted.
        if not self._walk.is_counted:
            self._request(self.plan.shape.num_lanes, self._walk.upcoming())
        self.plan.source.plan_uses(self.plan.table.objects, partial(object_uses, self.plan))
        held: Sequence[Any] = []
        for chunk in self._walk.chunks(self._next_positions):
            self._turn_over(chunk)
            found = self._read(chunk)
            self.seen.read_bytes += self._windows.bytes_of(chunk, len(found))
            sure = self._sure(len(held) + len(found), chunk)
            for ready in (held[:sure], found[: max(0, sure - len(held))]):
                if ready:
                    self._slot += len(ready)
                    yield Block(self._slot - len(ready), ready)
            # As samples: their splits may be closed by the next chunk.
            held = [*held[sure:], *found[max(0, sure - len(held)) :]]
        yield from self._pad()
        self._check_end()

    def codes(self, num_positions: int) -> tuple[Indices, Indices]:
        """Return split numbers and indices of the next positions, whoever's they are; reads nothing."""
        parts: list[Indices] = [np.zeros(0, np.int64)]
        self._walk.seek(self.plan.start.position, self.plan.start.hint)
        for chunk in self._walk.chunks(lambda: num_positions):
            parts.append(self._windows.locate(chunk, np.arange(chunk.num_positions)))
            if sum(map(len, parts)) >= num_positions:
                break
        return split_codes(np.concatenate(parts)[:num_positions])

    def close(self) -> None:
        """Close what is open and keep the counts that were learned."""
        learned = self._windows.counts
        fresh = (self._learned < 0) & (learned >= 0)
        for number in self._windows.unread:
            fresh[number] = False
        self._learned[fresh] = learned[fresh]
        self._windows.close()

    def _new_walk(self) -> LaneWalk:
        plan = self.plan
        table = plan.table
        dealt = (
            deal_order(table.object_of, table.object_bytes, plan.seed, plan.start.epoch)
            if plan.shuffle
            else np.arange(len(table))
        )
        return LaneWalk(dealt, plan.shape, self._windows.counts, self._windows.learn)

    def _remaining(self, total: int) -> int:
        return max(0, total - self.plan.start.position)

    def _next_positions(self) -> int:
        """Return how far the next block goes: a batch at first, then more, within its bytes."""
        share = self.plan.share
        done = self._slot - self.plan.start.slot
        samples = max(share.batch_size, min(done, BLOCK_SAMPLES))
        mean = self._windows.mean_bytes(self._walk.current())
        samples = min(samples, max(1, int(BLOCK_BYTES / max(1.0, mean))))
        return samples * share.world_size * share.num_workers

    def _turn_over(self, chunk: Chunk) -> None:
        current = tuple(window.number for window in chunk.windows)
        if current != self._ahead_of:
            first, self._ahead_of = not self._ahead_of, current
            self._hints.append((chunk.position, self._walk.hint()))
            if len(self._hints) > _MOST_HINTS:
                # Nobody has asked for long. An older hint serves too: what lies between is counted.
                del self._hints[1 : _MOST_HINTS // 2 : 2]
            # All that may have been asked for and is still to come.
            upcoming = [*self._walk.upcoming(1), *self._walk.upcoming(2)]
            to_come = (number for window in upcoming for number in window.splits)
            self._windows.keep(chunk.windows, to_come)
            if first and self._walk.is_counted:
                self._request_first(chunk)
            # First windows are short: those after them are needed soon, and all at once.
            self._request(self.plan.shape.num_lanes if first else WINDOWS_AHEAD, upcoming)

    def _request(self, num_windows: int, upcoming: Sequence[UpcomingWindow]) -> None:
        """Open the first of the windows to come, and name the objects of all of them."""
        if not self.plan.prefetch:
            return
        upcoming = self._own_windows(upcoming)
        self._announce(n for window in upcoming for n in window.splits)
        self._windows.request_windows(upcoming[:num_windows])

    def _request_first(self, chunk: Chunk) -> None:
        """Open what the first block needs, then the rest of the windows it is in."""
        if not self.plan.prefetch:
            return
        codes = self._windows.locate(chunk, self._mine(chunk))
        needed = dict.fromkeys(split_codes(codes)[0].tolist())
        numbers = list(needed)
        for window in chunk.windows:
            if not needed.keys().isdisjoint(window.splits):
                numbers += [number for number in window.splits if number not in needed]
        self._announce(numbers)
        self._windows.request(numbers)

    def _announce(self, numbers: Iterable[int]) -> None:
        """Have the objects of splits read ahead.

        Before they are opened, so that a split waits for its object instead of fetching it itself.
        """
        prefetch = self.plan.prefetch
        objects = dict.fromkeys(self.plan.table.object_of[list(numbers)].tolist())
        infos = [self.plan.table.objects[number] for number in objects]
        self.plan.source.read_ahead(infos if prefetch == "auto" else infos[: int(prefetch)])

    def _own_windows(self, windows: Sequence[UpcomingWindow]) -> Sequence[UpcomingWindow]:
        """Return windows to come without those of lanes that only other ranks read."""
        share = self.plan.share
        if self.total is not None and self.plan.shape.num_lanes % share.world_size == 0:
            turn = (self.plan.start.position + share.rank) % share.world_size
            windows = [found for found in windows if found.lane % share.world_size == turn]
        return windows

    def _read(self, chunk: Chunk) -> Sequence[Any]:
        mine = self._mine(chunk)
        return self._windows.read_chunk(chunk, mine) if len(mine) else []

    def _mine(self, chunk: Chunk) -> Indices:
        """Return which entries of a chunk are this reader's."""
        offsets = np.arange(chunk.num_positions) + (chunk.position - self.plan.start.position)
        return self.plan.share.mine(offsets)

    def _sure(self, num_entries: int, chunk: Chunk) -> int:
        """Return how many entries cannot turn out to be dropped: not those of an incomplete turn."""
        share = self.plan.share
        if share.equalize != "drop" or share.world_size == 1:
            return num_entries
        end = chunk.position + chunk.num_positions - self.plan.start.position
        whole_turns = end // share.world_size
        sure = num_entries
        while sure and share.turn(self._slot + sure - 1) >= whole_turns:
            sure -= 1
        return sure

    def _pad(self) -> Iterator[Block]:
        """Yield, with `pad`, samples from the epoch's beginning for ranks that came out short."""
        num_slots, total, share = self.num_slots, self.total, self.plan.share
        if share.equalize != "pad" or not total or num_slots is None:
            return
        while self._slot < num_slots:
            offset = share.turn(self._slot) * share.world_size + share.rank
            walk = self._new_walk()
            walk.seek((self.plan.start.position + offset - total) % total)
            chunk = next(walk.chunks(lambda: 1))
            codes = self._windows.locate(chunk, np.zeros(1, np.int64))
            self.seen.padded += 1
            self._slot += 1
            yield Block(self._slot - 1, self._windows.read(codes))

    def _check_end(self) -> None:
        """Refuse an epoch that came out shorter (or longer) than what it is counted to hold."""
        expected, total = self.num_slots, self.total
        if expected is None or total is None or self._slot != expected:
            raise DataError(
                f"epoch {self.plan.start.epoch}: {self._slot} samples read, {expected} expected",
                hint="This is a fault in Quark; please report it with the run folder.",
                epoch=self.plan.start.epoch,
            )
        self.seen.dropped = self.plan.share.dropped(self._remaining(total))


def first_objects(plan: EpochPlan, count: int) -> list[ObjectInfo]:
    """Return the first objects that an epoch needs, in order of use."""
    table = plan.table
    dealt = (
        deal_order(table.object_of, table.object_bytes, plan.seed, plan.start.epoch)
        if plan.shuffle
        else np.arange(len(table))
    )
    objects = dict.fromkeys(table.object_of[dealt].tolist())
    return [table.objects[number] for number in list(objects)[:count]]
