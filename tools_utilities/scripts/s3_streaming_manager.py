"""StreamingManager: the objects of one store, verified, through a cache shared by the machine.

    manager = StreamingManager(bucket="my-bucket")
    manager.prefetch(["a.jsonl", "b.jsonl"])
    with manager.open("a.jsonl") as file: ...

A manager is plain configuration: it pickles without secrets and may be forked; the store, the
threads and the locks are made in each process when they are first needed.
"""

import asyncio
import io
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, cast
from weakref import WeakSet

import msgspec

from tools_utilities.cache_folder import COUNTS_FOLDER, cache_folder, check_folder, is_default
from tools_utilities.cached_bytes import ShardFile
from tools_utilities.disk_cache import DiskCache
from tools_utilities.disk_space import is_no_room
from tools_utilities.errors import CacheError, UsageError
from tools_utilities.eviction import EVICTION_POLICIES
from tools_utilities.fetch import Fetcher
from tools_utilities.fetch_attempt import FetchLimits
from tools_utilities.in_place_reader import InPlaceReader
from tools_utilities.object_store import ObjectInfo, ObjectStore, StoreSpec, open_store
from tools_utilities.object_stores.local import LocalStore
from tools_utilities.redaction import refuse_signed
from tools_utilities.shard_format import ShardBytes
from tools_utilities.shard_reader import ShardReader
from tools_utilities.stream_statistics import StreamStatistics
from tools_utilities.use_plan import Places

_LOGGER = logging.getLogger(__name__)
_GB = 1_000_000_000
READ_AHEAD_BYTES = 256 << 20
AHEAD_SHARE = 8
MEMORY_BYTES = 128 << 20
_BUFFER_BYTES = 1 << 20


class ManagerOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a manager is made of; holds no secret."""

    spec: StoreSpec
    cache_dir: str | None
    """None: no cache."""
    cache_required: bool
    """Somebody chose the folder, so one that cannot be used is an error."""
    cache_bytes: int
    cache_policy: str = "next_use"
    concurrency: int = 8
    read_ahead_bytes: int = READ_AHEAD_BYTES
    """Fetched and not asked for yet; at most an eighth of the cache: it is room for what comes later."""
    memory_bytes: int = MEMORY_BYTES
    """Whole objects held in memory where there is no cache."""
    limits: FetchLimits = FetchLimits()
    counts_dir: str | None = None
    """Where what is learned of the data is kept; None: below the cache folder, if there is one."""


class StreamingManager:
    """Reads objects of one bucket; any number of threads may call it."""

    options: ManagerOptions

    def __init__(
        self,
        bucket: str,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_gb: float | None = None,
        endpoint_url: str | None = None,
        profile: str | None = None,
    ) -> None:
        """Take a bucket's name (S3), an alias of quark.yaml or a store URI; the rest from settings.

        Raises:
            CacheError: a cache folder was chosen and cannot be used.
        """
        from tools_utilities.settings import load_settings

        settings = load_settings(start_dir=Path.cwd())
        spec = settings.store_spec(bucket)
        given = {"endpoint_url": endpoint_url, "profile": profile}
        spec = msgspec.structs.replace(spec, **{k: v for k, v in given.items() if v is not None})
        folder = Path(cache_dir) if cache_dir is not None else settings.path("cache_dir")
        self._configure(
            ManagerOptions(
                spec=spec,
                cache_dir=str(folder) if folder is not None else None,
                cache_required=cache_dir is not None or settings.is_set("cache_dir"),
                cache_bytes=settings.cache_bytes if cache_gb is None else int(cache_gb * _GB),
                cache_policy=settings.value("cache_policy"),
                concurrency=settings.value("fetch_concurrency"),
            )
        )

    @classmethod
    def for_store(
        cls,
        spec: StoreSpec,
        *,
        cache_dir: str | None,
        cache_bytes: int,
        cache_policy: str = "next_use",
        concurrency: int = 8,
        **rest: Any,
    ) -> "StreamingManager":
        """Return a manager that reads no settings; `cache_dir=None` or 0 bytes: no cache.

        `rest` are further fields of `ManagerOptions`.

        Raises:
            CacheError: the folder is not the default one and cannot be used.
        """
        required = cache_dir is not None and not is_default(cache_folder(cache_dir))
        return cls.from_options(
            ManagerOptions(
                spec=spec,
                cache_dir=cache_dir,
                cache_required=required,
                cache_bytes=cache_bytes,
                cache_policy=cache_policy,
                concurrency=concurrency,
                **rest,
            )
        )

    @classmethod
    def from_options(cls, options: ManagerOptions) -> "StreamingManager":
        """Return a manager of exactly these options."""
        manager = cls.__new__(cls)
        manager._configure(options)  # noqa: SLF001 - its own class
        return manager

    def _configure(self, options: ManagerOptions) -> None:
        if options.cache_policy not in EVICTION_POLICIES:
            raise UsageError(
                f"cache_policy={options.cache_policy}: unknown",
                hint=f"Known: {', '.join(EVICTION_POLICIES)}.",
            )
        # It is pickled into workers and written into jobs; a signature in it would be too.
        refuse_signed(options.spec.uri, "a stream")
        refuse_signed(options.spec.endpoint_url or "", "a stream")
        self.options = options
        self._lock = Lock()
        self._reader: ShardReader | InPlaceReader | None = None
        _MANAGERS.add(self)
        folder = self._cache_folder()
        if folder is not None and options.cache_required:
            check_folder(folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamingManager.from_options, (self.options,)

    @property
    def spec(self) -> StoreSpec:
        """Where the store is."""
        return self.options.spec

    @property
    def store(self) -> ObjectStore:
        """The store, made once a process."""
        return self._live().store

    @property
    def cache_dir(self) -> Path | None:
        """The cache folder, which need not exist yet; None: there is none."""
        folder = self.options.cache_dir
        return None if folder is None else cache_folder(folder)

    @property
    def counts_dir(self) -> Path | None:
        """The folder of what is learned of datasets, which need not exist yet; None: there is none."""
        if self.options.counts_dir is not None:
            return cache_folder(self.options.counts_dir)
        folder = self.cache_dir
        return None if folder is None else folder / COUNTS_FOLDER

    # Reading.

    def open(self, key: str) -> BinaryIO:
        """Return an object as a seekable, buffered binary file."""
        raw = ShardFile(self._live().open_key(key))
        return cast("BinaryIO", io.BufferedReader(raw, _BUFFER_BYTES))

    def open_shard(self, info: ObjectInfo) -> ShardBytes:
        """Return the verified bytes of the listed version of an object; close them after use.

        Raises:
            ObjectNotFoundError: it was listed and is gone.
            ObjectReplacedError: it is another version now.
            IntegrityError: its bytes differ from its checksum, however often they are fetched.
            AccessError: permission, credentials, region or clock.
            StoreError: given up after trying again.
        """
        return self._live().open_shard(info)

    def read_range(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Return bytes [start, end) of the listed version, without fetching the rest."""
        return self._live().read_range(info, start, end)

    # Reading ahead.

    def prefetch_shards(self, infos: Sequence[ObjectInfo]) -> None:
        """Say what is opened next, in order of use; replaces what was said before. Never waits."""
        self._live().set_order(infos)

    def plan_uses(self, infos: Sequence[ObjectInfo], uses: Callable[[], Sequence[Places]]) -> None:
        """Say when each object is opened, in this epoch and the next; see `UsePlan`."""
        reader = self._live()
        if isinstance(reader, ShardReader):
            reader.plan_uses(infos, uses)

    def opened_elsewhere(self, info: ObjectInfo) -> None:
        """Note that another process has opened an object, so that its reading ahead is done."""
        reader = self._live()
        if isinstance(reader, ShardReader):
            reader.opened_elsewhere(info)

    def prefetch(self, keys: Iterable[str]) -> None:
        """Fetch objects in the background, after those asked for before. Never waits."""
        self._live().prefetch_keys(list(keys))

    async def aprefetch(self, keys: Iterable[str]) -> None:
        """Fetch objects into the cache; returns when they are there.

        Raises:
            QuarkError: the first that could not be fetched.
        """
        places = asyncio.Semaphore(self.options.concurrency)

        async def bring(key: str) -> None:
            async with places:
                await asyncio.to_thread(self._bring, key)

        await asyncio.gather(*(bring(key) for key in keys))
        await asyncio.to_thread(self.settle)

    def _bring(self, key: str) -> None:
        reader = self._live()
        reader.bring(reader.store.head(key))

    def settle(self) -> None:
        """Wait until everything that was read ahead is durable in the cache."""
        reader = self._reader
        if reader is not None:
            reader.settle()

    def get_stats(self) -> dict[str, Any]:
        """Return what this process fetched, found and waited for; see `StreamStatistics`."""
        return self._live().to_dict()

    # What lives in one process.

    def _live(self) -> ShardReader | InPlaceReader:
        reader = self._reader
        if reader is None:
            with self._lock:
                reader = self._reader
                if reader is None:
                    reader = self._reader = self._make_reader()
        return reader

    def _make_reader(self) -> ShardReader | InPlaceReader:
        options, statistics = self.options, StreamStatistics()
        store = open_store(options.spec)
        if isinstance(store, LocalStore):
            return InPlaceReader(store, statistics)
        cache = self._make_cache()
        ahead = options.read_ahead_bytes
        if cache is not None:
            ahead = min(ahead, options.cache_bytes // AHEAD_SHARE)
        return ShardReader(
            store,
            Fetcher(store, limits=options.limits, statistics=statistics),
            statistics,
            cache=cache,
            concurrency=options.concurrency,
            read_ahead_bytes=ahead,
            memory_bytes=options.memory_bytes,
        )

    def _cache_folder(self) -> Path | None:
        options = self.options
        if options.cache_dir is None or options.cache_bytes <= 0:
            return None
        return None if options.spec.uri.startswith("file://") else cache_folder(options.cache_dir)

    def _make_cache(self) -> DiskCache | None:
        folder = self._cache_folder()
        if folder is None:
            return None
        options = self.options
        try:
            return DiskCache(folder, options.cache_bytes, policy=options.cache_policy)
        except OSError as error:
            if options.cache_required and not is_no_room(error):
                check_folder(folder)
                raise CacheError(
                    f"the cache folder {folder} (CACHE_DIR) cannot be used: {error}",
                    hint="Name a folder on a local disk.",
                    path=str(folder),
                ) from error
            _LOGGER.warning(
                "the cache folder %s cannot be used (%s); reading without a cache", folder, error
            )
            return None

    def _forget_process(self) -> None:
        self._lock = Lock()
        self._reader = None


_MANAGERS: WeakSet[StreamingManager] = WeakSet()


def _after_fork() -> None:
    # The threads stayed in the parent and its locks may be taken: begin anew.
    for manager in list(_MANAGERS):
        manager._forget_process()  # noqa: SLF001 - this module's own class


os.register_at_fork(after_in_child=_after_fork)
