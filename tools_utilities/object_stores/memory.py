"""A store in this process's memory, shared by its URI: the fake of every test that needs a store.

Versions are numbered, so an etag never comes back (as a content hash may). Costs O(n log n) a
listing in the number of keys.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from threading import Lock

from tools_utilities.errors import (
    ConditionFailedError,
    ObjectNotFoundError,
    ObjectReplacedError,
    UsageError,
)
from tools_utilities.object_store import Folder, ObjectInfo, ObjectStore, StoreScheme, StoreSpec
from tools_utilities.object_stores._bodies import BytesBody, clip_range, folder_pages


class MemoryStore:
    """A bucket held by this process."""

    writable = True

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self.endpoint_id = spec.uri
        self._lock = Lock()
        self._objects: dict[str, tuple[ObjectInfo, bytes]] = {}
        self._versions = count(1)

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects there were at the time of the call."""
        with self._lock:
            objects = dict(self._objects)
        # Code points sort as their UTF-8 bytes do.
        keys = sorted(key for key in objects if key.startswith(prefix))
        first = bisect_right(keys, start_after) if start_after else 0
        return (objects[key][0] for key in islice(keys, first, None))

    def list_folder(self, prefix: str, *, max_pages: int | None = None) -> Iterator[Folder]:
        """Yield pages of what lies directly under `prefix`."""
        return islice(folder_pages(self._folder_entries(prefix)), max_pages)

    def _folder_entries(self, prefix: str) -> Iterator[ObjectInfo | str]:
        infos = list(self.list(prefix))
        keys = [info.key for info in infos]
        position = 0
        while position < len(infos):
            name, slash, _ = keys[position][len(prefix) :].partition("/")
            if slash:
                folder = f"{prefix}{name}/"
                yield folder
                # "0" is the character after "/": the first key beyond the folder.
                position = bisect_left(keys, f"{prefix}{name}0", lo=position)
            else:
                yield infos[position]
                position += 1

    def head(self, key: str) -> ObjectInfo:
        """Return what is known of one object."""
        return self._find(key)[0]

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> BytesBody:
        """Return a range of an object."""
        info, data = self._find(key)
        if if_etag is not None and info.etag != if_etag:
            raise ObjectReplacedError(
                f"{self.spec.uri}/{key} is no longer the object that was listed",
                hint="List again; somebody wrote it in the meantime.",
                key=key,
                status=412,
                phase="get",
            )
        start, end = clip_range(start, end, len(data))
        return BytesBody(info, data[start:end])

    def _find(self, key: str) -> tuple[ObjectInfo, bytes]:
        with self._lock:
            found = self._objects.get(key)
        if found is None:
            raise ObjectNotFoundError(
                f"{self.spec.uri}/{key} does not exist", key=key, status=404, phase="get"
            )
        return found

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object."""
        with self._lock:
            return self._write(key, data)

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        """Write an object from a file."""
        return self.put(key, path.read_bytes())

    def abandon_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> int:
        """Return 0: nothing is written in parts."""
        del prefix, is_ours
        return 0

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        """Create an object."""
        with self._lock:
            if key in self._objects:
                raise self._lost(key, "it exists")
            return self._write(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectInfo:
        """Replace one version of an object."""
        with self._lock:
            found = self._objects.get(key)
            if found is None:
                raise self._lost(key, "it does not exist")
            if found[0].etag != etag:
                raise self._lost(key, f"its version is {found[0].etag}, not {etag}")
            return self._write(key, data)

    def _write(self, key: str, data: bytes) -> ObjectInfo:
        if not key:
            raise UsageError("an object's key cannot be empty")
        info = ObjectInfo(key=key, size_bytes=len(data), etag=f"v{next(self._versions)}")
        self._objects[key] = (info, bytes(data))
        return info

    def _lost(self, key: str, reason: str) -> ConditionFailedError:
        return ConditionFailedError(
            f"{self.spec.uri}/{key} was not written: {reason}", key=key, status=412, phase="put"
        )

    def delete(self, key: str) -> None:
        """Remove an object."""
        with self._lock:
            self._objects.pop(key, None)


_STORES: dict[str, MemoryStore] = {}
_STORES_LOCK = Lock()


class _MemoryScheme:
    name = "memory"

    def open(self, spec: StoreSpec) -> ObjectStore:
        """Return the store of this URI; the same one every time in a process."""
        with _STORES_LOCK:
            return _STORES.setdefault(spec.uri, MemoryStore(spec))


STORE_SCHEME: StoreScheme = _MemoryScheme()
