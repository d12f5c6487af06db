"""Opens objects of one store in one process: cache, fetch and read-ahead put together.

For stores that are fetched from; `in_place_reader.py` is for local folders.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from tools_utilities.activity import ACTIVITY
from tools_utilities.cache_entry import EntryId, entry_id
from tools_utilities.cache_publisher import CachePublisher
from tools_utilities.cached_file import CachedFile
from tools_utilities.disk_cache import DiskCache, Reservation
from tools_utilities.disk_space import is_no_room
from tools_utilities.errors import (
    ObjectReplacedError,
    QuarkError,
)
from tools_utilities.fetch import Fetched, Fetcher
from tools_utilities.fetch_attempt import is_md5
from tools_utilities.file_locks import HeldFile
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.open_files import check_open_files, is_open_file_limit
from tools_utilities.open_objects import OpenObjects
from tools_utilities.read_ahead import Flight, ReadAhead, Wanted
from tools_utilities.shard_bytes import MemoryShardBytes
from tools_utilities.shard_format import ShardBytes
from tools_utilities.sidecars import Sidecars
from tools_utilities.stream_statistics import StreamStatistics
from tools_utilities.uncached_bytes import MemoryPool, RangedShardBytes
from tools_utilities.use_plan import MAX_PLANNED, Places, UsePlan

_LOGGER = logging.getLogger(__name__)
_ENTRIES_KEPT = 8192
"""Identities that need not be hashed again; nothing is kept of every object of a dataset."""
_TURN_SECONDS = 300.0
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.05


class ShardReader:
    """Any number of threads may call it."""

    def __init__(
        self,
        store: ObjectStore,
        fetcher: Fetcher,
        statistics: StreamStatistics,
        *,
        cache: DiskCache | None,
        concurrency: int,
        read_ahead_bytes: int,
        memory_bytes: int,
    ) -> None:
        self.store = store
        self._fetcher = fetcher
        self._statistics = statistics
        self._cache = cache
        self._pool = MemoryPool(memory_bytes)
        self._publisher = CachePublisher()
        self._endpoint_id: str | None = None
        self._entries: dict[str, tuple[ObjectInfo, EntryId | None]] = {}
        self._sidecars = Sidecars(self._sidecar_place)
        self._objects = OpenObjects(self._sidecars)
        self._read_ahead = ReadAhead(
            store.head, self.bring, threads=concurrency, budget_bytes=read_ahead_bytes
        )

    # Opening.

    def open_shard(self, info: ObjectInfo) -> ShardBytes:
        """Return an object's verified bytes; an empty object asks nothing of the store."""
        with ACTIVITY.waiting(info.key):
            return self._open_claimed(info, self._read_ahead.claim(info.key))

    def open_key(self, key: str) -> ShardBytes:
        """Return the bytes of an object known by name alone."""
        flight = self._read_ahead.claim(key)
        if flight is not None:
            flight.landed.wait()
        known = flight.info if flight is not None else None
        return self._open_claimed(known or self.store.head(key), flight)

    def _open_claimed(self, info: ObjectInfo, flight: Flight | None) -> ShardBytes:
        if info.size_bytes == 0:
            return MemoryShardBytes(info.key, b"", info=info)
        started = time.monotonic()
        if flight is not None:
            flight.landed.wait()
            self._statistics.waited("read_ahead", time.monotonic() - started)
            if flight.error is not None and flight.info in {None, info}:
                raise flight.error
        ahead = flight is not None and flight.fetched and flight.info == info
        shard = self._open(info, ahead=ahead)
        self._statistics.loaded(time.monotonic() - started)
        return shard

    def _open(self, info: ObjectInfo, *, ahead: bool) -> ShardBytes:
        shard = self._open_again(info)
        if shard is not None:
            self._count(info, ahead=ahead, fetched=False)
            return shard
        found = self._in_cache(info, ahead=False)
        if found is not None:
            file, fetched = found
            self._count(info, ahead=ahead and not fetched, fetched=fetched)
            return self._objects.add(info, file)[0]
        self._statistics.add(objects_uncached=1, prefetch_misses=int(not ahead))
        pooled = self._pool.open(info, self._load)
        if pooled is not None:
            return pooled
        self._statistics.add(unverified=1)
        return RangedShardBytes(info, self._fetcher.fetch_view)

    def _open_again(self, info: ObjectInfo) -> ShardBytes | None:
        shard = self._objects.hold(info)
        entry = self._entry(info)
        if shard is not None and entry is not None and self._cache is not None:
            self._cache.passed(entry)
        return shard

    def _count(self, info: ObjectInfo, *, ahead: bool, fetched: bool) -> None:
        if fetched or ahead:
            self._statistics.add(
                objects_from_store=1, prefetch_hits=int(ahead), prefetch_misses=int(fetched)
            )
        else:
            self._statistics.add(objects_from_cache=1, bytes_from_cache=info.size_bytes)

    def _load(self, info: ObjectInfo) -> memoryview:
        return self._fetcher.fetch_bytes(info)[0]

    def read_range(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Return a byte range, from the cache where it has the object.

        A range that cannot be proven to be of the listed version is taken from the whole object,
        which can.
        """
        entry = self._entry(info)
        if entry is not None and self._cache is not None and info.size_bytes:
            try:
                file = self._cache.open(entry)
            except OSError as error:
                self._degrade(error)
            else:
                if file is not None:
                    data = bytes(file.view[start:end])
                    file.close()
                    return data
        try:
            return self._fetcher.fetch_range(info, start, end)
        except ObjectReplacedError:
            if not is_md5(info.etag):
                raise
        shard = self._open(info, ahead=False)
        data = bytes(shard.read(start, end))
        shard.close()
        return data

    # The cache.

    def _entry(self, info: ObjectInfo) -> EntryId | None:
        if self._cache is None:
            return None
        known = self._entries.get(info.key)
        if known is not None and known[0] == info:
            return known[1]
        if self._endpoint_id is None:
            self._endpoint_id = self.store.endpoint_id
        entry = entry_id(self._endpoint_id, info)
        if len(self._entries) >= _ENTRIES_KEPT:
            self._entries.clear()
        self._entries[info.key] = (info, entry)
        return entry

    def _sidecar_place(self, info: ObjectInfo) -> tuple[DiskCache, EntryId] | None:
        cache, entry = self._cache, self._entry(info)
        return None if cache is None or entry is None else (cache, entry)

    def _in_cache(self, info: ObjectInfo, *, ahead: bool) -> tuple[CachedFile, bool] | None:
        """Return the entry and whether it was fetched for this; None: go without the cache."""
        entry = self._entry(info)
        cache = self._cache
        if entry is None or cache is None:
            return None
        if not ahead:
            cache.passed(entry)
        try:
            return self._find_or_fetch(cache, entry, info, ahead=ahead)
        except QuarkError:
            raise
        except FileNotFoundError as error:
            return self._recreate(cache, entry, info, error)
        except OSError as error:
            self._degrade(error)
            return None

    def _recreate(
        self, cache: DiskCache, entry: EntryId, info: ObjectInfo, reason: OSError
    ) -> tuple[CachedFile, bool] | None:
        """Begin a new cache: somebody deleted the folder, or parts of it, meanwhile."""
        _LOGGER.info("making the cache folder %s again: %s", cache.folder, reason)
        try:
            cache.create()
            return self._find_or_fetch(cache, entry, info, ahead=False)
        except QuarkError:
            raise
        except OSError as error:
            self._degrade(error)
            return None

    def _find_or_fetch(
        self, cache: DiskCache, entry: EntryId, info: ObjectInfo, *, ahead: bool
    ) -> tuple[CachedFile, bool] | None:
        started = time.monotonic()
        pause = _FIRST_PAUSE_SECONDS
        while time.monotonic() - started < _TURN_SECONDS:
            file = cache.open(entry)
            if file is not None:
                return file, False
            turn = cache.try_turn(entry)
            if turn is not None:
                return self._take_turn(cache, entry, info, turn, ahead=ahead)
            # Another thread or process is fetching it.
            time.sleep(pause)
            self._statistics.waited("other_process", pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return None

    def _take_turn(
        self, cache: DiskCache, entry: EntryId, info: ObjectInfo, turn: HeldFile, *, ahead: bool
    ) -> tuple[CachedFile, bool] | None:
        """Download an object. Whoever publishes it ends the turn: a thread, if read `ahead`."""
        handed_over = False
        try:
            file = cache.open(entry)
            if file is not None:
                return file, False
            reservation = cache.reserve(entry, ahead=ahead)
            if reservation is None:
                return None
            try:
                fetched = self._fetcher.fetch(info, reservation)
                if not ahead:
                    return reservation.publish(fetched.crc32c), True
            except BaseException as error:
                reservation.discard()
                if not _is_full(error):
                    raise
                cache.warn_full(info.size_bytes)
                return None
            file = reservation.lend()
            handed_over = True
            self._publisher.put(lambda: self._publish(cache, reservation, fetched, turn))
            return file, True
        finally:
            if not handed_over:
                cache.end_turn(turn)

    def _publish(
        self, cache: DiskCache, reservation: Reservation, fetched: Fetched, turn: HeldFile
    ) -> None:
        try:
            reservation.publish(fetched.crc32c).close()
        except OSError as error:
            # Whoever reads it now can go on: its bytes are mapped.
            with suppress(OSError):  # what cannot be removed now is swept at the next start
                reservation.discard()
            if is_open_file_limit(error):
                size = reservation.entry.size_bytes
                _LOGGER.warning("an object of %d bytes is not kept in the cache: %s", size, error)
            elif is_no_room(error):
                cache.warn_full(reservation.entry.size_bytes)
            else:
                self._degrade(error)
        finally:
            cache.end_turn(turn)

    def settle(self) -> None:
        """Wait until everything that was read ahead is durable in the cache, and what was made of it."""
        self._publisher.settle()
        self._sidecars.settle()

    def _degrade(self, error: OSError) -> None:
        """Go on without the cache, saying so once."""
        check_open_files(error)
        cache, self._cache = self._cache, None
        if cache is not None:
            _LOGGER.warning(
                "the cache folder %s cannot be used any more (%s); reading without a cache",
                cache.folder,
                error,
            )

    # Reading ahead.

    def set_order(self, infos: Sequence[ObjectInfo]) -> None:
        """Say what is read next, soonest first; replaces what was said before."""
        self._read_ahead.set_order(Wanted(key=info.key, info=info) for info in infos)
        entries = [self._entry(info) for info in infos]
        if self._cache is not None:
            try:
                self._cache.set_order([entry.digest for entry in entries if entry is not None])
            except OSError as error:
                self._degrade(error)

    def plan_uses(self, infos: Sequence[ObjectInfo], uses: Callable[[], Sequence[Places]]) -> None:
        """Say when each object is read; see `UsePlan`. Costs nothing before the first eviction."""
        if self._cache is not None and len(infos) <= MAX_PLANNED:
            name = self.store.endpoint_id
            entries = (entry_id(name, info) for info in infos)
            digests = (None if entry is None else entry.digest for entry in entries)
            self._cache.set_plan(UsePlan(lambda: list(digests), uses))

    def opened_elsewhere(self, info: ObjectInfo) -> None:
        """Note that another process has opened an object that was brought for it."""
        flight, entry = self._read_ahead.claim(info.key), self._entry(info)
        if self._cache is not None and entry is not None:
            self._cache.passed(entry)
        fetched = flight is not None and flight.landed.is_set() and flight.fetched
        self._count(info, ahead=fetched, fetched=False)

    def prefetch_keys(self, keys: Sequence[str]) -> None:
        """Read ahead objects known by name alone, after what was asked for before."""
        self._read_ahead.add(Wanted(key=key, info=None) for key in keys)

    def bring(self, info: ObjectInfo) -> bool:
        """Bring an object near without opening it; say whether it was fetched for this."""
        if info.size_bytes == 0:
            return False
        found = self._in_cache(info, ahead=True)
        if found is not None:
            found[0].close()
            return found[1]
        if self._cache is not None:
            return False
        pooled = self._pool.open(info, self._load)
        if pooled is None:
            return False
        pooled.close()
        return True

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics."""
        quarantined = self._cache.num_quarantined if self._cache is not None else 0
        return {**self._statistics.to_dict(), "quarantined": quarantined}


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and not isinstance(error, QuarkError) and is_no_room(error)
