"""Reads one reader's share of an epoch under a strategy that assigns splits to partitions.

Each partition has an order of its own; a rank takes turns between its partitions (`partition_deal.py`
has the rule), so that how far each one is says everything. Counts are known before it begins.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from brain.ml.dataset_shards.epoch_plan import EpochCounts, EpochPlan
from brain.ml.dataset_shards.epoch_reader import BLOCK_BYTES, BLOCK_SAMPLES, Block, EpochReader
from brain.ml.dataset_shards.lane_walk import LaneHint, LaneWindow
from brain.ml.dataset_shards.partition_deal import Deal, advance, turn_order
from brain.ml.dataset_shards.partitioning import Partitioning
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.window_reader import WindowReader, split_codes
from tools_utilities.errors import DataError
from tools_utilities.object_store import ObjectInfo


class PartitionCursor:
    """One partition from a position on, as codes of splits and indices."""

    def __init__(
        self,
        number: int,
        start: int,
        plan: EpochPlan,
        partitioning: Partitioning,
        reader: WindowReader,
    ) -> None:
        self._walk = partitioning.walk(number, plan, reader)
        self._walk.seek(start)
        self._reader = reader
        self._base = partitioning.lane_base(number)
        self._wanted = 1
        self._chunks = self._walk.chunks(lambda: self._wanted)
        self._held = np.zeros(0, np.int64)
        self.windows: tuple[LaneWindow, ...] = ()
        """Of the stretch that was located last."""

    def take(self, count: int) -> tuple[Indices, list[LaneWindow]]:
        """Return the codes of the next `count` samples, and every window they are in."""
        parts, touched = [self._held], list(self.windows)
        length = len(self._held)
        while length < count:
            self._wanted = count - length
            chunk = next(self._chunks, None)
            if chunk is None:
                raise DataError(
                    f"a partition ended {count - length} samples before its count",
                    hint="An object has changed since it was counted; start again.",
                )
            own = [window._replace(lane=window.lane + self._base) for window in chunk.windows]
            chunk = chunk._replace(windows=tuple(own))
            self.windows = chunk.windows
            touched += own
            codes = self._reader.locate(chunk, np.arange(chunk.num_positions))
            parts.append(codes)
            length += len(codes)
        codes = np.concatenate(parts)
        self._held = codes[count:]
        return codes[:count], touched

    def ahead(self) -> tuple[list[int], list[int]]:
        """Return the splits of the current and next windows, and of the ones after those."""
        soon = [number for window in self._walk.current() for number in window.splits]
        soon += [number for window in self._walk.upcoming(1) for number in window.splits]
        return soon, [number for window in self._walk.upcoming(2) for number in window.splits]


class PartitionReader:
    """One pass. `close` it, or run `blocks` to its end."""

    def __init__(self, plan: EpochPlan, partitioning: Partitioning, counts: Indices) -> None:
        """Prepare; opens nothing yet."""
        self.plan = plan
        self.seen = EpochCounts()
        self.deal: Deal = partitioning.deal(plan.start.partitions, plan.share)
        self._partitioning = partitioning
        self._windows = WindowReader(plan, counts.copy(), self.seen)
        self._own = self.deal.owned(plan.share.rank)
        self._cursors: list[PartitionCursor] = []
        self._numbers = self._own
        """Partitions that are being read, and …"""
        self._at = self.deal.starts[self._own]
        """… how far each is."""
        self._current: set[LaneWindow] = set()

    @property
    def total(self) -> int | None:
        """Samples of the whole epoch."""
        return int(self.deal.totals.sum())

    @property
    def rank_samples(self) -> int | None:
        """Samples that are this rank's from the start on."""
        return self.deal.turns(self.plan.share.rank)

    @property
    def most_samples(self) -> int:
        """Samples from the start on of the rank that takes most."""
        return self.deal.most_turns

    def hint_at(self, position: int) -> LaneHint | None:  # noqa: ARG002 - as an EpochReader's
        """Nothing: counts are known."""
        return None

    def blocks(self) -> Iterator[Block]:
        """Yield this reader's entries from its start to the epoch's end.

        Raises:
            QuarkError: a split could not be opened, or is not what was counted.
        """
        rank, slot = self.plan.share.rank, self.plan.start.slot
        end, turns = min(self.deal.turns(rank), self.deal.lefts[rank]), self.deal.turns(rank)
        turn = min(self.plan.share.turn(slot), turns)
        if turn < end:
            self._enter_own(turn)
        while turn < turns:
            if turn < end:
                size = min(self._block_turns(turn), end - turn)
            else:
                size = min(self._block_turns(turn), self._enter_again(turns - turn), turns - turn)
            codes, chosen = self._take(size), self._mine(turn, size)
            if len(chosen):
                self.seen.padded += len(chosen) if turn >= end else 0
                self.seen.read_bytes += self._windows.bytes_of_codes(codes[chosen])
                yield Block(slot, self._windows.read(codes[chosen]))
                slot += len(chosen)
            turn += size
        self.seen.dropped = self.deal.dropped

    def codes(self, first_turn: int, num_turns: int) -> tuple[Indices, Indices]:
        """Return split numbers and indices of some turns of the rank, padding too; reads nothing."""
        rank = self.plan.share.rank
        turns, own = self.deal.turns(rank), self.deal.lefts[rank]
        end = min(first_turn + num_turns, turns)
        turn, parts = min(first_turn, end), [np.zeros(0, np.int64)]
        if turn < min(own, end):
            self._enter_own(turn)
            parts.append(self._take(min(own, end) - turn))
            turn = min(own, end)
        while turn < end:
            size = min(self._enter_again(turns - turn), end - turn)
            parts.append(self._take(size))
            turn += size
        return split_codes(np.concatenate(parts))

    def first_splits(self) -> list[int]:
        """Return splits in the order in which they are needed at first."""
        self._enter_own(0)
        return [number for cursor in self._cursors for number in cursor.ahead()[0]]

    def close(self) -> None:
        """Close what is open."""
        self._windows.close()

    def _enter_own(self, turn: int) -> None:
        """Go to one of the rank's turns."""
        starts, totals = self.deal.starts[self._own], self.deal.totals[self._own]
        self._enter(self._own, advance(starts, totals, turn))

    def _enter_again(self, turns_left: int) -> int:
        """Go to what pads the turns that are left; returns how many it lasts for.

        That is the rank's own last samples again (anyone's, if it has none), counted from the
        epoch's end, so that a resume repeats the same ones.
        """
        totals = self.deal.totals
        numbers = self._own if int(totals[self._own].sum()) else np.arange(len(totals))
        num_samples = int(totals[numbers].sum())
        place = num_samples - 1 - (turns_left - 1) % num_samples
        self._enter(numbers, advance(np.zeros_like(numbers), totals[numbers], place))
        return num_samples - place

    def _enter(self, numbers: Indices, positions: Indices) -> None:
        self._numbers, self._at = numbers, positions
        self._cursors = [
            PartitionCursor(number, position, self.plan, self._partitioning, self._windows)
            for number, position in zip(numbers.tolist(), positions.tolist(), strict=True)
        ]
        self._request([cursor.ahead() for cursor in self._cursors])

    def _mine(self, turn: int, size: int) -> Indices:
        share = self.plan.share
        batches = np.arange(turn, turn + size) // share.batch_size
        chosen: Indices = (batches % share.num_workers == share.worker).nonzero()[0]
        return chosen

    def _take(self, size: int) -> Indices:
        """Return the codes of the rank's next turns, and go past them."""
        ends = advance(self._at, self.deal.totals[self._numbers], size)
        which = turn_order(self._at, ends)
        codes, windows = np.empty(size, np.int64), set[LaneWindow]()
        for number, cursor in enumerate(self._cursors):
            here = (which == number).nonzero()[0]
            codes[here], touched = cursor.take(len(here))
            windows.update(touched)
        self._at = ends
        if windows != self._current:
            self._current = windows
            ahead = [cursor.ahead() for cursor in self._cursors]
            self._windows.keep(list(windows), (number for soon, _ in ahead for number in soon))
            self._request(ahead)
        return codes

    def _block_turns(self, turn: int) -> int:
        """Return how far the next block goes: a batch at first, then more, within its bytes."""
        share = self.plan.share
        mean = self._windows.mean_bytes(list(self._current)) if self._current else 0.0
        samples = max(share.batch_size, min(turn // share.num_workers, BLOCK_SAMPLES))
        return min(samples, max(1, int(BLOCK_BYTES / max(1.0, mean)))) * share.num_workers

    def _request(self, ahead: Sequence[tuple[list[int], list[int]]]) -> None:
        """Open what is needed next, and name its objects and those of the windows after."""
        prefetch = self.plan.prefetch
        if not prefetch:
            return
        soon = [number for first, _ in ahead for number in first]
        self._windows.request(soon)
        infos = self._objects([*soon, *(number for _, later in ahead for number in later)])
        self.plan.source.read_ahead(infos if prefetch == "auto" else infos[: int(prefetch)])

    def _objects(self, numbers: list[int]) -> list[ObjectInfo]:
        objects = dict.fromkeys(self.plan.table.object_of[numbers].tolist())
        return [self.plan.table.objects[number] for number in objects]


def make_reader(plan: EpochPlan, counts: Indices) -> EpochReader | PartitionReader:
    """Return the reader that a plan asks for."""
    if plan.partitioning is None:
        return EpochReader(plan, counts)
    return PartitionReader(plan, plan.partitioning, counts)
