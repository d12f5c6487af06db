"""What one machine's cache holds, by the rules of `DiskCache` and its eviction policies, without files.

The same order of eviction as `eviction.py` (a test compares them), from heaps instead of a sort of all
entries an eviction. Times are seconds of the simulation, objects numbers.
"""

from heapq import heappop, heappush
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from brain.ml.dataset_shards.shuffle_order import Indices

SPARE_SHARE = 1 / 256
"""Of the budget: so much more goes at a time, as in `DiskCache`."""


Entry = tuple[float, float, int, int]
"""What goes first is least: by the policy, then by last use; object, and which of its entries holds."""


class Uses(NamedTuple):
    """When objects are used: pairs of an object and a place in the epoch's order, ascending by place."""

    objects: Indices
    places: Indices
    span: int
    """More than any place."""

    def by_object(self) -> dict[int, list[int]]:
        """Return each object's places, the last one first."""
        order = np.argsort(self.objects, kind="stable")[::-1]
        objects, places = self.objects[order], self.places[order].tolist()
        cuts = [0, *(np.diff(objects).nonzero()[0] + 1).tolist(), len(places)]
        return (
            {
                number: places[start:end]
                for number, (start, end) in zip(
                    objects[cuts[:-1]].tolist(), pairwise(cuts), strict=True
                )
            }
            if len(places)
            else {}
        )

    def first_of(self) -> dict[int, int]:
        """Return each object's first place."""
        objects, at = np.unique(self.objects, return_index=True)
        return dict(zip(objects.tolist(), self.places[at].tolist(), strict=True))


class SimulatedCache:
    """One cache folder, or the pool of memory of a stream without one."""

    def __init__(self, sizes: list[int], budget_bytes: int, known: str) -> None:
        """Begin empty.

        Args:
            sizes: Bytes of each object.
            budget_bytes: What may be held.
            known: What eviction goes by: `plan` (each object's next use is known), `announced` (only what
                comes soon, the rest by last use), or `nothing` (last use alone).
        """
        # Of what was met alone: there may be a hundred caches of a million objects.
        self.sizes, self.budget_bytes = sizes, budget_bytes
        self.by_plan, self._spares_wanted = known == "plan", known == "announced"
        self.arrival: dict[int, float] = {}
        """When each object is there, or will be."""
        self.used_bytes = 0
        self.peak_bytes = 0
        self.wanted: dict[int, int] = {}
        """How many announcements of each object are open."""
        self._leases: dict[int, int] = {}
        self._stamps: dict[int, int] = {}
        self._last_used: dict[int, float] = {}
        self._heap: list[Entry] = []
        self._spare = int(budget_bytes * SPARE_SHARE)
        self._uses: dict[int, list[int]] = {}
        self._following: dict[int, int] = {}
        self._span = 0

    def plan(self, uses: Uses, following: Uses) -> None:
        """Take the uses of an epoch, and those of the next: only the first of each object counts."""
        self._span = uses.span
        self._uses = uses.by_object()
        self._following = following.first_of()
        self._heap = []
        for number in self.arrival:
            if number not in self._leases:
                self._offer(number)

    def next_use(self, number: int) -> float:
        """Return the place of an object's next use, in this epoch or after it."""
        left = self._uses.get(number)
        if left:
            return float(left[-1])
        return self._span + self._following.get(number, inf)

    def use(self, number: int, now: float) -> None:
        """Lease an object that is there (or read past the cache): one planned use is over."""
        if left := self._uses.get(number):
            left.pop()
        self._last_used[number] = now
        self._leases[number] = self._leases.get(number, 0) + 1
        self._stamps[number] = self._stamps.get(number, 0) + 1

    def release(self, number: int) -> None:
        """End a lease."""
        self._leases[number] -= 1
        if not self._leases[number]:
            del self._leases[number]
            if number in self.arrival:
                self._offer(number)

    def add(self, number: int, arrival: float) -> None:
        """Put in what there is room for."""
        self.arrival[number] = arrival
        self._last_used[number] = max(self._last_used.get(number, 0.0), arrival)
        self.used_bytes += self.sizes[number]
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        if number not in self._leases:
            self._offer(number)

    def make_room(self, number: int, now: float, *, ahead: bool) -> bool:
        """Evict what may go for an object; False: there is no room to be had.

        What is read `ahead` evicts nothing that is needed before it, nor what has been announced.
        """
        size = self.sizes[number]
        if size >= self.budget_bytes:
            return False
        short = self.used_bytes + size - self.budget_bytes
        if short <= 0:
            return True
        soonest = self.next_use(number) if ahead and self.by_plan else -1.0
        kept: list[Entry] = []
        short = self._evict(short, soonest, now, kept)
        for entry in kept:
            if short > 0 and not ahead and self.arrival[entry[2]] <= now:
                short -= self._forget(entry[2])  # announced, but there is nothing else
            else:
                heappush(self._heap, entry)
        return short <= 0

    def _evict(self, short: int, soonest: float, now: float, kept: list[Entry]) -> int:
        """Evict what is needed after `soonest`; returns what is still short. `kept` was passed over."""
        spare, heap = self._spare, self._heap
        while heap:
            key, _, old, stamp = heap[0]
            if stamp != self._stamps[old]:
                heappop(heap)
            elif self.arrival[old] > now or (self._spares_wanted and self.wanted.get(old)):
                kept.append(heappop(heap))
            elif self.by_plan and -key <= soonest:
                break
            else:
                spare -= self.sizes[old] if short <= 0 else 0
                if spare < 0:
                    break
                heappop(heap)
                short -= self._forget(old)
        return short

    def _forget(self, number: int) -> int:
        self._stamps[number] += 1
        del self.arrival[number]
        self.used_bytes -= self.sizes[number]
        return self.sizes[number]

    def _offer(self, number: int) -> None:
        self._stamps[number] = self._stamps.get(number, 0) + 1
        used = self._last_used[number]
        key = -self.next_use(number) if self.by_plan else used
        heappush(self._heap, (key, used, number, self._stamps[number]))
