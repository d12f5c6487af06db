"""Sidecars: what is worked out of an object once and kept beside it, such as where its lines begin.

A sidecar follows from an object's content alone, so it is never needed: one that is not there, or no
more, is made again when its object is opened for a second time. The last used are held
in memory; each is an entry of the disk cache too, checked as all are, written where room is free, and
the first to go when there is none.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from tools_utilities.cache_entry import EntryId, sidecar_digest
from tools_utilities.cache_publisher import CachePublisher
from tools_utilities.disk_cache import DiskCache
from tools_utilities.object_store import ObjectInfo

_LOGGER = logging.getLogger(__name__)
_MEMORY_BYTES = 16 << 20
"""Of the last used: where the lines of some 4 GB begin, of 1 KB each."""
_HELD_BYTES = 256
"""What holding one costs beside its content."""
_MOST_ASKED = 8192
_MOST_WAITING = 64

_Name = tuple[ObjectInfo, str]
Make = Callable[[], bytes]
_Place = tuple[DiskCache, str]
"""A cache, and the digest there."""


class Sidecars:
    """Those of one store's objects as one process sees them; any number of threads may call it."""

    def __init__(self, *, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._memory_bytes = memory_bytes
        self._held: OrderedDict[_Name, bytes] = OrderedDict()
        self._held_bytes = 0
        self._asked: OrderedDict[_Name, None] = OrderedDict()
        """What was asked for and is not there."""
        self._making: set[_Name] = set()
        self._lock = Lock()
        self._publisher = CachePublisher(most_waiting=_MOST_WAITING)

    def get(
        self,
        info: ObjectInfo,
        name: str,
        make: Make,
        *,
        cache: DiskCache | None,
        entry: EntryId | None,
    ) -> bytes | None:
        """Return an object's sidecar; None: do without it.

        It is made by whoever asks for it a second time; nobody waits for that.
        `cache`, `entry`: where it is kept for other processes too.
        """
        wanted = (info, name)
        with self._lock:
            found = self._held.get(wanted)
            if found is not None:
                self._held.move_to_end(wanted)
                return found
            if wanted in self._making:
                return None
            again = wanted in self._asked
            if again:
                self._making.add(wanted)
            else:
                self._remember(wanted)
        place = None if cache is None or entry is None else (cache, sidecar_digest(entry, name))
        if again:
            return self._make(wanted, make, place)
        found = _find(place)
        if found is not None:
            self._hold(wanted, found)
        return found

    def _remember(self, wanted: _Name) -> None:
        self._asked[wanted] = None
        if len(self._asked) > _MOST_ASKED:
            self._asked.popitem(last=False)

    def settle(self) -> None:
        """Wait until those that were made are on the disk."""
        self._publisher.settle()

    def _make(self, wanted: _Name, make: Make, place: _Place | None) -> bytes:
        try:
            found = _find(place)  # another process may have been first
            content = make() if found is None else found
            self._hold(wanted, content)
        finally:
            with self._lock:
                self._making.discard(wanted)
        if found is None and content and place is not None:
            self._publisher.offer(lambda: _keep(place, content))
        return content

    def _hold(self, wanted: _Name, content: bytes) -> None:
        with self._lock:
            if wanted not in self._held:
                self._held_bytes += len(content) + _HELD_BYTES
            self._held[wanted] = content
            while self._held_bytes > self._memory_bytes:
                self._held_bytes -= len(self._held.popitem(last=False)[1]) + _HELD_BYTES


def _find(place: _Place | None) -> bytes | None:
    if place is None:
        return None
    cache, digest = place
    try:
        return cache.find(digest)
    except OSError as error:  # the object's own opening says what is wrong with the folder
        _LOGGER.debug("no sidecar from the cache: %s", error)
        return None


def _keep(place: _Place, content: bytes) -> None:
    cache, digest = place
    try:
        if cache.find(digest) is None:
            cache.keep(digest, content)
    except OSError as error:
        _LOGGER.debug("a sidecar is not kept: %s", error)
