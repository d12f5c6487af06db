"""How a loader worker reads objects that its owner brings into the cache.

The owner has listed the data, has a client for the store and reads ahead; a worker waits for an
entry of the cache and maps it. So each object is downloaded once, and a worker needs neither a client
nor what that takes to import. Where nobody is bringing an object (the cache is full, a fetch has
failed), the worker does what a process alone would do: it fetches, and meets its own error.
"""

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from brain.ml.dataset_shards.epoch_plan import EpochPlan
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.split_source import OpenedSplit, ShardReader, SplitSource, StoreSource
from brain.ml.dataset_shards.split_table import SplitTable
from tools_utilities.cache_entry import EntryId, entry_id
from tools_utilities.cached_file import CachedFile
from tools_utilities.disk_cache import DiskCache
from tools_utilities.object_store import ObjectInfo
from tools_utilities.open_objects import OpenObjects
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.shard_format import ShardBytes
from tools_utilities.sidecars import Sidecars
from tools_utilities.stream_statistics import StreamStatistics

_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.02
_PATIENCE_SECONDS = 0.3
"""Waited for an object that nobody fetches; long enough for the owner to hear of it."""
_CHECK_SECONDS = 0.1


class NamedStore:
    """A store whose name is known: nothing is made to tell it."""

    def __init__(self, endpoint_id: str, manager: ShardReader) -> None:
        self.endpoint_id = endpoint_id
        self._manager = manager

    def __getattr__(self, name: str) -> Any:
        """Return what the real store has; making it may import a client."""
        return getattr(self._manager.store, name)


class NearbyShards:
    """A manager for one worker process: the cache first, the real manager when that fails."""

    def __init__(
        self,
        manager: ShardReader,
        endpoint_id: str,
        cache: DiskCache,
        opened: Callable[[ObjectInfo], None],
    ) -> None:
        """Take what the owner uses; `opened` is told of every object that is opened in the cache."""
        self.store: Any = NamedStore(endpoint_id, manager)
        self._manager = manager
        self._endpoint_id = endpoint_id
        self._cache = cache
        self._opened = opened
        self._sidecars = Sidecars(self._sidecar_place)
        self._open = OpenObjects(self._sidecars)
        self._statistics = StreamStatistics()
        self._asked_manager = False

    def open_shard(self, info: ObjectInfo) -> ShardBytes:
        """Return an object's verified bytes."""
        shard = self._open.hold(info)
        if shard is not None:
            return shard
        entry = entry_id(self._endpoint_id, info) if info.size_bytes else None
        file = None if entry is None else self._wait_for(entry)
        if file is not None:
            shard, first = self._open.add(info, file)
            if first:
                self._opened(info)
            return shard
        self._asked_manager = True
        return self._manager.open_shard(info)

    def _sidecar_place(self, info: ObjectInfo) -> tuple[DiskCache, EntryId] | None:
        entry = entry_id(self._endpoint_id, info)
        return None if entry is None else (self._cache, entry)

    def _wait_for(self, entry: EntryId) -> CachedFile | None:
        """Return the entry once it is there; None: nobody is bringing it."""
        started = time.monotonic()
        pause, quiet_since, checked = _FIRST_PAUSE_SECONDS, started, started
        try:
            while (now := time.monotonic()) - quiet_since < _PATIENCE_SECONDS:
                file = self._cache.open(entry)
                if file is not None:
                    self._statistics.loaded(now - started)
                    self._statistics.waited("read_ahead", now - started)
                    return file
                if now - checked > _CHECK_SECONDS:
                    checked = now
                    if not self._is_idle(entry):
                        quiet_since = now
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        except OSError:
            return None  # the folder is gone: the manager knows what to do about that
        return None

    def _is_idle(self, entry: EntryId) -> bool:
        """Tell whether no process is fetching an object now."""
        turn = self._cache.try_turn(entry)
        if turn is None:
            return False
        self._cache.end_turn(turn)
        return True

    def missing(self, infos: Sequence[ObjectInfo]) -> list[ObjectInfo]:
        """Return the objects that are not open here: the lease of others keeps them."""
        return [info for info in infos if info not in self._open]

    def read_range(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Return some of an object's bytes."""
        return self._manager.read_range(info, start, end)

    def prefetch_shards(self, infos: Sequence[ObjectInfo]) -> None:
        """Nothing: the owner reads ahead."""

    def settle(self) -> None:
        """Wait until what this worker had to fetch by itself is durable."""
        self._sidecars.settle()
        if self._asked_manager:
            self._manager.settle()

    def get_stats(self) -> dict[str, Any]:
        """Return what this worker waited for, and what it had to fetch by itself."""
        from brain.ml.dataset_shards.stream_statistics import merge_statistics

        own = self._statistics.to_dict()
        if not self._asked_manager:
            return own
        return merge_statistics([own, self._manager.get_stats()])


class AnnouncedSource:
    """A source that says which objects come next instead of fetching them."""

    def __init__(
        self, source: SplitSource, announce: Callable[[Sequence[ObjectInfo]], None]
    ) -> None:
        self._source = source
        self._announce = announce

    def open_split(self, table: SplitTable, number: int) -> OpenedSplit:
        """Return split `number`, open."""
        return self._source.open_split(table, number)

    @property
    def drift(self) -> Any:
        """How the columns of the shards differ, as far as they have been opened here."""
        return getattr(self._source, "drift", None)

    def read_ahead(self, infos: Sequence[ObjectInfo]) -> None:
        """Say which objects come next, in order of use."""
        self._announce(infos)

    def settle(self) -> None:
        """Wait until what was fetched is durable."""
        self._source.settle()

    def plan_uses(
        self, objects: Sequence[ObjectInfo], uses: Callable[[], tuple[Indices, ...]]
    ) -> None:
        """Nothing: the owner evicts by what the workers announce."""

    def records(self, field: str) -> SplitSource:
        """Return the source of the plain records, for one of their fields."""
        return self._source.records(field)


def endpoint_of(manager: Any, plan: EpochPlan) -> str | None:
    """Return the name of the store whose objects are brought into a shared cache; None: there is none.

    A worker of a stream that is not to read ahead fetches by itself, as everything does there.
    """
    if not plan.prefetch or not isinstance(manager, StreamingManager):
        return None
    return manager.store.endpoint_id if _folder_of(manager) is not None else None


def nearby_plan(
    plan: EpochPlan,
    endpoint_id: str,
    *,
    announce: Callable[[Sequence[ObjectInfo]], None],
    opened: Callable[[ObjectInfo], None],
) -> tuple[EpochPlan, Callable[[], dict[str, Any]]]:
    """Return a plan that reads what the owner brings, and where its statistics come from.

    A cache that this process cannot use leaves the plan as it is.
    """
    source = plan.source
    if not isinstance(source, StoreSource):
        return plan, dict
    manager: Any = source._manager  # noqa: SLF001 - see below
    folder, options = _folder_of(manager), manager.options
    if folder is None:
        return plan, manager.get_stats
    try:
        cache = DiskCache(folder, options.cache_bytes, policy=options.cache_policy)
    except OSError:
        return plan, manager.get_stats
    nearby = NearbyShards(manager, endpoint_id, cache, opened)
    source = copy(source)
    source._manager = nearby  # noqa: SLF001 - a copy made for this; everything else stays

    def tell(infos: Sequence[ObjectInfo]) -> None:
        missing = nearby.missing(infos)
        if missing:
            announce(missing)

    return replace(plan, source=AnnouncedSource(source, tell)), nearby.get_stats


def _folder_of(manager: StreamingManager) -> Path | None:
    """Return where a manager caches; local folders are read in place."""
    options = manager.options
    if options.cache_bytes <= 0 or options.spec.uri.startswith("file://"):
        return None
    return manager.cache_dir
