"""Makes the N-th call of a store or a file system fail, whichever code makes it.

`Calls` counts every call of a `CountedStore` and, inside `failing_files`, of the functions of `os` and
of files opened by `open`; the one whose number it was given fails in the way it was told.
"""

import builtins
import errno
import io
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools_utilities.errors import ConditionFailedError, StoreError
from tools_utilities.object_store import StoreSpec
from tools_utilities.object_stores import memory

FILE_KINDS = ("ENOSPC", "EIO", "EMFILE", "interrupt")
STORE_KINDS = ("503", "reset", "time-out", "lost reply", "interrupt")
_OPENING = {"open", "scandir", "listdir", "mkdir"}
_WRITING = {
    *("write", "pwrite", "fsync", "fdatasync", "posix_fallocate", "ftruncate", "mkdir", "link"),
    *("rename", "replace", "open"),
}
_FUNCTIONS = (
    *(
        "open",
        "write",
        "pwrite",
        "read",
        "pread",
        "fsync",
        "fdatasync",
        "rename",
        "replace",
        "link",
    ),
    *("unlink", "remove", "mkdir", "rmdir", "listdir", "scandir", "ftruncate", "posix_fallocate"),
    *("stat", "lstat", "fstat", "utime"),
)


class Calls:
    """Counts calls; the one of number `strike` fails. Number 0: none does."""

    def __init__(self, kind: str = "", strike: int = 0) -> None:
        self.kind, self.strike = kind, strike
        self.num_calls = 0
        self.struck = ""
        """The call that failed."""
        self._lock = threading.Lock()

    def is_due(self, name: str) -> bool:
        """Count a call, if a fault of this kind can meet it; say whether it is to fail."""
        if (self.kind == "EMFILE" and name not in _OPENING) or (
            self.kind == "ENOSPC" and name not in _WRITING
        ):
            return False
        # In other threads an interrupt is never raised: Python gives it to the main one.
        if self.kind == "interrupt" and threading.current_thread() is not threading.main_thread():
            return False
        with self._lock:
            self.num_calls += 1
            due = self.num_calls == self.strike
            if due:
                self.struck = name
            return due

    def fail_file(self, name: str) -> None:
        """Raise, if a call of the file system is to fail."""
        if self.is_due(name):
            if self.kind == "interrupt":
                raise KeyboardInterrupt
            number = getattr(errno, self.kind)
            raise OSError(number, os.strerror(number))


class CountedStore(memory.MemoryStore):
    """A store in memory, registered under its URI, whose calls are counted and fail as told."""

    def __init__(self) -> None:
        super().__init__(StoreSpec(uri=f"memory://counted-{uuid.uuid4().hex}"))
        self.calls = Calls()
        memory._STORES[self.spec.uri] = self

    def _asked(self, name: str, do: Callable[[], Any], *, conditional: bool = False) -> Any:
        if not self.calls.is_due(name):
            return do()
        kind = self.calls.kind
        if kind == "interrupt":
            raise KeyboardInterrupt
        if kind == "lost reply" and name.startswith("put"):
            do()
        words = {"503": "503 SlowDown", "time-out": "no answer in 10 s"}.get(
            kind, "connection reset"
        )
        if conditional:
            raise ConditionFailedError(
                f"nobody can say whether it was written ({words})", unknown=True
            )
        raise StoreError(words, status=503 if kind == "503" else None, transient=True)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[Any]:
        listed = super().list
        found: Iterator[Any] = self._asked("list", lambda: listed(prefix, start_after=start_after))
        return found

    def list_folder(self, prefix: str, *, max_pages: int | None = None) -> Iterator[Any]:
        listed = super().list_folder
        found: Iterator[Any] = self._asked(
            "list_folder", lambda: listed(prefix, max_pages=max_pages)
        )
        return found

    def head(self, key: str) -> Any:
        head = super().head
        return self._asked("head", lambda: head(key))

    def get(self, key: str, **options: Any) -> Any:
        get = super().get
        return self._asked("get", lambda: get(key, **options))

    def put(self, key: str, data: bytes) -> Any:
        put = super().put
        return self._asked("put", lambda: put(key, data))

    def put_file(self, key: str, path: Path) -> Any:
        return self.put(key, path.read_bytes())

    def put_if_absent(self, key: str, data: bytes) -> Any:
        put = super().put_if_absent
        return self._asked("put_if_absent", lambda: put(key, data), conditional=True)

    def put_if_match(self, key: str, data: bytes, etag: str) -> Any:
        put = super().put_if_match
        return self._asked("put_if_match", lambda: put(key, data, etag), conditional=True)

    def delete(self, key: str) -> None:
        delete = super().delete
        self._asked("delete", lambda: delete(key))


@contextmanager
def failing_files(calls: Calls, below: Path) -> Iterator[None]:
    """Count the calls about files below a folder (and about open descriptors) while the block lasts."""
    before = {name: getattr(os, name) for name in _FUNCTIONS}
    opened, io_opened = builtins.open, io.open

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if _concerns(args[0] if args else None, below):
                calls.fail_file(name)
            return function(*args, **options)

        return call

    def open_file(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        if not _concerns(file, below) or isinstance(file, int) or options.get("opener"):
            return io_opened(file, mode, *args, **options)
        calls.fail_file("open")
        return _file(file, mode, calls, io_opened, args, options)

    for name, function in before.items():
        setattr(os, name, counted(name, function))
    builtins.open = io.open = open_file
    try:
        yield
    finally:
        builtins.open, io.open = opened, io_opened
        for name, function in before.items():
            setattr(os, name, function)


def _file(path: Any, mode: str, calls: Calls, real: Any, args: Any, options: Any) -> Any:
    """Open a file whose writes are counted; other files as they are."""
    if not set(mode) & set("wax+"):
        return real(path, mode, *args, **options)

    class Raw(io.FileIO):
        def write(self, data: Any) -> int:
            calls.fail_file("write")
            return super().write(data)

    raw = Raw(path, mode.replace("b", "").replace("t", ""))
    buffering = args[0] if args else options.get("buffering", -1)
    if "b" in mode and buffering == 0:
        return raw
    file = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
    if "b" in mode:
        return file
    return io.TextIOWrapper(
        file, encoding=options.get("encoding", "utf-8"), newline=options.get("newline")
    )


def _concerns(what: Any, below: Path) -> bool:
    if isinstance(what, int):
        return what > 2
    try:
        return os.fsdecode(os.fspath(what)).startswith(str(below))
    except TypeError:
        return False
