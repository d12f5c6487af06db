"""Objects that a process has open: each mapped and leased once for all the splits that are read of it.

Opening costs a dozen system calls, and at each the interpreter's lock may go to another thread: with
a hundred splits open of a few objects that is most of what opening a split costs.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Protocol

from tools_utilities.object_store import ObjectInfo


class OpenFile(Protocol):
    """A mapped file that several may read."""

    @property
    def path(self) -> Path | None:
        """Where it lies."""
        ...

    @property
    def view(self) -> memoryview:
        """All of it; slices stay valid when it is closed."""
        ...

    def forget(self, start: int, end: int) -> None:
        """Take bytes [start, end) out of this process's memory until they are read again."""
        ...

    def touch(self) -> None:
        """Record that it was used until now."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


class SharedShard:
    """One split's hold on an object's bytes (a ShardBytes)."""

    path: Path | None

    def __init__(self, info: ObjectInfo, file: OpenFile, leave: Callable[[], None]) -> None:
        self.info = info
        self.path = file.path
        self._file: OpenFile | None = file
        self._view = file.view
        self._read_from, self._read_to = info.size_bytes, 0
        self._leave = leave

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), clipped to the end; no copy."""
        self._read_from, self._read_to = min(self._read_from, start), max(self._read_to, end)
        return self._view[start:end]

    def forget_pages(self) -> None:
        """Take what was read here out of this process's memory; it is read again when used again."""
        if self._file is not None and self._read_from < self._read_to:
            self._file.forget(self._read_from, self._read_to)

    def close(self) -> None:
        """Leave it; slices given out stay valid. Safe to call twice."""
        self.forget_pages()  # the others' hold would keep them
        self._view = memoryview(b"")
        file, self._file = self._file, None
        if file is not None:
            self._leave()


class OpenObjects:
    """Any number of threads may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files: dict[ObjectInfo, tuple[OpenFile, int]] = {}
        """Each with the number of its holds."""

    def __contains__(self, info: ObjectInfo) -> bool:
        """Tell whether an object is open: the lease keeps it in the cache."""
        return info in self._files

    def hold(self, info: ObjectInfo) -> SharedShard | None:
        """Return an object that is open already; None: it is not."""
        with self._lock:
            found = self._files.get(info)
            if found is None:
                return None
            file, holds = found
            self._files[info] = (file, holds + 1)
        return self._shard(info, file)

    def add(self, info: ObjectInfo, file: OpenFile) -> tuple[SharedShard, bool]:
        """Take over a file that was just opened; says whether it is the first of its object."""
        with self._lock:
            known, holds = self._files.get(info, (file, 0))
            self._files[info] = (known, holds + 1)
        if known is not file:
            file.close()  # two threads opened it at once
        return self._shard(info, known), not holds

    def _shard(self, info: ObjectInfo, file: OpenFile) -> SharedShard:
        return SharedShard(info, file, lambda: self._leave(info))

    def _leave(self, info: ObjectInfo) -> None:
        with self._lock:
            file, holds = self._files[info]
            if holds > 1:
                self._files[info] = (file, holds - 1)
                return
            del self._files[info]
        file.touch()
        file.close()
