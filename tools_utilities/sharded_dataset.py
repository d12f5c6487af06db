"""Makes a sharded dataset: one pass over a source, N shards balanced to one sample, nothing dropped.

Record i goes to shard i mod N. Chunks are made in *rounds*: every shard's chunk of a round ends at
the same place of the source, when the records dealt in the round reach N times chunk_bytes. So a run is
resumed from finished rounds and one position, and gives the bytes of an undisturbed run. Memory is a
source block and N write buffers.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.chunk_writer import (
    ChunkWriter,
    FormatChunkWriter,
    LineChunkWriter,
    WrittenChunk,
)
from tools_utilities.errors import UsageError
from tools_utilities.manifest import Chunk
from tools_utilities.sample_source import Source, SourceBlock
from tools_utilities.shard_format import COMPRESSIONS, shard_formats
from tools_utilities.sharding_progress import Header, Progress, Round


class ShardingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is made."""

    num_shards: int = 8
    chunk_bytes: int = 100_000_000
    """About the bytes of records in a chunk, before compression."""
    format: str = "jsonl"
    compression: str | None = None
    max_samples: int | None = None
    layout: str = "folders"
    """`folders`: `shard_NNN/chunk_NNNN.*` as documented; `flat`: files side by side."""
    name: str = "train"
    """Flat: what file names begin with."""
    samples_per_shard: int | None = None
    """Flat: consecutive records, this many a file, instead of num_shards dealt in turn."""

    def key(self, shard: int, round_number: int) -> str:
        """Return the name of a shard's file of a round."""
        if self.layout == "folders":
            return f"shard_{shard:03d}/chunk_{round_number:04d}{self.suffix}"
        if self.format == "litdata":
            return f"chunk-{shard}-{round_number}.bin"
        if self.samples_per_shard is not None:
            return f"{self.name}-{round_number:05d}{self.suffix}"
        return f"{self.name}-{shard:05d}-of-{self.num_shards:05d}{self.suffix}"

    @property
    def writers(self) -> int:
        """Files that grow side by side."""
        return 1 if self.samples_per_shard is not None else self.num_shards

    @property
    def suffix(self) -> str:
        """The chunks' suffix, compression included."""
        packed = {name: suffix for suffix, name in COMPRESSIONS.items()}
        stem: str = [*shard_formats()[self.format].suffixes, ".bin"][0]
        return stem + (packed[self.compression] if self.compression else "")

    def header(self, source: Source) -> Header:
        """Return what a resumed run must share with the one that began."""
        settings: dict[str, str | int | None] = msgspec.to_builtins(self)
        return Header(source=source.uri, fingerprint=source.fingerprint, settings=settings)


class Publisher(msgspec.Struct, frozen=True):
    """Where finished chunks go; each call returns only when the bytes are safe there."""

    staging: Path
    """Local folder for chunks being written; removed at the end."""
    publish: Callable[[WrittenChunk, str], None]
    """`publish(chunk, key)`: move or upload and verify; the local file is gone afterwards."""


class ShardingRun:
    """One run over one source. `report(samples)` is called as records are dealt."""

    def __init__(
        self,
        source: Source,
        plan: ShardingPlan,
        progress: Progress,
        publisher: Publisher,
        report: Callable[[int], None] = lambda _samples: None,
    ) -> None:
        self._source = source
        self._plan = plan
        self._progress = progress
        self._publisher = publisher
        self._report = report
        self._writers: dict[int, ChunkWriter] = {}
        self._dealt_bytes = 0
        self._dealt_samples = 0
        self._rounds: list[Round] = []

    def run(self) -> list[Round]:
        """Deal every record and return the rounds, those of earlier runs included.

        Raises:
            ChangedError: the output was begun from another source or with other settings.
            UsageError: the source has no record; nothing is written then.
        """
        self._rounds = self._progress.load(self._plan.header(self._source))
        if self._rounds:
            self._progress.cut_torn_line()
        try:
            self._deal_all()
        finally:
            for writer in self._writers.values():
                writer.abandon()
        if not self._rounds:
            raise UsageError(
                f"{self._source.uri}: no records", hint="An empty input makes no dataset."
            )
        return self._rounds

    def _deal_all(self) -> None:
        number = self._rounds[-1].samples if self._rounds else 0
        position = self._rounds[-1].position if self._rounds else None
        last: Mapping[str, int] = {}
        for block in self._source.blocks(number, position):
            taken = 0
            while taken < len(block.records) and not self._enough(number):
                count, full = self._room(block, taken, number)
                self._deal(block.records[taken : taken + count], number)
                taken += count
                number += count
                last = {**block.position, "index": block.position["index"] + taken}
                if full:
                    self._close_round(number, last)
            self._report(number)
            if self._enough(number):
                break
        if self._writers:
            self._close_round(number, last)

    def _enough(self, number: int) -> bool:
        return self._plan.max_samples is not None and number >= self._plan.max_samples

    def _room(self, block: SourceBlock, taken: int, number: int) -> tuple[int, bool]:
        """Return how many of the block's records the round still takes, and whether that fills it."""
        left = len(block.records) - taken
        if self._plan.max_samples is not None:
            left = min(left, self._plan.max_samples - number)
        if self._plan.layout == "flat":
            return self._flat_room(left)
        goal = self._plan.num_shards * self._plan.chunk_bytes
        for count in range(left):
            self._dealt_bytes += block.sizes[taken + count]
            if self._dealt_bytes >= goal:
                return count + 1, True
        return left, False

    def _flat_room(self, left: int) -> tuple[int, bool]:
        wanted = self._plan.samples_per_shard
        if wanted is None:
            return left, False
        count = min(left, wanted - self._dealt_samples)
        self._dealt_samples += count
        return count, self._dealt_samples >= wanted

    def _deal(self, records: list[Any], first: int) -> None:
        if self._plan.format == "webdataset":
            records = [_keyed(record, first + at) for at, record in enumerate(records)]
        num_shards = self._plan.writers
        for shard in range(num_shards):
            share = records[(shard - first) % num_shards :: num_shards]
            if share:
                self._writer(shard).add(share)

    def _writer(self, shard: int) -> ChunkWriter:
        if shard not in self._writers:
            path = self._publisher.staging / f"{shard:05d}-{len(self._rounds):05d}.tmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writers[shard] = (
                LineChunkWriter(path, self._plan.compression)
                if self._plan.format == "jsonl"
                else FormatChunkWriter(
                    path, shard_formats()[self._plan.format], self._plan.compression
                )
            )
        return self._writers[shard]

    def _close_round(self, number: int, position: Mapping[str, int]) -> None:
        chunks: dict[int, Chunk] = {}
        for shard in sorted(self._writers):
            written = self._writers[shard].finish()
            del self._writers[shard]
            name = self._plan.key(shard, len(self._rounds))
            self._publisher.publish(written, name)
            chunks[shard] = Chunk(
                key=name,
                num_samples=written.num_samples,
                num_bytes=written.num_bytes,
                crc32c=written.crc32c,
                sha256=written.sha256,
            )
        finished = Round(samples=number, position=position, chunks=chunks)
        if not self._rounds:
            self._progress.begin(self._plan.header(self._source))
        self._progress.append(finished)
        self._rounds.append(finished)
        self._dealt_bytes = 0
        self._dealt_samples = 0


def _keyed(record: dict[str, Any], number: int) -> dict[str, Any]:
    """Return a record as a tar holds it: its own fields if it names a key, else one JSON member."""
    if "__key__" in record:
        return record
    return {"__key__": f"{number:09d}", "json": msgspec.json.encode(record)}
