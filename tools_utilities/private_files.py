"""Files that their owner alone may read, from their first byte on."""

import errno
import os
import stat
from pathlib import Path

from tools_utilities.errors import UsageError

PRIVATE = 0o600


def write_private(path: Path, content: bytes) -> None:
    """Write a file whole, atomically; whatever was there before, it is the owner's alone (0600)."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # of an earlier process of this number, that was killed
    descriptor = os.open(
        temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    temporary.replace(path)


def open_to_append(path: Path) -> int:
    """Return a descriptor that appends to a file, made private where there was none.

    Raises:
        UsageError: a link or a pipe lies there: whoever made the folder wants it to go elsewhere.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags, PRIVATE)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise UsageError(f"{path} is no plain file", hint="Remove it by hand.") from error


def read_plain(path: Path) -> bytes:
    """Return the bytes of a plain file, in a folder that may be somebody else's.

    Raises:
        OSError: there is none. Nobody waits at a pipe.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(errno.ENOENT, "no plain file", str(path))
        return file.read()
