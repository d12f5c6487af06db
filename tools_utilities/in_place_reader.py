"""Opens the files of a local folder where they lie: nothing is copied, cached, evicted or deleted."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools_utilities.checksum import crc32c, decode_crc32c
from tools_utilities.errors import IntegrityError, ObjectReplacedError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.object_stores.local import LocalStore
from tools_utilities.open_objects import OpenObjects
from tools_utilities.shard_bytes import FileShardBytes
from tools_utilities.shard_format import ShardBytes
from tools_utilities.sidecars import Sidecars
from tools_utilities.stream_statistics import StreamStatistics


class InPlaceReader:
    """Maps the files of a local folder."""

    def __init__(self, store: LocalStore, statistics: StreamStatistics) -> None:
        self.store = store
        self._statistics = statistics
        self._checked: set[ObjectInfo] = set()
        self._objects = OpenObjects(Sidecars(lambda _info: None))

    def open_shard(self, info: ObjectInfo) -> ShardBytes:
        """Map a file, if it is still the one that was listed; what is open here is that."""
        started = time.monotonic()
        shard = self._objects.hold(info) or self._map(info)
        self._statistics.add(objects_from_cache=1, bytes_from_cache=info.size_bytes)
        self._statistics.loaded(time.monotonic() - started)
        return shard

    def _map(self, info: ObjectInfo) -> ShardBytes:
        found = self.store.head(info.key)
        if found.size_bytes != info.size_bytes or info.etag not in {None, found.etag}:
            raise ObjectReplacedError(
                f"{self.store.endpoint_id}/{info.key} is no longer the file that was listed",
                hint="List again; somebody wrote it in the meantime.",
                key=info.key,
                phase="get after list",
            )
        shard = FileShardBytes(self._path(info.key), info=info)
        self._check(info, shard)
        return self._objects.add(info, shard)[0]

    def _check(self, info: ObjectInfo, shard: ShardBytes) -> None:
        """Compare with a manifest's checksum, once."""
        promised = decode_crc32c(info.crc32c) if info.crc32c else None
        if promised is None or info in self._checked:
            return
        if crc32c(shard.read(0, info.size_bytes)) != promised:
            raise IntegrityError(
                f"{self.store.endpoint_id}/{info.key}: the bytes differ from the checksum "
                "in the manifest",
                hint="The file is damaged, or the manifest is not its own.",
                key=info.key,
            )
        self._checked.add(info)

    def _path(self, key: str) -> Path:
        return self.store.local_path(key)

    def open_key(self, key: str) -> ShardBytes:
        """Map a file known by name alone."""
        return self.open_shard(self.store.head(key))

    def read_range(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Return a byte range."""
        shard = self.open_shard(info)
        data = bytes(shard.read(start, end))
        shard.close()
        return data

    def set_order(self, infos: Sequence[ObjectInfo]) -> None:
        """Nothing to fetch."""

    def prefetch_keys(self, keys: Sequence[str]) -> None:
        """Nothing to fetch."""

    def settle(self) -> None:
        """Nothing to wait for."""

    def bring(self, info: ObjectInfo) -> bool:  # noqa: ARG002 - ShardReader's method
        """Nothing to fetch."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics."""
        return self._statistics.to_dict()
