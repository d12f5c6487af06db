"""A source in shuffled order: exact and seeded, in bounded memory, one pass over the input.

Every record gets a random key, a function of the seed and its number alone; the order is that of the
keys. Records are dealt to temporary files by the first bits of their key, then each file is sorted in
memory. So the order is a uniform permutation and does not depend on the memory given. The temporary
files hold the whole input once, uncompressed.
"""

import shutil
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Self

import msgspec
import numpy as np
import numpy.typing as npt

from tools_utilities.fresh_folder import fresh_folder
from tools_utilities.sample_codec import decode_sample, encode_sample
from tools_utilities.sample_source import Source, SourceBlock

MEMORY_BYTES = 16 << 20
"""What one temporary file may hold to be sorted in memory."""
_FANOUT_BITS = 8
_BLOCK_RECORDS = 1024
_HEAD = struct.Struct("<3Q")
"""Key, number, length of what follows."""
_VERSION = 2
"""Of the temporary files."""
_BUFFER_BYTES = 32 << 10
_DONE = "scattered.json"
_KEY_BITS = 64

Keys = npt.NDArray[np.uint64]


def shuffle_keys(seed: int, numbers: Keys) -> Keys:
    """Return a random 64-bit key for each record number (splitmix64 of seed and number)."""
    start = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % (1 << 64))
    with np.errstate(over="ignore"):
        mixed = (_mix(np.full(1, start))[0] ^ numbers) + np.uint64(0x9E3779B97F4A7C15)
        return _mix(_mix(mixed))


def _mix(value: Keys) -> Keys:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Keys = value ^ (value >> np.uint64(31))
    return mixed


class ShuffledSource:
    """The records of `source` in the order of a seed. `folder` is its own, on this machine.

    Once everything is dealt to the folder's files, a killed run goes on from there.
    """

    def __init__(
        self, source: Source, seed: int, folder: Path, *, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self.uri = source.uri
        self.fingerprint = source.fingerprint
        self.objects = source.objects
        self.num_bytes = source.num_bytes
        self._source = source
        self._seed = seed
        self._folder = folder
        self._memory_bytes = memory_bytes

    def blocks(self, start: int, position: Mapping[str, int] | None) -> Iterator[SourceBlock]:
        """Yield blocks in shuffled order; `position` names the temporary file and a place in it."""
        self._scatter()
        where = dict(position) if position else {"bucket": 0, "index": 0}
        number = start
        for bucket in range(where["bucket"], 1 << _FANOUT_BITS):
            index = where["index"] if bucket == where["bucket"] else 0
            rows = islice(self._sorted(self._path(bucket), _FANOUT_BITS), index, None)
            while batch := list(islice(rows, _BLOCK_RECORDS)):
                yield SourceBlock(
                    first=number,
                    records=batch,
                    position={"bucket": bucket, "index": index},
                    done_bytes=self.num_bytes and self.num_bytes * bucket >> _FANOUT_BITS,
                )
                number += len(batch)
                index += len(batch)

    def _path(self, bucket: int) -> Path:
        return self._folder / f"{bucket:03d}.rows"

    def _scatter(self) -> None:
        made_of = {"fingerprint": self.fingerprint, "seed": self._seed, "version": _VERSION}
        done = self._folder / _DONE
        if done.is_file() and msgspec.json.decode(done.read_bytes()) == made_of:
            return
        fresh_folder(self._folder)
        with _Scatter(0, self._path) as scatter:
            for block in self._source.blocks(0, None):
                numbers = range(block.first, block.first + len(block.records))
                pieces = [
                    b"j" + record if isinstance(record, bytes) else b"s" + encode_sample(record)
                    for record in block.records
                ]
                keys = shuffle_keys(self._seed, np.array(numbers, np.uint64))
                scatter.add(keys, numbers, pieces)
        # No fsync: after a crash of the machine the files are made again, after a kill they are whole.
        temporary = done.with_suffix(".tmp")
        temporary.write_bytes(msgspec.json.encode(made_of))
        temporary.replace(done)

    def _sorted(self, path: Path, bits: int) -> Iterator[Any]:
        """Yield the records of a temporary file in the order of keys."""
        if not path.is_file():
            return
        if path.stat().st_size > self._memory_bytes and bits < _KEY_BITS - _FANOUT_BITS:
            yield from self._sorted_in_parts(path, bits)
            return
        rows = sorted(_read_rows(path), key=lambda row: row[:2])
        for _, _, piece in rows:
            yield _record(piece)

    def _sorted_in_parts(self, path: Path, bits: int) -> Iterator[Any]:
        folder = fresh_folder(path.with_suffix(".parts"))
        with _Scatter(bits, lambda part: folder / f"{part:03d}.rows") as scatter:
            rows = _read_rows(path)
            while batch := list(islice(rows, _BLOCK_RECORDS)):
                keys, numbers, pieces = zip(*batch, strict=True)
                scatter.add(np.array(keys, np.uint64), numbers, pieces)
        for part in range(1 << _FANOUT_BITS):
            yield from self._sorted(folder / f"{part:03d}.rows", bits + _FANOUT_BITS)
        shutil.rmtree(folder)


class _Scatter:
    """Deals records to files by some bits of their key."""

    def __init__(self, skip_bits: int, path_of: Callable[[int], Path]) -> None:
        self._skip = np.uint64(skip_bits)
        self._path_of = path_of
        self._files: dict[int, BinaryIO] = {}

    def add(self, keys: Keys, numbers: Sequence[int], pieces: Any) -> None:
        """Append records to the files that their keys name."""
        buckets = ((keys << self._skip) >> np.uint64(_KEY_BITS - _FANOUT_BITS)).tolist()
        rows = zip(buckets, keys.tolist(), numbers, pieces, strict=True)
        for bucket, key, number, piece in rows:
            file = self._files.get(bucket) or self._open(bucket)
            file.write(_HEAD.pack(key, number, len(piece)) + piece)

    def _open(self, bucket: int) -> BinaryIO:
        self._files[bucket] = self._path_of(bucket).open("wb", buffering=_BUFFER_BYTES)
        return self._files[bucket]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for file in self._files.values():
            file.close()


def _read_rows(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (key, number, piece) in the order written."""
    with path.open("rb", buffering=1 << 20) as file:
        for head in iter(partial(file.read, _HEAD.size), b""):
            key, number, length = _HEAD.unpack(head)
            yield key, number, file.read(length)


def _record(piece: bytes) -> Any:
    return piece[1:] if piece[:1] == b"j" else decode_sample(piece[1:])
