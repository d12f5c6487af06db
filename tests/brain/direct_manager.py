"""A manager without a cache: real reads from a store, counted; enough for the stream's own tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools_utilities.object_store import ObjectInfo, ObjectStore, StoreSpec, open_store
from tools_utilities.shard_bytes import MemoryShardBytes


class DirectManager:
    """Reads objects whole. Pickles to its spec."""

    def __init__(self, spec: StoreSpec, cache_dir: Path | None = None) -> None:
        self.spec = spec
        self.cache_dir = cache_dir
        self.opened: list[str] = []
        self.ahead: list[list[str]] = []
        self._store: ObjectStore | None = None

    @property
    def store(self) -> ObjectStore:
        if self._store is None:
            self._store = open_store(self.spec)
        return self._store

    def open_shard(self, info: ObjectInfo) -> MemoryShardBytes:
        self.opened.append(info.key)
        return MemoryShardBytes(info.key, b"".join(self.store.get(info.key)), info=info)

    def read_range(self, info: ObjectInfo, start: int, end: int) -> bytes:
        return b"".join(self.store.get(info.key, start=start, end=end))

    def prefetch_shards(self, infos: Sequence[ObjectInfo]) -> None:
        self.ahead.append([info.key for info in infos])

    def settle(self) -> None:
        """Nothing is cached."""

    def get_stats(self) -> dict[str, Any]:
        return {"objects_from_store": len(self.opened)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_store": None}
