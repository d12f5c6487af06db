"""Managers and readers over stores made by a test, and looks at what they left on disk."""

import hashlib
import time
from pathlib import Path

from tests.fakes import StubS3
from tests.fault_store import FaultStore
from tools_utilities.disk_cache import DiskCache
from tools_utilities.fetch import Fetcher
from tools_utilities.fetch_attempt import FetchLimits
from tools_utilities.object_store import ObjectInfo, StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.shard_reader import ShardReader
from tools_utilities.stream_statistics import StreamStatistics

GB = 1_000_000_000
QUICK = FetchLimits(first_pause_seconds=0.01, longest_pause_seconds=0.02)


def content(key: str, size: int) -> bytes:
    seed = hashlib.sha256(key.encode()).digest()
    return (seed * (size // 32 + 1))[:size]


def memory_manager(tmp_path: Path, name: str, **options) -> StreamingManager:
    """Return a manager over a memory store of this test alone."""
    given = {"cache_dir": str(tmp_path / "cache"), "cache_bytes": GB, **options}
    return StreamingManager.for_store(StoreSpec(uri=f"memory://{tmp_path.name}-{name}"), **given)


def stub_manager(stub: StubS3, cache: Path | None, **options) -> StreamingManager:
    given = {"cache_bytes": GB, "limits": QUICK, **options}
    spec = StoreSpec(uri="s3://bucket", endpoint_url=stub.url)
    return StreamingManager.for_store(
        spec, cache_dir=None if cache is None else str(cache), **given
    )


def reader_of(store, cache: Path | None = None, **options) -> ShardReader:
    """Return what a manager uses, over a store made by the test."""
    statistics = StreamStatistics()
    limits = options.pop("limits", QUICK)
    given = {"concurrency": 4, "read_ahead_bytes": GB, "memory_bytes": GB, **options}
    return ShardReader(
        store,
        Fetcher(store, limits=limits, statistics=statistics),
        statistics,
        cache=None if cache is None else DiskCache(cache, GB),
        **given,
    )


def read_all(reader, info: ObjectInfo) -> bytes:
    shard = reader.open_shard(info)
    data = bytes(shard.read(0, info.size_bytes))
    shard.close()
    shard.close()
    return data


def settles_at(store: FaultStore, keys: set[str]) -> bool:
    """Wait until these objects were asked for, and see that no other follows."""
    deadline = time.monotonic() + 10
    while {key for key, *_ in store.gets} != keys and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    return {key for key, *_ in store.gets} == keys


def arrived(reader: ShardReader, number: int) -> bool:
    """Wait until so many objects have been read ahead."""
    deadline = time.monotonic() + 10
    flights = reader._read_ahead._flights
    while sum(flight.landed.is_set() for flight in list(flights.values())) < number:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def entries(folder: Path) -> list[Path]:
    return [path for path in files(folder) if path.parent.parent.name == "objects"]
