"""Files that their owner alone may read, from their first byte on."""

import os
from pathlib import Path

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
    """Return a descriptor that appends to a file, made private where there was none."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
