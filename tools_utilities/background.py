"""Work of daemon threads inside libraries, and the end of the interpreter.

Up to Python 3.13 a daemon thread that asks for the interpreter's lock once the interpreter is ending is
unwound where it stands (python/cpython#87135). In the middle of C++ or Rust (pyarrow, torch, obstore)
that aborts a process which had done all it was asked for. So what daemon threads do in libraries is
done in pieces: at exit those under way are waited for, and no other begins. A thread that is ended
keeps the locks it holds, too, so what would wait for them is closed before.
"""

import atexit
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Condition
from typing import Protocol, TypeVar
from weakref import WeakSet

_LOGGER = logging.getLogger(__name__)
EXIT_SECONDS = 3.0
"""The most that leaving waits: a request that is never answered must not hold a process."""


class Closeable(Protocol):
    """What `close` ends."""

    def close(self) -> None:
        """End it."""
        ...


_Resource = TypeVar("_Resource", bound=Closeable)


class Background:
    """Counts the pieces of work under way. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ending = False
        self.forget()

    def forget(self) -> None:
        """Count from nothing: a process that was forked has none of the threads."""
        self._changed = Condition()
        self._under_way = 0
        self._open: WeakSet[Closeable] = WeakSet()

    @contextmanager
    def piece(self) -> Iterator[None]:
        """Do a piece of work.

        Raises:
            SystemExit: none may begin any more.
        """
        with self._changed:
            self.check()
            self._under_way += 1
        try:
            yield
        finally:
            self._count(-1)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Within a piece: wait for somebody else, not to be waited for meanwhile.

        Raises:
            SystemExit: the piece may not go on.
        """
        self._count(-1)
        try:
            yield
        finally:
            self._count(1)
        self.check()

    def check(self) -> None:
        """Return unless the interpreter is ending: for long pieces, between two steps.

        Raises:
            SystemExit: it is.
        """
        if self._ending:
            raise SystemExit  # a thread that does not handle it ends without a word

    def _count(self, change: int) -> None:
        with self._changed:
            self._under_way += change
            self._changed.notify_all()

    def closed_at_exit(self, resource: _Resource) -> _Resource:
        """Return something that is closed at exit, if it is still there."""
        self._open.add(resource)
        return resource

    def leave(self, seconds: float = EXIT_SECONDS) -> None:
        """Close what is open, let no other piece begin, and wait until those under way have ended."""
        try:
            self._close_all()
            self._ending = True
            until = self._clock() + seconds
            with self._changed:
                while self._under_way and self._clock() < until:
                    self._changed.wait(max(0.0, until - self._clock()))
        except KeyboardInterrupt:
            self._ending = True  # asked to leave at once

    def _close_all(self) -> None:
        for resource in list(self._open):
            try:
                resource.close()
            except Exception as error:  # noqa: BLE001 - one that a thread is reading from cannot be closed
                _LOGGER.info("not closed at exit: %s", error)


BACKGROUND = Background()
"""Of this process."""
atexit.register(BACKGROUND.leave)
os.register_at_fork(after_in_child=BACKGROUND.forget)
