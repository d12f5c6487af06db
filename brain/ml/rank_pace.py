"""Which ranks are slow: what each takes for its own data and computing, before the others wait for it.

Ranks make equal steps, so a step lasts as long on all of them and its time tells nobody. What tells is the
time until a rank meets the others: what it waited for its data, and its forward passes (a backward pass
meets the others in between; it takes about twice as long). Shown, never rebalanced: which samples are whose is
part of the order. With weights cut over the ranks (FSDP) forward passes meet too, and only data tells.

Slow is what documented worker health calls so: below (1 - threshold) of the median rate.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

THRESHOLD = 0.2
NEWEST_SHARE = 0.1
"""Of the newest step in the averages."""
LEAST_STEPS = 5
"""Before anything is said: the first steps warm up."""
PASSES = 3
"""Forward passes that forward and backward take together."""
MOST_SHOWN = 4


class RankPace:
    """One rank's clocks, and the averages of all ranks as of the last step."""

    def __init__(self, rank: int, world_size: int, *, timed_by: Any = None) -> None:
        """`timed_by`: torch.cuda where computing goes on beside this thread; None: the clock tells."""
        self._rank, self._world_size, self._timed_by = rank, world_size, timed_by
        self._data_seconds = self._compute_seconds = 0.0
        self._events: list[tuple[Any, Any]] = []
        self._averages = [0.0] * (2 * world_size)
        self._steps = 0

    @contextmanager
    def fetching(self) -> Iterator[None]:
        """Count the time inside as waiting for this rank's own data."""
        began = time.perf_counter()
        yield
        self._data_seconds += time.perf_counter() - began

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Count the time inside as a forward pass."""
        if self._timed_by is not None:
            first, last = (self._timed_by.Event(enable_timing=True) for _ in range(2))
            first.record()
            yield
            last.record()
            self._events.append((first, last))
            return
        began = time.perf_counter()
        yield
        self._compute_seconds += time.perf_counter() - began

    def exchanged(self) -> list[float]:
        """Return what this rank adds to a sum over all ranks: its seconds, in places of its own.

        Called when the step's computing is over; begins the next step's count. Empty when alone.
        """
        if self._world_size == 1:
            self._data_seconds = self._compute_seconds = 0.0
            self._events.clear()
            return []
        passed = sum(first.elapsed_time(last) for first, last in self._events) / 1e3
        slots = [0.0] * (2 * self._world_size)
        slots[self._rank] = self._data_seconds
        slots[self._world_size + self._rank] = PASSES * (self._compute_seconds + passed)
        self._data_seconds = self._compute_seconds = 0.0
        self._events.clear()
        return slots

    def take(self, seconds: Sequence[float]) -> None:
        """Take in the sums: every rank's seconds for data, then for computing; nothing when alone."""
        if not seconds:
            return
        self._steps += 1
        share = 1.0 if self._steps <= 2 else NEWEST_SHARE  # noqa: PLR2004 - the first step warms up
        self._averages = [
            (1 - share) * before + share * now
            for before, now in zip(self._averages, seconds, strict=True)
        ]

    def slow(self) -> list[dict[str, Any]]:
        """Return the slow ranks, the slowest first: how many times the median one takes, and for what."""
        if self._world_size == 1 or self._steps < LEAST_STEPS:
            return []
        data, computing = self._averages[: self._world_size], self._averages[self._world_size :]
        own = [one + other for one, other in zip(data, computing, strict=True)]
        usual = median(own)
        if not usual:
            return []
        slow = [rank for rank, took in enumerate(own) if took * (1 - THRESHOLD) > usual]
        slow.sort(key=lambda rank: -own[rank])
        return [
            {
                "rank": rank,
                "times": round(own[rank] / usual, 2),
                "waits": "data"
                if data[rank] - median(data) > computing[rank] - median(computing)
                else "computing",
            }
            for rank in slow[:MOST_SHOWN]
        ]


def slow_text(slow: Sequence[dict[str, Any]]) -> str:
    """Return slow ranks for people; empty where there are none."""
    told = ", ".join(f"{one['rank']} ({one['times']:g} times, {one['waits']})" for one in slow)
    return f"slow rank{'s' if len(slow) > 1 else ''} {told}" if told else ""
