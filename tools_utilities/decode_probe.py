"""Decodes a few records of a few shards, so that broken data is seen before anything is launched.

Reads byte ranges, at most `MAX_BYTES` a shard. Of a larger object of lines that cannot be cut (it
is compressed, or JSON or CSV) the beginning is decoded; what cannot be opened at all within that (a
larger row group or list) is told as not decoded, never as broken.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tools_utilities.compression import cut_pieces, decompressed
from tools_utilities.errors import (
    AccessError,
    ObjectNotFoundError,
    ObjectReplacedError,
    QuarkError,
    RecordError,
    StoreError,
)
from tools_utilities.fetch import Fetcher
from tools_utilities.fetch_attempt import FetchLimits
from tools_utilities.object_options import with_folder_words
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.shard_bytes import MemoryShardBytes
from tools_utilities.shard_format import (
    OpenSplit,
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    format_of,
    split_suffix,
)

MAX_BYTES = 8 << 20
MAX_SHARDS = 2
MAX_RECORDS = 8
_BLOCK = 256 << 10
_SPLIT_BYTES = 64 << 10
_HEAD_BYTES = 1 << 20
_PIECE_BYTES = 64 << 10
_FIRST_SPLITS = 2
_LINE_FORMATS = frozenset({"jsonl", "json", "txt", "csv"})
"""Formats of which the first lines alone can be decoded."""
_PATIENCE = FetchLimits(max_attempts=3, retry_seconds=30)
"""Somebody waits for the plan."""


_GONE = (ObjectNotFoundError, ObjectReplacedError)
_MOST_SHARDS = 16
"""Looked into where bad ones may be skipped."""


class ProbeRules(msgspec.Struct, frozen=True, kw_only=True):
    """How records are read, and what is let through: as the run itself does."""

    options: ReadOptions = ReadOptions()
    skip_bad: bool = False
    """Records and shards that cannot be read are passed over: others may be good."""
    skip_missing: bool = False


_STRICT = ProbeRules()


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it."""

    decodes: bool | None
    """None: nothing was small enough to be decoded."""
    num_records: int
    num_shards: int
    message: str = ""
    """Why not: the first error, or what was too large."""
    samples: tuple[Sample, ...] = ()
    """The records of the first shard."""
    error: QuarkError | None = None


class RangeBytes:
    """An object read through ranged gets, in blocks, each fetched once."""

    path: Path | None = None

    def __init__(self, store: ObjectStore, info: ObjectInfo, max_bytes: int = MAX_BYTES) -> None:
        self.info = info
        self._fetcher = Fetcher(store, limits=_PATIENCE)
        self._left = max_bytes
        self._blocks: list[tuple[int, bytes]] = []

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), clipped to the object's end.

        Raises:
            TooLargeError: more would be read than allowed.
        """
        start, end = min(start, self.info.size_bytes), min(end, self.info.size_bytes)
        if start >= end:
            return memoryview(b"")
        for offset, data in self._blocks:
            if offset <= start and end <= offset + len(data):
                return memoryview(data)[start - offset : end - offset]
        # Widened to a block: the footer and what stands before it, or the first lines and the rest
        # of the last one, then cost one request.
        low, high = start, max(end, min(start + _BLOCK, self.info.size_bytes))
        if high == self.info.size_bytes:
            low = max(0, min(start, high - _BLOCK))
        if high - low > self._left:
            raise TooLargeError(f"{self.info.key}: more than {MAX_BYTES >> 20} MiB to decode it")
        self._left -= high - low
        data = self._fetcher.fetch_range(self.info, low, high)
        self._blocks.append((low, data))
        return memoryview(data)[start - low : end - low]

    def close(self) -> None:
        """Let go of the blocks."""
        self._blocks.clear()


class TooLargeError(QuarkError):
    """A probe would have to read too much."""


def probe(store: ObjectStore, infos: Sequence[ObjectInfo], rules: ProbeRules = _STRICT) -> Probe:
    """Decode the first records of the first and the last shard that hold any.

    Where bad ones may be skipped, further shards stand in for them.

    Raises:
        StoreError: the store did not answer; that says nothing of the data.
    """
    filled = [info for info in infos if info.size_bytes]
    chosen = filled[:1] + filled[-1:][: len(filled) - 1]
    if rules.skip_bad or rules.skip_missing:
        chosen += filled[1:-1][: _MOST_SHARDS - len(chosen)]
    samples: list[Sample] = []
    num_records = num_shards = 0
    too_large = ""
    bad: QuarkError | None = None
    for place, info in enumerate(chosen):
        if num_shards == MAX_SHARDS or (place >= MAX_SHARDS and bad is None):
            break
        try:
            records = _first_records(store, info, rules.options, skip_bad=rules.skip_bad)
        except TooLargeError as error:
            too_large = str(error)
        except QuarkError as error:
            if isinstance(error, StoreError) and not isinstance(error, _GONE):
                raise
            bad = error
            if not _may_skip(error, rules):
                break
        else:
            samples = samples or records
            num_records += len(records)
            num_shards += 1
    if bad is not None and not (num_shards and _may_skip(bad, rules)):
        return Probe(
            decodes=False, num_records=num_records, num_shards=num_shards,
            message=_one_line(bad), samples=tuple(samples), error=bad,
        )  # fmt: skip
    return Probe(
        decodes=True if num_shards else None,
        num_records=num_records,
        num_shards=num_shards,
        message="" if num_shards else too_large or "no records",
        samples=tuple(samples),
    )


def first_records(
    store: ObjectStore, info: ObjectInfo, count: int, options: ReadOptions | None = None
) -> list[Sample]:
    """Return the first `count` records of an object (fewer where it has fewer, or is too large).

    Raises:
        TooLargeError: its first record cannot be had within MAX_BYTES.
        DataError: it cannot be decoded.
    """
    return _first_records(store, info, options or ReadOptions(), count)


def edge_records(
    store: ObjectStore, info: ObjectInfo, options: ReadOptions | None = None
) -> tuple[list[Sample], list[Sample]]:
    """Return the first and the last few records of an object; no last ones where it cannot be cut.

    Raises:
        TooLargeError: its first record cannot be had within MAX_BYTES.
        DataError: it cannot be decoded.
    """
    options = with_folder_words(store, [info], options or ReadOptions())
    first = _first_records(store, info, options)
    shard_format = format_of(info.key)
    if shard_format is None:
        return first, []
    shard = RangeBytes(store, info)
    try:
        splits = shard_format.plan_splits(
            info, lambda start, end: bytes(shard.read(start, end)), _SPLIT_BYTES, options
        )
        opened = shard_format.open_split(shard, splits[-1], options)
        try:
            start = max(0, opened.num_samples - MAX_RECORDS)
            return first, opened.read(range(start, opened.num_samples))
        finally:
            opened.close()
    except TooLargeError:
        return first, []
    finally:
        shard.close()


def _may_skip(error: QuarkError, rules: ProbeRules) -> bool:
    if isinstance(error, ObjectNotFoundError):
        return rules.skip_missing
    return rules.skip_bad and isinstance(error, RecordError)


def _one_line(error: QuarkError) -> str:
    if isinstance(error, AccessError):
        return f"may not be read: {error}"
    return " ".join(str(error).split())


def _first_records(
    store: ObjectStore,
    info: ObjectInfo,
    options: ReadOptions,
    count: int = MAX_RECORDS,
    *,
    skip_bad: bool = False,
) -> list[Sample]:
    shard_format = format_of(info.key)
    if shard_format is None:
        raise TooLargeError(f"{info.key}: no format reads this name")
    options = with_folder_words(store, [info], options)
    shard = RangeBytes(store, info)
    try:
        return _open_first(shard, shard_format, options, count, skip_bad=skip_bad)
    except TooLargeError:
        if shard_format.name not in _LINE_FORMATS:
            raise
        return _head_records(store, info, shard_format, options, count, skip_bad=skip_bad)
    finally:
        shard.close()


def _open_first(
    shard: ShardBytes,
    shard_format: ShardFormat,
    options: ReadOptions,
    count: int,
    *,
    skip_bad: bool,
) -> list[Sample]:
    splits = shard_format.plan_splits(
        shard.info, lambda start, end: bytes(shard.read(start, end)), _SPLIT_BYTES, options
    )
    records: list[Sample] = []
    for at, split in enumerate(splits):
        # A first split may be empty; more are opened only for more records than are always wanted.
        if at >= _FIRST_SPLITS and (count <= MAX_RECORDS or not records):
            break
        try:
            opened = shard_format.open_split(shard, split, options)
        except TooLargeError:
            if not records:
                raise
            break
        try:
            wanted = range(min(count - len(records), opened.num_samples))
            records += _readable(opened, wanted) if skip_bad else opened.read(wanted)
        finally:
            opened.close()
        if len(records) >= count or (records and count <= MAX_RECORDS):
            break
    return records


def _readable(opened: OpenSplit, indices: range) -> list[Sample]:
    """Return those of the records that can be read.

    Raises:
        RecordError: there are records, and none can.
    """
    found: list[Sample] = []
    last: RecordError | None = None
    for index in indices:
        try:
            found += opened.read([index])
        except RecordError as error:
            last = error
    if last is not None and not found:
        raise last
    return found


def _head_records(
    store: ObjectStore,
    info: ObjectInfo,
    shard_format: ShardFormat,
    options: ReadOptions,
    count: int,
    *,
    skip_bad: bool,
) -> list[Sample]:
    """Decode whole lines from the beginning of an object that is too large to be opened."""
    key, compression = split_suffix(info.key)
    head: bytes = bytes(RangeBytes(store, info).read(0, _HEAD_BYTES))
    if compression is not None:
        pieces = decompressed(cut_pieces(head, _PIECE_BYTES), compression, key=info.key)
        head = b""
        while len(head) < _BLOCK and (piece := next(pieces, None)) is not None:
            head += piece
    lines = head[: head.rfind(b"\n") + 1]
    if not lines or (shard_format.name == "json" and lines.lstrip()[:1] == b"["):
        raise TooLargeError(f"{info.key}: more than {MAX_BYTES >> 20} MiB to decode it")
    shard = MemoryShardBytes(key, lines)
    return _open_first(shard, shard_format, options, count, skip_bad=skip_bad)
