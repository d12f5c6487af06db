"""What the tests of shard formats share: write a shard, cut it, open its splits, read it whole."""

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tools_utilities.shard_bytes import FileShardBytes, MemoryShardBytes
from tools_utilities.shard_format import (
    OpenSplit,
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
    shard_formats,
)

CASES = Path(__file__).parent / "cases" / "files"
DEFAULTS = ReadOptions()


def shard_format(name: str) -> ShardFormat:
    found: ShardFormat = shard_formats()[name]
    return found


def written(name: str, samples: Iterable[Sample]) -> bytes:
    file = io.BytesIO()
    shard_format(name).write(samples, file)
    return file.getvalue()


def in_memory(key: str, data: bytes) -> MemoryShardBytes:
    return MemoryShardBytes(key, data)


def case_file(name: str) -> FileShardBytes:
    return FileShardBytes(CASES / name)


def plan(
    name: str, shard: ShardBytes, *, target_bytes: int = 1 << 20, options: ReadOptions = DEFAULTS
) -> list[Split]:
    def read(start: int, end: int) -> bytes:
        return bytes(shard.read(start, end))

    return shard_format(name).plan_splits(shard.info, read, target_bytes, options)


def open_splits(
    name: str, shard: ShardBytes, *, target_bytes: int = 1 << 20, options: ReadOptions = DEFAULTS
) -> Iterator[OpenSplit]:
    for split in plan(name, shard, target_bytes=target_bytes, options=options):
        opened = shard_format(name).open_split(shard, split, options)
        yield opened
        opened.close()


def read_all(
    name: str, shard: ShardBytes, *, target_bytes: int = 1 << 20, options: ReadOptions = DEFAULTS
) -> list[Any]:
    """Return every sample of a shard, in file order."""
    return [
        sample
        for opened in open_splits(name, shard, target_bytes=target_bytes, options=options)
        for sample in opened.read(range(opened.num_samples))
    ]


def one_split(name: str, shard: ShardBytes, options: ReadOptions = DEFAULTS) -> OpenSplit:
    """Open a shard that is (or is planned as) a single split."""
    splits = plan(name, shard, target_bytes=1 << 40, options=options)
    assert len(splits) == 1
    return shard_format(name).open_split(shard, splits[0], options)
