"""A folder of this machine as a store: `file:///absolute/folder`, read and written in place.

The path in the URI is taken as it is, nothing is percent-decoded. Keys are paths below the folder;
links are followed only while they stay in it. Listings read one folder at a time, in memory
proportional to the largest folder.
"""

import errno
import logging
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from tools_utilities.errors import (
    AccessError,
    ConditionFailedError,
    DataNotFoundError,
    ObjectNotFoundError,
    ObjectReplacedError,
    QuarkError,
    StoreError,
    UsageError,
)
from tools_utilities.object_store import (
    Body,
    Folder,
    ObjectInfo,
    ObjectStore,
    StoreScheme,
    StoreSpec,
)
from tools_utilities.object_stores._bodies import PIECE_BYTES, clip_range, folder_pages
from tools_utilities.object_stores._local_files import (
    TEMPORARY_PREFIX,
    is_hidden,
    key_lock,
    write_file,
)

_LOGGER = logging.getLogger(__name__)
_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}


class _LocalBody:
    """Reads a range of one open file."""

    def __init__(self, file: BinaryIO, info: ObjectInfo, start: int, end: int) -> None:
        self.info = info
        self._file = file
        self._start = start
        self._end = end

    def __iter__(self) -> Iterator[bytes]:
        position = self._start
        with self._file as file:
            file.seek(position)
            while position < self._end:
                piece = file.read(min(PIECE_BYTES, self._end - position))
                if not piece:
                    raise StoreError(
                        f"{self.info.key} became shorter while it was read",
                        hint="Something else is writing this file; let it finish, then read again.",
                        key=self.info.key,
                        received_bytes=position - self._start,
                        phase="body",
                        transient=True,
                    )
                position += len(piece)
                yield piece

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class LocalStore:
    """A folder standing for a bucket."""

    writable = True

    def __init__(self, spec: StoreSpec, root: Path) -> None:
        self.spec = spec
        self.endpoint_id = f"file://{root}"
        self.root = root
        """The folder, absolute; what reads files in place joins keys to it through `local_path`."""
        self._real_root = os.path.realpath(root)

    # Listing.

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Walk the folders, in the byte order of whole keys."""
        folder, name = self._split_prefix(prefix)
        if "\0" in folder:
            return  # no file can have such a key
        after = os.fsencode(start_after)
        walk = [self._entries(folder, name)]
        inside = [os.path.realpath(self.root / folder)]
        while walk:
            entry = next(walk[-1], None)
            if entry is None:
                walk.pop()
                inside.pop()
            elif isinstance(entry, str):
                real = os.path.realpath(self.root / entry)
                # A link to a folder above itself has no end; nor does a skipped folder matter.
                if real not in inside and _may_follow(os.fsencode(entry), after):
                    walk.append(self._entries(entry, ""))
                    inside.append(real)
            elif os.fsencode(entry.key) > after:
                yield entry

    def list_folder(self, prefix: str, *, max_pages: int | None = None) -> Iterator[Folder]:
        """Yield pages of what lies directly under `prefix`; empty folders count as folders."""
        folder, name = self._split_prefix(prefix)
        return islice(folder_pages(self._entries(folder, name)), max_pages)

    def _split_prefix(self, prefix: str) -> tuple[str, str]:
        """Return the folder a prefix lies in (empty or ending in `/`) and the rest of it."""
        head, slash, name = prefix.rpartition("/")
        if ".." in head.split("/"):
            raise self._leaves(prefix)
        return head + slash, name

    def _entries(self, folder: str, name_prefix: str) -> Iterator[ObjectInfo | str]:
        """Yield the files (as objects) and folders (as text) of one folder, in key order."""
        parts = folder.split("/")[:-1]
        if any(part in {"", "."} or is_hidden(part) or "\0" in part for part in parts):
            return  # the file system would resolve these; as keys they do not exist
        named = []
        for entry in self._scan(folder):
            if entry.name.startswith(name_prefix) and not is_hidden(entry.name):
                found = self._look(entry, folder)
                if found is not None:
                    named.append(found)
        named.sort(key=lambda found: os.fsencode(found if isinstance(found, str) else found.key))
        yield from named

    def _scan(self, folder: str) -> Sequence[os.DirEntry[str]]:
        path = self.root / folder
        try:
            if not self._contains(path):
                return ()
            with os.scandir(path) as entries:
                return tuple(entries)
        except (FileNotFoundError, NotADirectoryError):
            self._need_root()
            return ()
        except OSError as error:
            raise self._error(error, folder, "list") from error

    def _look(self, entry: os.DirEntry[str], folder: str) -> ObjectInfo | str | None:
        key = folder + entry.name
        try:
            if entry.is_symlink() and not self._contains(entry.path):
                _LOGGER.warning("%s links out of %s and is left out", key, self.root)
                return None
            if entry.is_dir():
                return key + "/"
            status = entry.stat()
        except OSError:
            return None  # gone since the folder was read, or a link to nothing
        return _info(key, status) if stat.S_ISREG(status.st_mode) else None

    # Reading.

    def local_path(self, key: str) -> Path:
        """Return where an object lies, so that it can be mapped into memory.

        Raises:
            UsageError: the key leaves the folder by `..`.
            AccessError: a link on the way leaves the folder.
            ObjectNotFoundError: no file can have this key.
        """
        parts = key.split("/")
        if ".." in parts:
            raise self._leaves(key)
        if any(part in {"", "."} or is_hidden(part) for part in parts) or "\0" in key:
            raise self._missing(key, "find")
        path = self.root / key
        if not self._contains(path):
            raise AccessError(
                f"{self.spec.uri}/{key} is a link that leaves {self.root}",
                hint="Give the folder that it links to as the data folder.",
                key=key,
                phase="find",
            )
        return path

    def head(self, key: str) -> ObjectInfo:
        """Return size and version of a file."""
        try:
            status = self.local_path(key).stat()
        except OSError as error:
            raise self._error(error, key, "head") from error
        if not stat.S_ISREG(status.st_mode):
            raise self._missing(key, "head")
        return _info(key, status)

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> Body:
        """Open a file; the version is the one that was open, whatever is renamed over it later."""
        self.head(key)  # opening a pipe would wait for a writer
        try:
            file = self.local_path(key).open("rb")
        except OSError as error:
            raise self._error(error, key, "get") from error
        with ExitStack() as unless_whole:
            # Whatever ends this early, Ctrl-C too: the file is closed.
            unless_whole.callback(file.close)
            try:
                info = _info(key, os.fstat(file.fileno()))
            except OSError as error:
                raise self._error(error, key, "get") from error
            if if_etag is not None and info.etag != if_etag:
                raise ObjectReplacedError(
                    f"{self.spec.uri}/{key} is no longer the file that was listed",
                    hint="List again; somebody wrote it in the meantime.",
                    key=key,
                    status=412,
                    phase="get",
                )
            unless_whole.pop_all()
        start, end = clip_range(start, end, info.size_bytes)
        return _LocalBody(file, info, start, end)

    # Writing.

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write a file under another name, then rename it."""
        with self._writing(key) as path:
            return _info(key, write_file(path, data, replace=True))

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        """Copy a file under another name, then rename it."""
        with self._writing(key) as target:
            return _info(key, write_file(target, path, replace=True))

    def abandon_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> int:
        """Return 0: nothing is written in parts."""
        del prefix, is_ours
        return 0

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        """Create a file."""
        with self._writing(key) as path:
            try:
                return _info(key, write_file(path, data, replace=False))
            except FileExistsError:
                raise self._lost(key, "it exists") from None

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectInfo:
        """Replace one version; every other writer through this class is kept out meanwhile."""
        with self._writing(key) as path:
            try:
                current = _info(key, path.stat()).etag
            except FileNotFoundError:
                raise self._lost(key, "it does not exist") from None
            if current != etag:
                raise self._lost(key, f"its version is {current}, not {etag}")
            return _info(key, write_file(path, data, replace=True))

    def delete(self, key: str) -> None:
        """Remove a file; folders stay."""
        try:
            path = self.local_path(key)
            path.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(error, key, "delete") from error
        with self._writing(key):
            path.unlink(missing_ok=True)

    @contextmanager
    def _writing(self, key: str) -> Iterator[Path]:
        try:
            path = self.local_path(key)
        except ObjectNotFoundError:
            raise UsageError(
                f"{key!r} cannot be a file below {self.root}",
                hint="A part of it is empty, `.`, or one of Quark's own names "
                f"({TEMPORARY_PREFIX}…).",
                key=key,
            ) from None
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with key_lock(self.root, key):
                yield path
        except QuarkError:
            raise
        except OSError as error:
            raise self._error(error, key, "put") from error

    # Errors.

    def _contains(self, path: str | Path) -> bool:
        real = os.path.realpath(path)
        return real == self._real_root or real.startswith(self._real_root.rstrip("/") + "/")

    def _need_root(self) -> None:
        if not self.root.is_dir():
            raise DataNotFoundError(
                f"the folder {self.root} does not exist", hint="Check the path.", key=""
            ) from None

    def _leaves(self, key: str) -> UsageError:
        return UsageError(f"{key!r} leaves {self.root}: `..` cannot be part of a key", key=key)

    def _missing(self, key: str, phase: str) -> ObjectNotFoundError:
        return ObjectNotFoundError(
            f"{self.spec.uri}/{key} does not exist", key=key, status=404, phase=phase
        )

    def _lost(self, key: str, reason: str) -> ConditionFailedError:
        return ConditionFailedError(
            f"{self.spec.uri}/{key} was not written: {reason}", key=key, status=412, phase="put"
        )

    def _error(self, error: OSError, key: str, phase: str) -> QuarkError:
        if isinstance(error, QuarkError):
            return error
        detail: dict[str, Any] = {"key": key, "phase": phase, "errno": error.errno}
        reason = f"{self.root / key}: {error.strerror or error}"
        if error.errno in {errno.EACCES, errno.EPERM}:
            return AccessError(reason, hint="Check who may read and write this folder.", **detail)
        if error.errno in _NOT_THERE and phase in {"head", "get", "delete"}:
            self._need_root()
            return self._missing(key, phase)
        return StoreError(reason, hint="Check the disk and the path.", **detail)


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    etag = f"{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"
    return ObjectInfo(key=key, size_bytes=status.st_size, etag=etag)


def _may_follow(folder: bytes, after: bytes) -> bool:
    """Say whether keys below `folder` can come after `after` in byte order."""
    return folder > after or after.startswith(folder)


class _LocalScheme:
    name = "file"

    def open(self, spec: StoreSpec) -> ObjectStore:
        """Return the store of a folder, which need not exist yet."""
        path = spec.uri.removeprefix("file://")
        if not path.startswith("/"):
            raise UsageError(
                f"{spec.uri}: a local store is an absolute folder", hint="file:///absolute/folder"
            )
        return LocalStore(spec, Path(os.path.normpath(path)))


STORE_SCHEME: StoreScheme = _LocalScheme()
