"""Every split of a dataset in a few flat arrays: 40 bytes a split, nothing a sample.

Also the two fingerprints: *order* (what the order depends on; equal on any store) and *change*
(adds the stores' version tokens; only decides whether a resume is refused).
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from brain.ml.dataset_shards.shuffle_order import Indices
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import Split


class SplitTable:
    """Objects in key order and their splits; `split(i)` makes one on demand."""

    def __init__(self, objects: Sequence[ObjectInfo], splits: Sequence[Sequence[Split]]) -> None:
        """Lay out `splits[i]`, the splits of `objects[i]`."""
        self.objects = tuple(objects)
        flat = [split for group in splits for split in group]
        counts = np.array([len(group) for group in splits], np.int64)
        self.object_of: Indices = np.repeat(np.arange(len(splits)), counts)
        self.starts: Indices = np.array([split.start for split in flat], np.int64)
        self.ends: Indices = np.array([split.end for split in flat], np.int64)
        self.num_bytes: Indices = np.array([split.num_bytes for split in flat], np.int64)
        self.num_samples: Indices = np.array(
            [-1 if split.num_samples is None else split.num_samples for split in flat], np.int64
        )

    def __len__(self) -> int:
        return len(self.object_of)

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all objects."""
        return sum(info.size_bytes for info in self.objects)

    @property
    def object_bytes(self) -> Indices:
        """Stored bytes of each object."""
        return np.array([info.size_bytes for info in self.objects], np.int64)

    def info(self, number: int) -> ObjectInfo:
        """Return the object that split `number` belongs to."""
        return self.objects[int(self.object_of[number])]

    def split(self, number: int) -> Split:
        """Return split `number`."""
        samples = int(self.num_samples[number])
        return Split(
            key=self.info(number).key,
            start=int(self.starts[number]),
            end=int(self.ends[number]),
            num_bytes=int(self.num_bytes[number]),
            num_samples=None if samples < 0 else samples,
        )

    def fingerprints(self, folder: str, settings: dict[str, Any]) -> tuple[str, str]:
        """Return (order, change) fingerprints; keys count relative to `folder`."""
        order = hashlib.sha256(msgspec.json.encode(settings, order="sorted"))
        change = hashlib.sha256()
        for info in self.objects:
            key = relative_key(info.key, folder).encode("utf-8", "surrogatepass")
            line = b"%d\0%s\0%d\n" % (len(key), key, info.size_bytes)
            order.update(line)
            change.update(line + version_token(info).encode())
        for array in (self.object_of, self.starts, self.ends):
            order.update(array.astype("<i8").tobytes())
        return order.hexdigest()[:32], change.hexdigest()[:32]


def relative_key(key: str, folder: str) -> str:
    """Return a key as seen from `folder`."""
    return key.removeprefix(folder)


def version_token(info: ObjectInfo) -> str:
    """Return what tells two versions of an object apart: the checksum, else the store's etag."""
    return f"crc32c:{info.crc32c}" if info.crc32c else f"etag:{info.etag or ''}"
