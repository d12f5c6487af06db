"""Objects of the cache that a loader worker has open: each mapped and leased once for all its splits."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from tools_utilities.cached_file import CachedFile
from tools_utilities.object_store import ObjectInfo


class SharedShard:
    """One split's hold on an object's bytes (a ShardBytes)."""

    path: Path | None

    def __init__(self, info: ObjectInfo, file: CachedFile, leave: Callable[[], None]) -> None:
        self.info = info
        self.path = file.path
        self._view = file.view
        self._leave: Callable[[], None] | None = leave

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), clipped to the end; no copy."""
        return self._view[start:end]

    def close(self) -> None:
        """Leave it; slices given out stay valid. Safe to call twice."""
        self._view = memoryview(b"")
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class OpenObjects:
    """Any number of threads may use it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._files: dict[ObjectInfo, tuple[CachedFile, int]] = {}
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

    def add(self, info: ObjectInfo, file: CachedFile) -> tuple[SharedShard, bool]:
        """Take over an entry that was just opened; says whether it is the first of its object."""
        with self._lock:
            known, holds = self._files.get(info, (file, 0))
            self._files[info] = (known, holds + 1)
        if known is not file:
            file.close()  # two threads opened it at once
        return self._shard(info, known), not holds

    def _shard(self, info: ObjectInfo, file: CachedFile) -> SharedShard:
        return SharedShard(info, file, lambda: self._leave(info))

    def _leave(self, info: ObjectInfo) -> None:
        with self._lock:
            file, holds = self._files[info]
            if holds > 1:
                self._files[info] = (file, holds - 1)
                return
            del self._files[info]
        file.close()
