"""Whole-file writes that are atomic and durable, and the lock that makes compare-and-swap true."""

import errno
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

TEMPORARY_PREFIX = ".quark-tmp-"
LOCK_FOLDER = ".quark-locks"


def is_hidden(name: str) -> bool:
    """Say whether a file or folder name is one of our own, never an object."""
    return name == LOCK_FOLDER or name.startswith(TEMPORARY_PREFIX)


@contextmanager
def key_lock(root: Path, key: str) -> Iterator[None]:
    """Hold the lock of a key against other threads, processes and (where flock reaches) machines.

    256 lock files serve all keys. They are never removed: a lock on a removed file excludes nobody.
    """
    folder = root / LOCK_FOLDER
    folder.mkdir(exist_ok=True)
    stripe = sha256(os.fsencode(key)).hexdigest()[:2]
    descriptor = os.open(folder / stripe, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Create a folder and what is missing above it, each durable in its parent."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def write_file(path: Path, data: bytes | Path, *, replace: bool) -> os.stat_result:
    """Write bytes, or a file's bytes, so that at any moment it is there whole or not at all; durable on return.

    The modification time grows with every replacement, whatever the clock's steps: inode, size and
    time never name two versions. A killed process leaves at most a hidden temporary file.

    Raises:
        FileExistsError: the file exists and `replace` is false.
    """
    make_folders(path.parent)
    temporary = path.parent / f"{TEMPORARY_PREFIX}{os.getpid()}-{uuid.uuid4().hex}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if isinstance(data, Path):
                with data.open("rb") as source:
                    shutil.copyfileobj(source, file, 1 << 20)
            else:
                file.write(data)
            file.flush()
            _make_newer(file.fileno(), path)
            os.fsync(file.fileno())
            status = os.fstat(file.fileno())
        _publisher(replace=replace)(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            temporary.unlink()
        raise
    sync_folder(path.parent)
    return status


def _make_newer(descriptor: int, path: Path) -> None:
    # File times move in steps of milliseconds, and inodes are used again at once.
    try:
        earlier_ns = path.stat().st_mtime_ns
    except OSError:
        return
    status = os.fstat(descriptor)
    if status.st_mtime_ns <= earlier_ns:
        os.utime(descriptor, ns=(status.st_atime_ns, earlier_ns + 1))


def _publisher(*, replace: bool) -> Callable[[Path, Path], None]:
    return os.replace if replace else _rename_new


def _rename_new(source: Path, target: Path) -> None:
    # A hard link refuses an existing name even against writers that do not take our lock.
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}:
            raise
        if target.exists():
            raise FileExistsError(errno.EEXIST, "exists", str(target)) from None
        source.replace(target)
    else:
        source.unlink()


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
