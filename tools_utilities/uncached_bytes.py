"""ShardBytes without a disk cache: whole objects in a bounded pool of memory, else ranges."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from threading import Lock, RLock

from tools_utilities.object_store import ObjectInfo

_FIRST_WINDOW_BYTES = 256 << 10
_WINDOW_BYTES = 4 << 20
_WINDOWS_KEPT = 2
_LARGEST_SHARE = 4
_ENTRY_BYTES = 640
"""What an object in the pool takes beside its own bytes; counts, since objects may be tiny."""
MOST_UNUSED = 16_384


class RangedShardBytes:
    """Reads ranges from the store as they are asked for; holds at most two windows of 4 MiB.

    A window begins at 256 KiB and doubles while reads go on where the last one ended, so that many
    open pieces of one huge object hold little each. Reads larger than a window are fetched exactly.
    """

    path: Path | None = None

    def __init__(
        self, info: ObjectInfo, read_range: Callable[[ObjectInfo, int, int], bytes | memoryview]
    ) -> None:
        self.info = info
        self._read_range = read_range
        self._windows: list[tuple[int, memoryview]] = []
        """(start, bytes), the last used at the end."""
        self._size = _FIRST_WINDOW_BYTES
        self._next = -1
        """Where the last window ended."""
        self._lock = Lock()

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), clipped to the object's end."""
        end = min(end, self.info.size_bytes)
        if start >= end:
            return memoryview(b"")
        with self._lock:
            for place, (first, window) in enumerate(self._windows):
                if first <= start and end <= first + len(window):
                    self._windows.append(self._windows.pop(place))
                    return window[start - first : end - first]
            going_on = any(first <= start <= self._next for first, _ in self._windows)
            self._size = min(2 * self._size, _WINDOW_BYTES) if going_on else _FIRST_WINDOW_BYTES
            if end - start >= self._size:
                return memoryview(self._read_range(self.info, start, end))
            stop = min(start + self._size, self.info.size_bytes)
            window = memoryview(self._read_range(self.info, start, stop))
            self._windows = [*self._windows[1 - _WINDOWS_KEPT :], (start, window)]
            self._next = stop
            return window[: end - start]

    def close(self) -> None:
        """Forget the windows; slices stay valid."""
        with self._lock:
            self._windows.clear()


class _Pooled:
    """A whole object in memory, or on its way there."""

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self.users = 0
        self.lock = Lock()
        self.data: bytes | memoryview | None = None


class MemoryPool:
    """Whole objects, verified, within a byte budget; unused ones stay until room is needed.

    Of tiny objects at most `MOST_UNUSED` stay: a budget full of them would be a hundred thousand.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._used_bytes = 0
        # Shards are closed where they are collected too, which may be within any line below.
        self._lock = RLock()
        self._objects: dict[ObjectInfo, _Pooled] = {}
        self._unused: OrderedDict[ObjectInfo, None] = OrderedDict()
        """Those without users, the last used at the end."""

    def open(
        self, info: ObjectInfo, load: Callable[[ObjectInfo], bytes | memoryview]
    ) -> "PooledShardBytes | None":
        """Return an object, loading it once however many threads ask; None: it does not fit."""
        held = self._take(info)
        if held is None:
            return None
        try:
            with held.lock:
                if held.data is None:
                    held.data = load(info)
        except BaseException:
            self._drop(info, held)
            raise
        return PooledShardBytes(self, info, held)

    def _take(self, info: ObjectInfo) -> _Pooled | None:
        with self._lock:
            held = self._objects.get(info)
            if held is None:
                if info.size_bytes * _LARGEST_SHARE > self._budget_bytes:
                    return None
                num_bytes = info.size_bytes + _ENTRY_BYTES
                if not self._make_room(num_bytes):
                    return None
                held = self._objects[info] = _Pooled(num_bytes)
                self._used_bytes += num_bytes
            self._unused.pop(info, None)
            held.users += 1
            return held

    def _make_room(self, num_bytes: int) -> bool:
        while self._used_bytes + num_bytes > self._budget_bytes and self._unused:
            self._forget_oldest()
        return self._used_bytes + num_bytes <= self._budget_bytes

    def _forget_oldest(self) -> None:
        info, _ = self._unused.popitem(last=False)
        self._used_bytes -= self._objects.pop(info).num_bytes

    def _drop(self, info: ObjectInfo, held: _Pooled) -> None:
        """Take back what could not be loaded."""
        with self._lock:
            held.users -= 1
            if held.users == 0 and self._objects.get(info) is held:
                del self._objects[info]
                self._used_bytes -= held.num_bytes

    def release(self, info: ObjectInfo, held: _Pooled) -> None:
        """Say that one user is done."""
        with self._lock:
            held.users -= 1
            if held.users == 0 and self._objects.get(info) is held:
                self._unused[info] = None
                while len(self._unused) > MOST_UNUSED:
                    self._forget_oldest()


class PooledShardBytes:
    """An object in the pool; keeps its room until closed."""

    path: Path | None = None

    def __init__(self, pool: MemoryPool, info: ObjectInfo, held: _Pooled) -> None:
        self.info = info
        self._pool = pool
        self._held: _Pooled | None = held
        self._view = memoryview(held.data or b"").toreadonly()

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), clipped to the end; no copy."""
        return self._view[start:end]

    def close(self) -> None:
        """Let the pool reuse the room."""
        held, self._held = self._held, None
        if held is not None:
            self._view = memoryview(b"")
            self._pool.release(self.info, held)

    def __del__(self) -> None:
        self.close()
