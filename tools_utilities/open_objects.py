"""Objects that a process has open: each mapped and leased once for all the splits that are read of it.

Opening costs a dozen system calls, and at each the interpreter's lock may go to another thread: with
a hundred splits open of a few objects that is most of what opening a split costs.
"""

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Protocol

from tools_utilities.cached_file import CachedFile
from tools_utilities.object_store import ObjectInfo
from tools_utilities.sidecars import Sidecars
from tools_utilities.spare_entry import SpareContent


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

    def bring(self, start: int, end: int) -> None:
        """Map the pages of bytes [start, end) now."""
        ...

    def touch(self) -> None:
        """Record that it was used until now."""
        ...

    def close(self) -> None:
        """Let it go."""
        ...


MakeSidecar = Callable[[memoryview, Callable[[int, int], None]], bytes]
"""(an object's bytes, what is told of bytes [start, end) that are not needed again) → a sidecar."""


class SharedShard:
    """One split's hold on an object's bytes (a ShardBytes)."""

    path: Path | None

    def __init__(
        self, info: ObjectInfo, file: OpenFile, leave: Callable[[], None], sidecars: Sidecars
    ) -> None:
        self.info = info
        self.path = file.path
        self._file: OpenFile | None = file
        self._view = file.view
        self._read_from, self._read_to = info.size_bytes, 0
        self._leave = leave
        self._sidecars = sidecars
        self._read_again: set[str] = set()

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), clipped to the end; no copy."""
        self._read_from, self._read_to = min(self._read_from, start), max(self._read_to, end)
        return self._view[start:end]

    def sidecar(self, name: str, make: MakeSidecar) -> bytes | None:
        """Return what `make` makes of the whole object, if it is worth it by now.

        It must follow from the bytes alone; another version of `make` has another name.
        """
        file = self._file
        if file is None:
            return None
        return self._sidecars.get(self.info, name, lambda: make(file.view, file.forget))

    def open_sidecar(self, name: str) -> CachedFile | None:
        """Return what was kept before under a name, leased; None: it is not there, or not worth a look."""
        try:
            fetched_ns = None if self.path is None else self.path.stat().st_mtime_ns
        except OSError:  # it had another name before it was durable, or is out of reach by now
            fetched_ns = None
        if not self._sidecars.is_read_again(self.info, name, fetched_ns=fetched_ns):
            return None
        self._read_again.add(name)
        return self._sidecars.open(self.info, name)

    def offer_sidecar(
        self, name: str, content: Callable[[], SpareContent | None], *, about_bytes: int
    ) -> None:
        """Let something large be kept that `open_sidecar` did not find, if it is worth it by now.

        `content` is called at once or not at all; None is nothing.
        """
        if name in self._read_again:
            self._sidecars.offer(self.info, name, content, about_bytes=about_bytes)

    def bring_pages(self, start: int, end: int) -> None:
        """Map bytes [start, end) now, on this thread, rather than page by page where they are read."""
        if self._file is not None:
            self._file.bring(start, end)

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

    def __init__(self, sidecars: Sidecars) -> None:
        self._sidecars = sidecars
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
        return SharedShard(info, file, lambda: self._leave(info), self._sidecars)

    def _leave(self, info: ObjectInfo) -> None:
        with self._lock:
            file, holds = self._files[info]
            if holds > 1:
                self._files[info] = (file, holds - 1)
                return
            del self._files[info]
        file.touch()
        file.close()
