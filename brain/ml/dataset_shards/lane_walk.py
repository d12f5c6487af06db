"""Walks the order round by round: round r is sample r of every lane, exhausted lanes left out.

Where the counts of all splits are known any position is found by arithmetic (bisection over
Σ min(r, samples of the lane)). Where they are not, the walk learns a window's counts when it enters
it; to start in the middle it needs a `LaneHint`, which says in which window each lane stands.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from brain.ml.dataset_shards.shuffle_order import Indices, LaneShape, window_bounds, window_of
from tools_utilities.prepared_types import prepared

_UNKNOWN = 1 << 62
"""Samples of a lane whose end has not been seen."""


@prepared
class LaneHint(msgspec.Struct, frozen=True, kw_only=True):
    """Where each lane stands: enough to go on without knowing what came before. O(lanes)."""

    windows: tuple[int, ...]
    bases: tuple[int, ...]
    """Samples of the lane before that window."""
    totals: tuple[int | None, ...]
    """Samples of the lane, once its end has been seen."""


class LaneWindow(NamedTuple):
    """One window of one lane."""

    lane: int
    number: int
    base: int
    """Samples of the lane before it."""
    splits: tuple[int, ...]


class UpcomingWindow(NamedTuple):
    """A window that a lane has not entered; how many samples lie before it may not be known yet."""

    lane: int
    number: int
    splits: tuple[int, ...]


class Chunk(NamedTuple):
    """A stretch of rounds in which no lane changes its window or ends."""

    position: int
    """Of the first entry that counts."""
    first_round: int
    num_rounds: int
    skip: int
    """Entries of the first round that lie before `position`."""
    windows: tuple[LaneWindow, ...]
    """Of the lanes that take part, in lane order."""

    @property
    def num_positions(self) -> int:
        """Positions in the stretch."""
        return self.num_rounds * len(self.windows) - self.skip


class LaneWalk:
    """One pass over an epoch's order, from any position."""

    def __init__(
        self,
        dealt: Indices,
        shape: LaneShape,
        counts: Indices,
        learn: Callable[[tuple[int, ...]], None],
    ) -> None:
        """Prepare to walk.

        Args:
            dealt: Split numbers in the order they are dealt to lanes.
            shape: Lanes and window.
            counts: Samples of every split, -1 where unknown; `learn` fills it in.
            learn: Called with the splits of a window when some of their counts are unknown.
        """
        self._lanes = [dealt[lane :: shape.num_lanes] for lane in range(shape.num_lanes)]
        self._shape = shape
        self._counts = counts
        self._learn = learn
        self._known = bool((counts[dealt] >= 0).all()) if len(dealt) else True
        self._number = [-1] * shape.num_lanes
        self._base = [0] * shape.num_lanes
        self._size = [0] * shape.num_lanes
        self._total = [_UNKNOWN] * shape.num_lanes
        self._held: dict[int, LaneWindow] = {}
        self._round = 0
        self._skip = 0
        self._sought = 0
        if self._known:
            self._total = [int(counts[lane].sum()) for lane in self._lanes]

    @property
    def known_total(self) -> int | None:
        """Samples of the epoch, when every lane's end is known."""
        total = sum(self._total)
        return None if total >= _UNKNOWN else total

    @property
    def is_counted(self) -> bool:
        """Whether the counts of all splits were known when the walk began."""
        return self._known

    def seek(self, position: int, hint: LaneHint | None = None) -> None:
        """Go to a position; O(lanes) with known counts or a hint, else what lies before is counted."""
        if not self._known and hint is not None:
            self._restore(hint)
        elif not self._known and position:
            # Not at the start: there the splits are asked for before the first window is entered.
            self._count_up_to(position)
        self._sought = position
        self._place()
        if self._known:
            for lane in range(len(self._lanes)):
                self._jump(lane)

    def hint(self) -> LaneHint:
        """Return where the lanes stand now."""
        return LaneHint(
            windows=tuple(self._number),
            bases=tuple(self._base),
            totals=tuple(None if total == _UNKNOWN else total for total in self._total),
        )

    def current(self) -> list[LaneWindow]:
        """Return the windows of the lanes that have not ended."""
        lanes = (lane for lane, total in enumerate(self._total) if total > self._round)
        return [self._window(lane) for lane in lanes]

    def upcoming(self, after: int = 1) -> list[UpcomingWindow]:
        """Return the n-th window after each lane's own, soonest first."""
        lanes = sorted(
            range(len(self._lanes)), key=lambda lane: self._base[lane] + self._size[lane]
        )
        numbers = ((lane, self._number[lane] + after) for lane in lanes)
        windows = (UpcomingWindow(lane, n, self._splits(lane, n)) for lane, n in numbers)
        return [window for window in windows if window.splits]

    def chunks(self, max_positions: Callable[[], int]) -> Iterator[Chunk]:
        """Yield the order from where the walk stands to the epoch's end, in stretches.

        `max_positions` is asked before each; a stretch ends early where a lane changes its window.
        """
        self._arrive()
        while True:
            for lane in range(len(self._lanes)):
                self._cover(lane)
            alive = [lane for lane, total in enumerate(self._total) if total > self._round]
            if not alive:
                return
            end = min(self._base[lane] + self._size[lane] for lane in alive)
            wanted = -(-(max(1, max_positions()) + self._skip) // len(alive))
            chunk = Chunk(
                position=self._before(self._round) + self._skip,
                first_round=self._round,
                num_rounds=min(end - self._round, wanted),
                skip=self._skip,
                windows=tuple(self._window(lane) for lane in alive),
            )
            if chunk.num_positions > 0:
                yield chunk
            self._round += chunk.num_rounds
            self._skip = 0

    def _place(self) -> None:
        """Find the round of the position sought; lanes whose end is not known are taken to go on."""
        self._round, before = _find_round(self._total, self._sought)
        self._skip = self._sought - before

    def _arrive(self) -> None:
        """Enter the windows of the position sought.

        A lane may turn out to have ended between where a hint was taken and the position, which is
        then in a later round.
        """
        reached = -1
        while reached < self._round:
            reached = self._round
            for lane in range(len(self._lanes)):
                self._cover(lane)
            self._place()

    def _window(self, lane: int) -> LaneWindow:
        number, held = self._number[lane], self._held.get(lane)
        if held is None or held.number != number or held.base != self._base[lane]:
            held = LaneWindow(lane, number, self._base[lane], self._splits(lane, number))
            self._held[lane] = held
        return held

    def _splits(self, lane: int, number: int) -> tuple[int, ...]:
        start, end = window_bounds(lane, number, self._shape)
        return tuple(self._lanes[lane][start:end].tolist())

    def _cover(self, lane: int) -> None:
        """Turn over windows until the lane's holds the current round, or the lane has ended."""
        while (
            self._round < self._total[lane] and self._base[lane] + self._size[lane] <= self._round
        ):
            splits = self._splits(lane, self._number[lane] + 1)
            if not splits:
                self._total[lane] = self._base[lane] + self._size[lane]
                return
            self._base[lane] += self._size[lane]
            self._number[lane] += 1
            self._size[lane] = self._count(splits)
            if not self._splits(lane, self._number[lane] + 1):
                self._total[lane] = self._base[lane] + self._size[lane]

    def _count(self, splits: tuple[int, ...]) -> int:
        counts = self._counts[list(splits)]
        if (counts < 0).any():
            self._learn(splits)
            counts = self._counts[list(splits)]
        return int(counts.sum())

    def _before(self, number: int) -> int:
        return sum(min(number, total) for total in self._total)

    def _jump(self, lane: int) -> None:
        """Place a lane of known counts so that its window holds the current round."""
        if self._round >= self._total[lane]:
            return
        splits = self._lanes[lane]
        ends = np.cumsum(self._counts[splits])
        split = int(np.searchsorted(ends, self._round, side="right"))
        number = window_of(lane, split, self._shape)
        start, end = window_bounds(lane, number, self._shape)
        self._number[lane] = number
        self._base[lane] = int(ends[start - 1]) if start else 0
        self._size[lane] = int(self._counts[splits[start:end]].sum())

    def _restore(self, hint: LaneHint) -> None:
        for lane in range(len(self._lanes)):
            total = hint.totals[lane]
            self._total[lane] = _UNKNOWN if total is None else total
            # One window back, of no size: `_cover` then enters the recorded one and learns its count.
            self._number[lane] = hint.windows[lane] - 1
            self._base[lane], self._size[lane] = hint.bases[lane], 0

    def _count_up_to(self, position: int) -> None:
        for chunk in self.chunks(lambda: 1 << 40):
            if chunk.position + chunk.num_positions > position:
                return


def _find_round(totals: list[int], position: int) -> tuple[int, int]:
    """Return the last round that begins at or before `position`, and the positions before it."""
    low, high = 0, position
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(middle, total) for total in totals) <= position:
            low = middle
        else:
            high = middle - 1
    return low, sum(min(low, total) for total in totals)
