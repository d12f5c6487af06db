"""Agents hear of each other, so that a machine that has fallen silent does not hold the others up.

A process that ends closes its connections, and whoever waits for it finds out. A machine that freezes,
loses its network or its power closes none: ranks elsewhere would wait for it until gloo gives up,
half an hour later. So every agent counts up a number in the store where they meet, once a second,
whatever else it does, and notices whose number stands still.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

BEAT_SECONDS = 1.0
SILENT_SECONDS = 30.0
"""Without a beat for so long, a machine is taken for lost. A busy one is late by seconds."""

logger = logging.getLogger("quark.agent")


class Counters(Protocol):
    """What is needed of torch's `TCPStore`."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, from 0; returns it."""
        ...


class Pulse:
    """Of one start of a run: this machine's, and what is heard of the others."""

    def __init__(
        self,
        connect: Callable[[], Counters],
        prefix: str,
        own: int,
        count: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take part.

        Args:
            connect: Opens a connection to the store, for the thread that beats alone.
            prefix: Of the start's keys.
            own: This machine's number among them.
            count: Machines.
            clock: Seconds that never go back.
        """
        self._connect, self._prefix, self._own, self._clock = connect, prefix, own, clock
        self._heard: dict[int, tuple[int, float]] = {
            other: (0, clock()) for other in range(count) if other != own
        }
        self._looked = clock()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Begin to beat; nothing to do for a machine that is alone."""
        if self._heard:
            self._thread.start()

    def stop(self) -> None:
        """Beat no more; the thread ends within a second."""
        self._done.set()

    def beat(self, store: Counters) -> None:
        """Beat once and listen."""
        store.add(f"{self._prefix}/{self._own}", 1)
        now = self._clock()
        asleep = now - self._looked > SILENT_SECONDS / 2
        for other, (count, _) in list(self._heard.items()):
            found = store.add(f"{self._prefix}/{other}", 0)
            if found != count or asleep:  # after a sleep of its own it has heard nobody
                self._heard[other] = (found, now)
        self._looked = now  # last: `silent` compares with it from another thread

    def silent(self) -> list[int]:
        """Return the machines that have not been heard of for `SILENT_SECONDS`.

        None while this machine's own beats do not get through: then it knows nothing of others.
        """
        if self._clock() - self._looked > 3 * BEAT_SECONDS:
            return []
        return [
            other
            for other, (_, heard) in sorted(self._heard.items())
            if self._looked - heard > SILENT_SECONDS
        ]

    def _run(self) -> None:
        try:
            store = self._connect()
            while not self._done.wait(BEAT_SECONDS):
                self.beat(store)
        except RuntimeError as error:  # torch's errors of connections; the agent meets them too
            logger.warning("the place where the machines meet cannot be reached: %s", error)
