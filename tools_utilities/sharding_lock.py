"""One run an output at a time: a second one would remove what the first is writing.

The lock file lies in the run's work folder, holds the process's number for whoever is refused, and goes
with the run; a killed run's lock is free at once. Machines that share a folder exclude each other as
far as its file system's locks reach.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tools_utilities.errors import AccessError, QuarkError, StoreError, UsageError
from tools_utilities.file_locks import HeldFile, closed_on_error

LOCK = ".quark-sharding.lock"
_FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


@contextmanager
def only_run(folder: Path, output: str) -> Iterator[None]:
    """Hold the lock of a work folder; folders that were made for it alone are removed again.

    Raises:
        UsageError: another run holds it.
        OSError: the folder cannot be made or written.
    """
    made = _make(folder)
    try:
        with _locked(folder / LOCK, output) as held:
            try:
                yield
            finally:
                if held.is_at(folder / LOCK):  # the run may have removed its work folder
                    (folder / LOCK).unlink(missing_ok=True)
    finally:
        for empty in made:
            with suppress(OSError):
                empty.rmdir()


def _make(folder: Path) -> list[Path]:
    """Make a folder and return those that were missing, the innermost first."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
    return missing


def _locked(path: Path, output: str) -> HeldFile:
    while True:
        held = HeldFile(path, os.O_RDWR | os.O_CREAT, 0o666)
        with closed_on_error(held):
            if not _try(held):
                other = os.pread(held.fd, 32, 0).decode("ascii", "replace").strip()
                raise UsageError(
                    f"{output}: another run is writing it"
                    + (f" (process {other})" if other else ""),
                    hint="Wait until it has ended; the same command then goes on where it stopped.",
                )
            if held.is_at(path):
                os.ftruncate(held.fd, 0)
                os.pwrite(held.fd, str(os.getpid()).encode(), 0)
                return held
        held.close()  # its run has just ended, and took the file with it


def _try(held: HeldFile) -> bool:
    try:
        return held.try_lock(exclusive=True)
    except OSError:
        return True  # a file system without locks: as if there were one run


@contextmanager
def disk_errors(output: str) -> Iterator[None]:
    """Tell what this machine's disk refuses in our own words: which file, why, and what to do.

    Raises:
        AccessError: it may not be written.
        StoreError: it is full, no folder, or fails otherwise.
    """
    try:
        yield
    except QuarkError:
        raise  # a store's error is an OSError too
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else output
        kind = AccessError if error.errno in _FORBIDDEN else StoreError
        raise kind(
            f"{place}: {error.strerror or error}",
            hint="Check the disk and the path; the same command then goes on where it stopped.",
            errno=error.errno,
        ) from error
