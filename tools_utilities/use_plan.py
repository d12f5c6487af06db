"""When each object of a dataset is read: its uses in this epoch, then its first in the next.

What is about to be read is announced to other processes (`use_order.py`); this is the rest, which only
this process needs, to evict what it needs last. Places in an epoch are counted in splits.
"""

from collections.abc import Callable, Mapping, Sequence
from threading import Lock

import numpy as np
import numpy.typing as npt

MAX_PLANNED = 100_000
"""Objects; past that only what comes next is known, and the rest goes by last use."""
_PASSED_KEPT = 16_384
"""Uses that are remembered as they were told; past that they are counted, eviction or none."""
Places = npt.NDArray[np.int64]

LATER = 1 << 24
"""Uses by plan come after those that were announced."""
OVERDUE = 256
"""Splits are opened about in order: a use so far behind the latest one is not this process's, or was
before it began."""


class UsePlan:
    """An epoch's uses; costs nothing before the first eviction, or many uses. Threads may share it."""

    def __init__(
        self, digests: Callable[[], Sequence[str | None]], uses: Callable[[], Sequence[Places]]
    ) -> None:
        """Take two functions that are called once, when they are needed.

        `digests` returns the objects' identities (None: it has none). `uses` returns three arrays:
        where each object's places begin in the second one, and where the last one's end; all places
        in this epoch, object by object, ascending; and each object's first place in the next.
        """
        self._digests, self._uses = digests, uses
        self._numbers: Mapping[str, int] | None = None
        self._starts = self._places = self._following = self._used = np.zeros(0, np.int64)
        self._passed: list[str] = []
        self._lock = Lock()
        self._place = -1
        """The latest use of all so far."""

    def passed(self, digest: str) -> None:
        """Note that an object is being read now."""
        self._passed.append(digest)
        if len(self._passed) >= _PASSED_KEPT:
            with self._lock:
                self._prepare()

    def next_uses(self) -> dict[str, int]:
        """Return digest → place of its next use, after everything that was announced."""
        with self._lock:
            return self._next_uses()

    def _next_uses(self) -> dict[str, int]:
        numbers = self._prepare()
        owners = np.repeat(np.arange(len(self._following)), np.diff(self._starts))
        span = len(self._places) + 1
        # The first place of each object that is not long past, and of those the first not used.
        gone = np.arange(len(self._following)) * span + max(0, self._place - OVERDUE)
        found_at = np.searchsorted(owners * span + self._places, gone)
        found_at = np.maximum(found_at, self._starts[:-1] + self._used)
        again = found_at < self._starts[1:]
        needed = span + self._following
        needed[again] = self._places[found_at[again]]
        return {digest: LATER + int(needed[number]) for digest, number in numbers.items()}

    def _prepare(self) -> Mapping[str, int]:
        """Look at the uses, the first time; count those that are over."""
        if self._numbers is None:
            found = enumerate(self._digests())
            self._numbers = {digest: number for number, digest in found if digest is not None}
            self._starts, self._places, self._following = self._uses()
            self._used = np.zeros(len(self._following), np.int64)
        self._count_passed(self._numbers)
        return self._numbers

    def _count_passed(self, numbers: Mapping[str, int]) -> None:
        passed, self._passed = self._passed, []
        for digest in passed:
            number = numbers.get(digest)
            if number is None:
                continue
            place = self._starts[number] + self._used[number]
            if place < self._starts[number + 1]:
                self._used[number] += 1
                self._place = max(self._place, int(self._places[place]))
