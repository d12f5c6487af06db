"""Makes finished downloads durable behind the reader's back: `fsync` takes longer than a download.

What was verified may be read at once, from the file under its temporary name; only other processes
and later ones wait for its final name. The thread is no daemon and lives only while there is
something to publish, so a process that ends normally leaves nothing unpublished.
"""

import logging
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

_LOGGER = logging.getLogger(__name__)

Job = Callable[[], None]


class CachePublisher:
    """One thread and what it has to do; any number of threads may call it."""

    def __init__(self, *, most_waiting: int = 8) -> None:
        """Prepare; `most_waiting` bounds what a crash can lose, and memory that waits for the disk."""
        self._most_waiting = most_waiting
        self._jobs: deque[Job] = deque()
        self._running = False
        self._changed = Condition()

    def put(self, job: Job) -> None:
        """Have a job done soon; by the caller, where too many wait. A job handles its own errors."""
        if not self.offer(job):
            job()

    def offer(self, job: Job) -> bool:
        """Have a job done soon; return False, and forget it, where too many wait or no thread can be had."""
        with self._changed:
            if len(self._jobs) >= self._most_waiting or not (self._running or self._start()):
                return False
            self._jobs.append(job)  # the thread looks when this lock is free
            return True

    def _start(self) -> bool:
        try:
            Thread(target=self._work, name="quark-publish", daemon=False).start()
        except RuntimeError as error:  # too many threads, or the interpreter is ending
            _LOGGER.debug("nothing is written behind: %s", error)
            return False
        self._running = True
        return True

    def settle(self) -> None:
        """Wait until everything that was put is done."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def _work(self) -> None:
        job = self._next()
        while job is not None:
            try:
                job()
            except Exception:  # the thread must go on: `settle` waits for what else is put
                _LOGGER.exception("a download could not be kept in the cache")
            job = self._next()

    def _next(self) -> Job | None:
        with self._changed:
            if self._jobs:
                return self._jobs.popleft()
            self._running = False
            self._changed.notify_all()
            return None
