"""Room on a disk: how much is left, and setting some aside. A parameter of the cache, for tests."""

import errno
import os
from pathlib import Path
from typing import Protocol

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
_NOT_SUPPORTED = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


class DiskSpace(Protocol):
    """What the cache asks of the disk."""

    def free_and_total_bytes(self, folder: Path) -> tuple[int, int]:
        """Return what an ordinary user may still write, and the size of the file system."""
        ...

    def allocate(self, fd: int, num_bytes: int) -> None:
        """Give an empty file its length and its blocks, so that writing it cannot fail later.

        Raises:
            OSError: ENOSPC or EDQUOT: no room.
        """
        ...


class RealDisk:
    """The file system itself."""

    def free_and_total_bytes(self, folder: Path) -> tuple[int, int]:
        """Ask the file system."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def allocate(self, fd: int, num_bytes: int) -> None:
        """Allocate blocks where the file system can; elsewhere only the length is set."""
        if num_bytes == 0:
            return
        try:
            os.posix_fallocate(fd, 0, num_bytes)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            os.ftruncate(fd, num_bytes)


def is_no_room(error: OSError) -> bool:
    """Say whether an error means that disk or quota are full."""
    return error.errno in _NO_ROOM
