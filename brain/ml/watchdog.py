"""A thread a rank: keeps the heartbeat, and sees what a rank deep in a wait cannot.

- Whoever launched the run has died: asks this process to save and stop, by a signal to itself.
- Nothing has moved for long: what is waited for and all stacks go to the log.
- Another rank has told of a failure, or vanished: ends this process, whatever it waits for.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

from brain.ml.failure import Failure
from brain.ml.guardians import Guardians
from brain.ml.metrics import HEARTBEAT_SECONDS, MetricsLog
from brain.ml.process_group import World
from brain.ml.stall_watch import StallWatch
from tools_utilities.process_identity import ProcessIdentity

LOOK_SECONDS = 0.5
GRACE_SECONDS = 2.0
"""What a rank gets to end by itself after another one failed."""

logger = logging.getLogger(__name__)


class Watchdog:
    """Looks twice a second; costs a few system calls a look."""

    def __init__(
        self,
        world: World,
        metrics: MetricsLog,
        failure: Failure,
        guardians: Guardians,
        *,
        stall: StallWatch | None = None,
        orphaned: signal.Signals = signal.SIGTERM,
        leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        """Watch for one rank.

        Args:
            world: Which one.
            metrics: Where a lost rank is told.
            failure: The right to tell of one.
            guardians: Processes without which the run must not go on.
            stall: Looked at too.
            orphaned: Sent to this process when a guardian has died.
            leaving: Whether all ranks have been asked to go and do, each by itself.
        """
        self._stall, self._orphaned, self._leaving = stall, orphaned, leaving
        self._world = world
        self._metrics = metrics
        self._failure = failure
        self._guardians: Guardians | None = guardians
        self._peers: list[ProcessIdentity] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def watch_peers(self, peers: Sequence[ProcessIdentity]) -> None:
        """Look after the other ranks too, those of this machine; `peers` by rank."""
        self._peers = list(peers)

    def wait_for_cause(self, seconds: float = GRACE_SECONDS) -> None:
        """Give other ranks a moment to tell why an exchange with them broke; tell of a lost one."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._failure.told:
            if self._leaving():
                return
            lost = self._lost()
            if lost:
                self._failure.tell_lost(self._metrics, lost[0], self._peers[lost[0]].pid)
                return
            time.sleep(0.05)

    def _lost(self) -> list[int]:
        return [rank for rank, peer in enumerate(self._peers) if peer.here and not peer.alive]

    def stop(self) -> None:
        """Stop looking: from here on ranks may end."""
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        beaten = 0.0
        while not self._done.wait(LOOK_SECONDS):
            now = time.monotonic()
            if self._world.rank == 0 and now - beaten >= HEARTBEAT_SECONDS:
                self._metrics.beat()
                beaten = now
            if self._stall is not None:
                self._stall.look()
            self._look_up()
            self._look_around()

    def _look_up(self) -> None:
        if self._guardians is not None and self._guardians.missed:
            self._guardians = None
            logger.warning("the process that launched this run has died: saving and stopping")
            os.kill(os.getpid(), self._orphaned)

    def _look_around(self) -> None:
        lost = [] if self._leaving() else self._lost()
        if not lost and not self._failure.told:
            return
        # The main thread most often finds out by itself: its next exchange fails.
        if self._done.wait(GRACE_SECONDS):
            return
        if lost:
            self._failure.tell_lost(self._metrics, lost[0], self._peers[lost[0]].pid)
        self._failure.finish()
        os._exit(1)
