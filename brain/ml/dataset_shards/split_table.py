"""Every split of a dataset in a few flat arrays: 40 bytes a split, nothing a sample.

Also the two fingerprints: *order* (what the order depends on; equal on any store) and *change*
(adds the stores' version tokens; only decides whether a resume is refused).
"""

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from brain.ml.dataset_shards.shuffle_order import Indices
from tools_utilities.object_store import ObjectInfo
from tools_utilities.packed_objects import PackedObjects
from tools_utilities.shard_format import Split


class SplitTable:
    """Objects in key order and their splits; `split(i)` makes one on demand."""

    def __init__(self, objects: Sequence[ObjectInfo], splits: Iterable[Sequence[Split]]) -> None:
        """Lay out the i-th of `splits`, which are those of `objects[i]`; they are not kept."""
        self.objects = objects if isinstance(objects, PackedObjects) else PackedObjects(objects)
        lengths, columns = array("q"), [array("q") for _ in range(4)]
        for group in splits:
            lengths.append(len(group))
            for split in group:
                samples = -1 if split.num_samples is None else split.num_samples
                row = (split.start, split.end, split.num_bytes, samples)
                for column, value in zip(columns, row, strict=True):
                    column.append(value)
        self.object_of: Indices = np.repeat(np.arange(len(lengths)), _as_numbers(lengths))
        self.starts, self.ends, self.num_bytes, self.num_samples = map(_as_numbers, columns)
        self.folder_columns: tuple[tuple[str, str], ...] = ()
        """Columns that `name=value` folders give the samples below them."""

    def __len__(self) -> int:
        return len(self.object_of)

    @property
    def total_bytes(self) -> int:
        """Stored bytes of all objects."""
        return int(self.objects.size_bytes.sum())

    @property
    def object_bytes(self) -> Indices:
        """Stored bytes of each object."""
        return self.objects.size_bytes

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
        for column in (self.object_of, self.starts, self.ends):
            order.update(column.astype("<i8").tobytes())
        return order.hexdigest()[:32], change.hexdigest()[:32]


def _as_numbers(values: "array[int]") -> Indices:
    """Return the same memory as numbers: of a million splits there are no two copies."""
    return np.frombuffer(values, np.int64) if values else np.zeros(0, np.int64)


def relative_key(key: str, folder: str) -> str:
    """Return a key as seen from `folder`."""
    return key.removeprefix(folder)


def version_token(info: ObjectInfo) -> str:
    """Return what tells two versions of an object apart: the checksum, else the store's etag."""
    return f"crc32c:{info.crc32c}" if info.crc32c else f"etag:{info.etag or ''}"
