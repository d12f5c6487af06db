"""One `iter()` of a stream in one reader: delivers samples or batches, and always knows where it stands."""

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from brain.ml.dataset_shards.bulk_reading import LocatedBlock
from brain.ml.dataset_shards.epoch_plan import UNREADABLE, EpochCounts, EpochPlan, EpochStart
from brain.ml.dataset_shards.epoch_reader import Block
from brain.ml.dataset_shards.lane_walk import LaneHint
from brain.ml.dataset_shards.partition_deal import Deal
from brain.ml.dataset_shards.partition_reader import PartitionReader, make_reader
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.stream_index import StreamIndex
from brain.ml.dataset_shards.turn import Turn, TurnClock
from brain.ml.dataset_shards.window_reader import Unreadable
from tools_utilities.background import BACKGROUND
from tools_utilities.errors import DataError, RecordError


class Standing(NamedTuple):
    """Where a stream stands, over all ranks and workers."""

    epoch: int
    position: int
    hint: LaneHint | None = None
    partitions: tuple[int, ...] = ()
    """How far each is, under a strategy that has them."""


def standing_in(deal: Deal, epoch: int, rank: int, turns: int) -> Standing:
    """Return where partitions stand when a rank has delivered so many samples of an epoch."""
    if 0 < deal.turns(rank) <= turns:
        return Standing(epoch + 1, 0)
    partitions = deal.after(turns)
    return Standing(epoch, sum(partitions), None, partitions)


@dataclass
class StreamTotals:
    """What a process has read since its stream was made."""

    samples: int = 0
    bad: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Records that are no samples by their format's rules, by reason."""
    missing: set[str] = field(default_factory=set)
    """Keys of objects that were gone."""
    dropped: int = 0
    padded: int = 0
    read_bytes: float = 0.0
    """Stored bytes of the samples that were read."""
    open_seconds: float = 0.0
    read_seconds: float = 0.0
    checkpoints: int = 0


class Iteration:
    """One pass of one reader. Its generators close the splits when they end or are closed."""

    def __init__(
        self,
        index: StreamIndex,
        plan: EpochPlan,
        clock: TurnClock,
        turn: Turn,
        totals: StreamTotals,
    ) -> None:
        self.turn = turn
        self.seen = EpochCounts()
        self._index = index
        self._plan = plan
        self._clock = clock
        self._totals = totals
        self._reader = make_reader(plan, index.counts)
        self._slot = plan.start.slot
        self.num_samples = 0
        """Samples delivered; in `totals` once a pass has ended."""
        self._finished = False
        self._usable_batch = 1
        self._last_batch = 0
        self._left_out = 0
        """Bad records that a view has left out of the splits opened so far."""
        self._told_until = self._told_open = 0.0
        self._told_bytes = 0.0

    @property
    def start(self) -> EpochStart:
        """Where it began."""
        return self._plan.start

    @property
    def share(self) -> Share:
        """Whose it is."""
        return self._plan.share

    @property
    def slot(self) -> int:
        """Own samples delivered since `start.position`."""
        return self._slot

    def samples(self) -> Iterator[Any]:
        """Yield sample after sample."""
        for block in self._blocks():
            slot = block.slot
            for entry in block.entries:
                if type(entry) is Unreadable:
                    self._skip(entry)
                    self._slot = slot = slot + 1
                    continue
                self._slot = slot = slot + 1
                self.num_samples += 1
                yield entry
        self._finished = True

    def batches(self, *, drop_last: bool) -> Iterator[Sequence[Any]]:
        """Yield batches of the plan's size; the last may be shorter, as may one with bad records."""
        size = self._plan.share.batch_size
        self._usable_batch = size if drop_last else 1
        held: Sequence[Any] = []
        epoch = self.start.epoch
        for block in self._blocks():
            if epoch != self.start.epoch:
                # What was left of a used-up epoch is less than a batch and not wanted.
                held, epoch = [], self.start.epoch
            entries, first = block.entries, 0
            if held:
                first = size - len(held)
                held = [*held, *entries[:first]]
                if len(held) < size:
                    continue
                yield from self._batch(held)
            end = len(entries) - (len(entries) - first) % size
            for start in range(first, end, size):
                yield from self._batch(entries[start : start + size])
            # Its splits may be closed by the next block.
            held = list(entries[end:])
        if held and not drop_last:
            yield from self._batch(held)
        self._finished = True

    def take_back(self) -> None:
        """Note that the last batch could not be delivered after all."""
        self._slot -= self._last_batch
        self._last_batch = 0

    def standing(self) -> Standing:
        """Return where the stream stands now that so much has been delivered."""
        share, start = self._plan.share, self._plan.start
        turns = share.turn(self._slot - 1) + 1 if self._slot else 0
        rank_samples, total = self._reader.rank_samples, self._reader.total
        ended = (
            rank_samples is not None and turns >= rank_samples - rank_samples % self._usable_batch
        )
        if self._finished or (ended and turns > 0):
            return Standing(start.epoch + 1, 0)
        if isinstance(self._reader, PartitionReader):
            return standing_in(self._reader.deal, start.epoch, share.rank, turns)
        position = start.position + turns * share.world_size
        position = position if total is None else min(position, total)
        return Standing(start.epoch, position, self._reader.hint_at(position) or start.hint)

    def _batch(self, entries: Sequence[Any]) -> Iterator[Sequence[Any]]:
        if type(entries) is LocatedBlock:
            entries = entries.samples()
        good = entries
        if type(entries) is list and Unreadable in map(type, entries):
            good = [entry for entry in entries if type(entry) is not Unreadable]
            for entry in entries:
                if type(entry) is Unreadable:
                    self._skip(entry)
        self._slot += len(entries)
        self._last_batch = len(entries)
        self.num_samples += len(good)
        if good:
            yield good
        elif self._plan.share.world_size > 1:
            raise DataError(
                f"none of the {len(entries)} records of a batch can be read",
                hint="The other ranks have this batch; use a larger batch size or repair the data.",
            )

    def _blocks(self) -> Iterator[Block]:
        yield from BACKGROUND.closed_at_exit(self._read())
        if self._used_up():
            # A state saved after an epoch's last sample: this iteration is the next epoch.
            start = EpochStart(epoch=self._plan.start.epoch + 1)
            self._clock.shift(self.turn, start.epoch)
            self._plan = replace(self._plan, start=start)
            self._slot = 0
            self._reader = make_reader(self._plan, self._index.counts)
            yield from BACKGROUND.closed_at_exit(self._read())

    def _used_up(self) -> bool:
        start, share, total = self._plan.start, self._plan.share, self._reader.total
        if start.position == 0 or start.slot or total is None:
            return False
        rest = max(0, total - start.position)
        samples = rest // share.world_size if share.equalize == "drop" else rest
        if isinstance(self._reader, PartitionReader):
            samples = self._reader.most_samples
        return samples - samples % self._usable_batch == 0

    def _read(self) -> Generator[Block]:
        reader, self._left_out = self._reader, 0
        self._told_until, self._told_open, self._told_bytes = time.perf_counter(), 0.0, 0.0
        unknown = int((self._index.counts < 0).sum())
        try:
            for block in reader.blocks():
                self._count_dropped(reader.seen)
                self._count_time(reader.seen)
                yield block
            self._count_dropped(reader.seen)
        finally:
            reader.close()
            self._count_time(reader.seen)
            self._add(reader.seen)
            if unknown != int((self._index.counts < 0).sum()):
                self._index.save_counts()
        # Only now: the counts that this pass has learned are the index's since the reader was closed.
        self._index.check_manifest()

    def _count_time(self, seen: EpochCounts) -> None:
        """Add time and bytes since the last call: a step tells of what was waited and read by then."""
        totals, now = self._totals, time.perf_counter()
        totals.read_seconds += now - self._told_until
        totals.open_seconds += seen.open_seconds - self._told_open
        totals.read_bytes += seen.read_bytes - self._told_bytes
        self._told_until, self._told_open = now, seen.open_seconds
        self._told_bytes = seen.read_bytes

    def _add(self, seen: EpochCounts) -> None:
        self.seen = seen
        totals = self._totals
        totals.samples += self.num_samples
        self.num_samples = 0
        totals.dropped += seen.dropped
        totals.padded += seen.padded
        totals.missing |= seen.missing
        for reason, count in seen.skipped.items():
            totals.skipped[reason] = totals.skipped.get(reason, 0) + count

    def _skip(self, entry: Unreadable) -> None:
        """Count a slot that is left out, or raise why it may not be."""
        error, tolerance = entry.error, self._plan.tolerance
        if not isinstance(error, RecordError):
            return  # a missing object: on_missing=skip has let it through and counted it
        if tolerance.on_bad != "skip":
            raise error
        self._totals.bad += 1
        if self._clock.count_bad(self.turn) > tolerance.bad_budget:
            raise too_many_bad(
                tolerance.bad_budget, f"; the last: {error}", error.detail
            ) from error

    def _count_dropped(self, seen: EpochCounts) -> None:
        """Count what a view left out of its splits, and unreadable splits, within the same budget."""
        left_out = seen.skipped.get("bad", 0) + seen.skipped.get(UNREADABLE, 0)
        while self._left_out < left_out:
            self._left_out += 1
            budget = self._plan.tolerance.bad_budget
            if self._clock.count_bad(self.turn) > budget:
                last = seen.last_unreadable
                raise too_many_bad(budget, f"; the last: {last}" if last else "")


def too_many_bad(budget: int, last: str = "", detail: Mapping[str, Any] | None = None) -> DataError:
    """Return the error of an epoch with more bad records than are let through."""
    return DataError(
        f"more than {budget} records of an epoch cannot be read{last}",
        hint="Repair the data, or raise bad_budget.",
        **(detail or {}),
    )
