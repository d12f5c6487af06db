"""Files whose locks the kernel frees when their process dies, however it dies.

Everything that processes share through a folder (who downloads, who reads, who counts) hangs on a
`flock`: no process ids that may be used again, no leases that outlive a `kill -9`, nothing left to
clean. A lock belongs to one opening of a file, so two threads exclude each other too.
"""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self
from weakref import WeakSet

_BUSY = {errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK}
_FIRST_PAUSE_SECONDS = 0.0005
_LONGEST_PAUSE_SECONDS = 0.02


class HeldFile:
    """An open file that may carry a lock; closed when collected, and in forked children at once."""

    def __init__(self, path: Path, flags: int, mode: int = 0o600) -> None:
        """Open `path` itself, never what a link there points to.

        Raises:
            OSError: as `os.open`; ELOOP for a link.
        """
        self.path = path
        self.fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        _HELD.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "fd"):
            self.close()

    def try_lock(self, *, exclusive: bool) -> bool:
        """Take the lock (or change its kind) if nobody is in the way; returns at once.

        Raises:
            OSError: this file system has no locks.
        """
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(self.fd, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def lock(
        self,
        wait_seconds: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the exclusive lock, waiting for a while.

        Polls, since a blocking `flock` could not give up on a holder that was stopped.

        Raises:
            TimeoutError: somebody held it all the time.
        """
        deadline = clock() + wait_seconds
        pause = _FIRST_PAUSE_SECONDS
        while not self.try_lock(exclusive=True):
            if clock() >= deadline:
                raise TimeoutError(errno.ETIMEDOUT, "locked by another process", str(self.path))
            sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    def is_at(self, path: Path) -> bool:
        """Say whether `path` still names this very file (not a later one, not nothing)."""
        try:
            there = os.lstat(path)
        except FileNotFoundError:
            return False
        here = os.fstat(self.fd)
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def close(self) -> None:
        """Free the lock and the file; safe to call twice."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            # Closing alone would leave the lock to whoever was forked off in between.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)


_HELD: WeakSet[HeldFile] = WeakSet()


@contextmanager
def closed_on_error(file: HeldFile) -> Iterator[HeldFile]:
    """Give a file up, and its lock, when the block fails: an error that is kept would keep it too."""
    try:
        yield file
    except BaseException:
        file.close()
        raise


def _leave_to_parent() -> None:
    """In a forked child: close without unlocking, since the lock is the parent's."""
    for held in list(_HELD):
        fd, held.fd = held.fd, -1
        if fd >= 0:
            os.close(fd)
    _HELD.clear()


os.register_at_fork(after_in_child=_leave_to_parent)
