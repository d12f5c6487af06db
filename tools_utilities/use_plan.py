"""When each object of a dataset is read: in this epoch from its first to its last use, then in the next.

What is about to be read is announced to other processes (`use_order.py`); this is the rest, which only
this process needs, to evict what it needs last. Places in an epoch are counted in splits.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

MAX_PLANNED = 100_000
"""Objects; past that only what comes next is known, and the rest goes by last use."""
Places = npt.NDArray[np.int64]

LATER = 1 << 24
"""Uses by plan come after those that were announced."""


class UsePlan:
    """An epoch's uses; costs nothing before the first eviction."""

    def __init__(
        self, digests: Callable[[], Sequence[str | None]], uses: Callable[[], Sequence[Places]]
    ) -> None:
        """Take two functions that are called once, when they are needed.

        `digests` returns the objects' identities (None: it has none), `uses` three arrays: of every
        object the first and the last place in this epoch, and the first in the next.
        """
        self._digests, self._uses = digests, uses
        self._numbers: Mapping[str, int] | None = None
        self._first = self._last = self._following = np.zeros(0, np.int64)
        self._passed: list[str] = []
        self._place = -1

    def passed(self, digest: str) -> None:
        """Note that an object is being read now."""
        self._passed.append(digest)

    def next_uses(self) -> dict[str, int]:
        """Return digest → place of its next use, after everything that was announced."""
        if self._numbers is None:
            found = enumerate(self._digests())
            self._numbers = {digest: number for number, digest in found if digest is not None}
            self._first, self._last, self._following = self._uses()
        numbers = self._numbers
        passed, self._passed = self._passed, []
        reached = [numbers[digest] for digest in passed if digest in numbers]
        self._place = max(self._place, int(self._first[reached].max(initial=-1)))
        needed = np.where(
            self._last > self._place,
            np.maximum(self._first, self._place),
            len(numbers) + int(self._last.max(initial=0)) + self._following,
        )
        return {digest: LATER + int(needed[number]) for digest, number in numbers.items()}
