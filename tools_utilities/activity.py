"""Whether this process gets anywhere, and what it waits for: what a watchdog looks at.

One record a process, like a log: whoever opens a shard or makes a step says so here.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Activity:
    """Counts what has moved and keeps what is being waited for; any thread may call it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._moves = 0
        self._waits: dict[tuple[int, str], float] = {}

    @property
    def moves(self) -> int:
        """How often something has moved."""
        return self._moves

    def moved(self) -> None:
        """Say that a step, a batch or a shard is done."""
        self._moves += 1

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Name what the calling thread waits for, as long as it does.

        To begin is to get somewhere: a stall before it has been told must not hide one in it.
        """
        place = (threading.get_ident(), what)
        self.moved()
        self._waits[place] = self._clock()
        try:
            yield
        finally:
            self._waits.pop(place, None)
            self.moved()

    def waits(self) -> list[tuple[str, float]]:
        """Return what is being waited for and for how many seconds, the longest first."""
        now = self._clock()
        # Copied at once: other threads come and go.
        return sorted(
            ((what, now - since) for (_, what), since in list(self._waits.items())),
            key=lambda wait: -wait[1],
        )


ACTIVITY = Activity()
"""Of this process."""
