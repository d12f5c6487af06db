"""Small datasets for stream tests, and readers with any rank and worker number in this process."""

import io
import json
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from brain.ml.dataset_shards.epoch_plan import EpochStart
from brain.ml.dataset_shards.epoch_reader import EpochReader
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.direct_manager import DirectManager
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store


def shard(ids: Sequence[int]) -> bytes:
    return b"".join(json.dumps({"id": number}).encode() + b"\n" for number in ids)


def put_shards(store: ObjectStore, sizes: Sequence[int], folder: str = "data/x/") -> list[int]:
    """Write one shard a size, ids counting on; returns all ids."""
    first = 0
    for number, size in enumerate(sizes):
        store.put(f"{folder}train-{number:05d}.jsonl", shard(range(first, first + size)))
        first += size
    return list(range(first))


def memory_manager(sizes: Sequence[int], cache_dir: Path | None = None) -> DirectManager:
    spec = StoreSpec(uri=f"memory://{uuid.uuid4().hex}")
    put_shards(open_store(spec), sizes)
    return DirectManager(spec, cache_dir)


def folder_manager(folder: Path, sizes: Sequence[int]) -> DirectManager:
    spec = StoreSpec(uri=f"file://{folder}")
    put_shards(open_store(spec), sizes)
    return DirectManager(spec)


def manager_of(objects: Mapping[str, bytes]) -> DirectManager:
    """Return a manager of objects in memory."""
    spec = StoreSpec(uri=f"memory://{uuid.uuid4().hex}")
    store = open_store(spec)
    for key, data in objects.items():
        store.put(key, data)
    return DirectManager(spec)


def parquet(**columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def ids(samples: Any) -> list[int]:
    return [sample["id"] for sample in samples]


def read_positions(
    stream: StreamDataset, share: Share, start: EpochStart, *, end: int | None = None
) -> dict[int, Any]:
    """Return what one reader reads, by position of the global order, up to about `end`."""
    reader = EpochReader(stream.plan_for(share, start), stream.index.counts.copy())
    found: dict[int, Any] = {}
    for block in reader.blocks():
        if end is not None and found and max(found) >= end:
            break
        for slot, entry in enumerate(block.entries, block.slot):
            turn = share.turn(slot)
            found[start.position + turn * share.world_size + share.rank] = entry
    reader.close()
    return found
