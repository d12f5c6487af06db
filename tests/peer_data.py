"""What the data sets in tests/cases/files/peers hold, and how they are read and streamed."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.direct_manager import DirectManager
from tests.shard_reading import CASES
from tools_utilities.litdata_index import with_litdata_index
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store
from tools_utilities.scripts.dataset_discovery import group_objects
from tools_utilities.shard_bytes import FileShardBytes
from tools_utilities.shard_format import ReadOptions, require_format

PEERS = CASES / "peers"


def read_folder(
    folder: Path, options: ReadOptions | None = None, *, target_bytes: int = 1 << 20
) -> list[Any]:
    """Return the samples of a folder, found, planned and opened as a stream does."""
    store = open_store(StoreSpec(uri=f"file://{folder}"))
    infos = group_objects(store, "")
    read = with_litdata_index(store, infos, options or ReadOptions())
    return [sample for info in infos for sample in _read_object(folder, info, read, target_bytes)]


def _read_object(
    folder: Path, info: ObjectInfo, options: ReadOptions, target_bytes: int
) -> list[Any]:
    shard = FileShardBytes(folder / info.key, info=info)
    found: list[Any] = []
    shard_format = require_format(info.key)
    splits = shard_format.plan_splits(
        info, lambda start, end: bytes(shard.read(start, end)), target_bytes, options
    )
    for split in splits:
        opened = shard_format.open_split(shard, split, options)
        assert split.num_samples in {None, opened.num_samples}
        found += opened.read(range(opened.num_samples))
        opened.close()
    shard.close()
    return found


def stream_folder(folder: Path, options: ReadOptions | None = None, *, epoch: int = 0) -> list[Any]:
    """Return the samples of a folder as a stream shuffles them."""
    manager = DirectManager(StoreSpec(uri=f"file://{folder}"))
    stream = StreamDataset(manager, "", options=options, equalize="none")
    stream.set_epoch(epoch)
    return list(stream)


def plain(value: Any) -> Any:
    """Make samples comparable: arrays with their type and shape."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype.name, value.shape, value.tolist()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value


def mds_sample(i: int) -> dict[str, Any]:
    """Return sample `i` of `mds`, without its pictures."""
    return {
        "text": f"é{i}\u2028" * i,
        "raw": bytes(range(i)),
        "int": -i,
        "u8": np.uint8(255 - i),
        "u16": np.uint16(65535 - i),
        "u32": np.uint32(2**32 - 1 - i),
        "u64": np.uint64(2**64 - 1 - i),
        "i8": np.int8(-128 + i),
        "i16": np.int16(-32768 + i),
        "i32": np.int32(-(2**31) + i),
        "i64": np.int64(-(2**63) + i),
        "f16": np.float16(i / 4),
        "f32": np.float32(i / 3),
        "f64": np.float64(i / 3),
        "big": 10**30 + i,
        "real": i / 7,
        "price": Decimal(i) / Decimal(8),
        "any": np.arange(2 * (i + 1), dtype=np.uint32).reshape(2, i + 1),
        "typed": np.arange(i + 1, dtype=np.int16),
        "fixed": np.full((2, 3), i, np.float32),
        "tags": ["a", i, None, {"k": [i / 2]}],
    }


def litdata_sample(i: int) -> dict[str, Any]:
    """Return item `i` of `litdata` and of its compressed forms."""
    pixels = bytes([i, 2 * i, 3 * i]) * 4
    return {
        "i": i,
        "s": f"é{i}",
        "f": i / 3,
        "b": i % 2 == 0,
        "raw": bytes(range(i)),
        "v": np.arange(i, dtype=np.int32),
        "m": np.full((2, i + 1), i / 2, np.float16),
        "t": np.arange(i),
        "tt": np.full((2, 2), i, np.uint8),
        "half": np.full((2, 1), i / 2, np.float16),
        "photo": np.array([2, 2, 3], "<u4").tobytes() + b"RGB" + pixels,
        "n": {"x": (i, f"y{i}"), "z": i + 1},
    }
