"""Sidecars: what is worked out of an object once and kept beside it: where its lines begin, what it decodes to.

A sidecar follows from an object's content alone, so it is never needed: one that is not there, or no
more, is made again when its object is opened for a second time. Each is an entry of the disk cache,
checked as all are, written where room is free, and the first to go when there is none; the last used
of the small ones are held in memory too.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import closing
from threading import Lock

from tools_utilities.cache_entry import EntryId, sidecar_digest
from tools_utilities.cache_publisher import CachePublisher
from tools_utilities.cached_file import CachedFile
from tools_utilities.disk_cache import DiskCache
from tools_utilities.object_store import ObjectInfo
from tools_utilities.open_files import are_scarce
from tools_utilities.spare_entry import SpareContent, keep_spare

_LOGGER = logging.getLogger(__name__)
_MEMORY_BYTES = 16 << 20
"""Of the last used: where the lines of some 4 GB begin, of 1 KB each."""
_HELD_BYTES = 256
"""What holding one costs beside its content."""
_MOST_ASKED = 8192
_MOST_WAITING, _MOST_WAITING_BYTES = 64, 64 << 20
"""To be written; of more than that some are made another time."""

_Name = tuple[ObjectInfo, str]
Make = Callable[[], bytes]
PlaceOf = Callable[[ObjectInfo], tuple[DiskCache, EntryId] | None]
"""Which cache an object's sidecars are kept in, and the object's own entry there."""
_Place = tuple[DiskCache, str]
"""A cache, and the digest there."""


class Sidecars:
    """Those of one store's objects as one process sees them; any number of threads may call it."""

    def __init__(self, place_of: PlaceOf, *, memory_bytes: int = _MEMORY_BYTES) -> None:
        self._place_of = place_of
        self._memory_bytes = memory_bytes
        self._held: OrderedDict[_Name, bytes] = OrderedDict()
        self._held_bytes = 0
        self._asked: OrderedDict[_Name, None] = OrderedDict()
        """What was asked for and is not there."""
        self._making: set[_Name] = set()
        self._waiting_bytes = 0
        self._lock = Lock()
        self._publisher = CachePublisher(most_waiting=_MOST_WAITING)
        self._began_ns = time.time_ns()

    def get(self, info: ObjectInfo, name: str, make: Make) -> bytes | None:
        """Return a small sidecar of an object; None: do without it.

        It is made by whoever asks for it a second time; nobody waits for that.
        """
        wanted = (info, name)
        with self._lock:
            found = self._held.get(wanted)
            if found is not None:
                self._held.move_to_end(wanted)
                return found
            if wanted in self._making or info.etag is None:
                return None
            again = self._was_asked(wanted)
            if again:
                self._making.add(wanted)
        place = self._place(info, name)
        if again:
            return self._make(wanted, make, place)
        found = _read(place)
        if found is not None:
            self._hold(wanted, found)
        return found

    def is_read_again(self, info: ObjectInfo, name: str, *, fetched_ns: int | None) -> bool:
        """Tell whether a large sidecar is worth looking for, and keeping: not when it is wanted first.

        `fetched_ns`: when the object came into the cache; one that lay there before has been read.
        """
        with self._lock:
            again = self._was_asked((info, name))
        return again or (fetched_ns is not None and fetched_ns < self._began_ns)

    def open(self, info: ObjectInfo, name: str) -> CachedFile | None:
        """Return a large sidecar of an object, leased; None: do without it.

        Each that is open takes two open files, so a low limit is left to what cannot be done without.
        """
        found = _find(self._place(info, name))
        if found is not None and are_scarce(found.fd):
            found.close()
            return None
        return found

    def offer(
        self,
        info: ObjectInfo,
        name: str,
        content: Callable[[], SpareContent | None],
        *,
        about_bytes: int,
    ) -> None:
        """Keep a large sidecar that `open` did not find, if there is room; `content` is then called at once."""
        place = self._place(info, name)
        if place is None or not _has_room(place, about_bytes) or not self._may_wait(about_bytes):
            return
        made = None
        try:
            made = content()
        finally:
            if made is None:
                self._written(about_bytes)
        if made is not None:
            self._keep(place, made, about_bytes)

    def settle(self) -> None:
        """Wait until those that were made are on the disk."""
        self._publisher.settle()

    def _was_asked(self, wanted: _Name) -> bool:
        if wanted in self._asked:
            return True
        self._asked[wanted] = None
        if len(self._asked) > _MOST_ASKED:
            self._asked.popitem(last=False)
        return False

    def _place(self, info: ObjectInfo, name: str) -> _Place | None:
        found = self._place_of(info)
        return None if found is None else (found[0], sidecar_digest(found[1], name))

    def _make(self, wanted: _Name, make: Make, place: _Place | None) -> bytes:
        try:
            found = _read(place)  # another process may have been first
            content = make() if found is None else found
            self._hold(wanted, content)
        finally:
            with self._lock:
                self._making.discard(wanted)
        num_bytes = len(content)
        if found is None and content and place is not None and self._may_wait(num_bytes):
            self._keep(place, SpareContent(num_bytes, [memoryview(content)]), num_bytes)
        return content

    def _hold(self, wanted: _Name, content: bytes) -> None:
        with self._lock:
            if wanted not in self._held:
                self._held_bytes += len(content) + _HELD_BYTES
            self._held[wanted] = content
            while self._held_bytes > self._memory_bytes:
                self._held_bytes -= len(self._held.popitem(last=False)[1]) + _HELD_BYTES

    def _may_wait(self, num_bytes: int) -> bool:
        """Count what is to be written, unless too much waits for that; `_written` takes it off again."""
        with self._lock:
            if self._waiting_bytes and self._waiting_bytes + num_bytes > _MOST_WAITING_BYTES:
                return False
            self._waiting_bytes += num_bytes
            return True

    def _keep(self, place: _Place, content: SpareContent, counted_bytes: int) -> None:
        """Have it written soon."""

        def write() -> None:
            try:
                _write(place, content)
            finally:
                self._written(counted_bytes)

        if not self._publisher.offer(write):
            self._written(counted_bytes)

    def _written(self, num_bytes: int) -> None:
        with self._lock:
            self._waiting_bytes -= num_bytes


def _find(place: _Place | None) -> CachedFile | None:
    if place is None:
        return None
    cache, digest = place
    try:
        return cache.find(digest)
    except OSError as error:  # the object's own opening says what is wrong with the folder
        _LOGGER.debug("no sidecar from the cache: %s", error)
        return None


def _read(place: _Place | None) -> bytes | None:
    file = _find(place)
    if file is None:
        return None
    with closing(file):
        return bytes(file.view)


def _has_room(place: _Place, num_bytes: int) -> bool:
    try:
        return place[0].has_spare_room(num_bytes)
    except OSError as error:
        _LOGGER.debug("no room for a sidecar: %s", error)
        return False


def _write(place: _Place, content: SpareContent) -> None:
    cache, digest = place
    try:
        keep_spare(cache, digest, content)
    except OSError as error:
        _LOGGER.debug("a sidecar is not kept: %s", error)
