"""Makes a sharded dataset: one pass over a source, N shards balanced to one sample, nothing dropped.

Record i of a side (train, and val where samples are held out) goes to that side's shard i mod N.
Chunks are made in *rounds*: every shard's chunk of a round ends at the same place of the source, when
the records dealt in the round reach N times chunk_bytes. So a run is resumed from finished rounds and
one position, and gives the bytes of an undisturbed run. Memory is a source block and the writers'.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.arrow_files import lean_memory
from tools_utilities.chunk_writer import WrittenChunk
from tools_utilities.chunk_writers import ChunkWriters, GrowingChunk
from tools_utilities.errors import QuarkError, RecordError, StoreError, UsageError, said_by
from tools_utilities.json_records import encode_line
from tools_utilities.manifest import Chunk
from tools_utilities.record_sizes import measured
from tools_utilities.sample_source import Source, SourceBlock
from tools_utilities.sharding_plan import ShardingPlan
from tools_utilities.sharding_progress import Progress, Round, schema_of

WORKERS = 2


class Dealt(msgspec.Struct, frozen=True, kw_only=True):
    """How far a run has come."""

    samples: int
    done_bytes: int | None
    """Of `total_bytes` of the source; None where it does not say."""
    total_bytes: int | None


class Publisher(msgspec.Struct, frozen=True):
    """Where finished chunks go; each call returns only when the bytes are safe there."""

    staging: Path
    """Local folder for chunks being written; removed at the end."""
    publish: Callable[[WrittenChunk, str], None]
    """`publish(chunk, key)`: move or upload and verify; the local file is gone afterwards."""
    at_once: int = 3
    """Chunks published at a time."""


class ShardingRun:
    """One run over one source. `report` is called as records are dealt.

    `workers`: how many chunks are written at a time; the bytes are the same for any number.
    """

    def __init__(
        self,
        source: Source,
        plan: ShardingPlan,
        progress: Progress,
        publisher: Publisher,
        report: Callable[[Dealt], None] = lambda _dealt: None,
        *,
        workers: int = WORKERS,
    ) -> None:
        self._source = source
        self._plan = plan
        self._progress = progress
        self._publisher = publisher
        self._report = report
        self._chunks = ChunkWriters(
            publisher.staging,
            format_name=plan.format,
            compression=plan.compression,
            num_growing=plan.writers,
            workers=workers,
            source_bytes=source.num_bytes,
            token_dtype=plan.token_dtype,
        )
        self._writers: dict[int, GrowingChunk] = {}
        self._holdout = plan.holdout
        self._counts = [0, 0]
        """Records dealt to each side, train and val."""
        self._round_first = 0
        """Records dealt to the first side before this round."""
        self._dealt_bytes = 0
        self._dealt_samples = 0
        self._schema: dict[str, str] = {}
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
            for finished in self._rounds:
                for shard, chunk in finished.chunks.items():
                    self._counts[self._side(shard)] += chunk.num_samples
            self._round_first = self._counts[0]
        try:
            with lean_memory() if self._plan.format == "parquet" else nullcontext():
                self._deal_all()
        finally:
            for writer in self._writers.values():
                writer.abandon()
            self._chunks.close()
        if not self._rounds:
            raise UsageError(
                f"{self._source.uri}: no records", hint="An empty input makes no dataset."
            )
        return self._rounds

    def _side(self, shard: int) -> int:
        return int(self._holdout is not None and shard >= self._plan.num_shards)

    def _deal_all(self) -> None:
        number = self._rounds[-1].samples if self._rounds else 0
        position = self._rounds[-1].position if self._rounds else None
        last: Mapping[str, int] = {}
        if self._enough(number):
            return
        for block in self._blocks(number, position):
            self._schema = self._schema or schema_of(block.records)
            taken = 0
            records, sizes = self._measured(block.records)
            while taken < len(block.records) and not self._enough(number):
                count, full = self._room(sizes, taken, number)
                span = slice(taken, taken + count)
                self._deal(records[span], block.records[span], number)
                taken += count
                number += count
                last = {**block.position, "index": block.position["index"] + taken}
                if full:
                    self._close_round(number, last)
            self._report(
                Dealt(
                    samples=number,
                    done_bytes=block.done_bytes,
                    total_bytes=self._source.num_bytes,
                )
            )
            if self._enough(number):
                break
        if self._writers:
            self._close_round(number, last)

    def _blocks(self, number: int, position: Mapping[str, int] | None) -> Iterator[SourceBlock]:
        """Yield the source's blocks; an error that is not ours is told with the sample it came at.

        Raises:
            QuarkError: the source's own.
            StoreError: the source could not be read (any OSError of its code).
            RecordError: its code failed otherwise; detail: key, record.
        """
        try:
            for block in self._source.blocks(number, position):
                yield block
                number = block.first + len(block.records)
        except QuarkError:
            raise  # names its place itself
        except Exception as error:  # any code may be a source: a generator, a dataset of the hub
            kind = StoreError if isinstance(error, OSError) else RecordError
            raise kind(
                f"{self._source.uri}: at sample {number}: {said_by(error)}",
                hint="Once the source can be read, run the same command again: it goes on after "
                "its last finished chunks.",
                key=self._source.uri,
                record=number + 1,
            ) from error

    def _enough(self, number: int) -> bool:
        return self._plan.max_samples is not None and number >= self._plan.max_samples

    def _measured(self, records: Sequence[Any]) -> tuple[Sequence[Any], Sequence[int]]:
        """Return records as they are dealt, and their bytes where those decide where chunks end."""
        if self._plan.layout != "folders":
            return records, range(len(records))
        return measured(records, self._plan.format, self._plan.token_bytes)

    def _room(self, sizes: Sequence[int], taken: int, number: int) -> tuple[int, bool]:
        """Return how many of a block's records the round still takes, and whether that fills it."""
        left = len(sizes) - taken
        if self._plan.max_samples is not None:
            left = min(left, self._plan.max_samples - number)
        if self._plan.layout != "folders":
            return self._flat_room(left)
        goal = self._plan.num_shards * self._plan.chunk_bytes
        dealt = list(accumulate(sizes[taken : taken + left], initial=self._dealt_bytes))
        count = bisect_left(dealt, goal, lo=1)
        full = count <= left
        count = min(count, left)
        self._dealt_bytes = dealt[count]
        return count, full

    def _flat_room(self, left: int) -> tuple[int, bool]:
        wanted = self._plan.samples_per_shard
        if wanted is None:
            return left, False
        count = min(left, wanted - self._dealt_samples)
        self._dealt_samples += count
        return count, self._dealt_samples >= wanted

    def _deal(self, records: Sequence[Any], read: Sequence[Any], first: int) -> None:
        """Deal records; `read`: the same as the source gave them, by which samples are held out."""
        held_out = self._holdout.held_out(read, first) if self._holdout else ()
        if self._plan.format == "webdataset":
            records = [_keyed(record, first + at) for at, record in enumerate(records)]
        if not self._holdout:
            self._deal_side(0, records, 0, self._plan.num_shards)
            return
        pairs = list(zip(records, held_out, strict=True))
        train = [record for record, out in pairs if not out]
        val = [record for record, out in pairs if out]
        self._deal_side(0, train, 0, self._plan.num_shards)
        self._deal_side(1, val, self._plan.num_shards, self._plan.val_shards)

    def _deal_side(self, side: int, records: Sequence[Any], base: int, num_shards: int) -> None:
        if self._plan.samples_per_shard is not None:
            num_shards = 1
        for shard in range(num_shards):
            share = records[(shard - self._counts[side]) % num_shards :: num_shards]
            if share:
                with self._told_apart(base + shard):
                    self._writer(base + shard).add(share)
        self._counts[side] += len(records)

    def _writer(self, shard: int) -> GrowingChunk:
        if shard not in self._writers:
            self._writers[shard] = self._chunks.open(f"{shard:05d}-{len(self._rounds):05d}")
        return self._writers[shard]

    @contextmanager
    def _told_apart(self, shard: int) -> Iterator[None]:
        """Say of a record that a chunk's writer refuses which chunk it is of, and which of the input."""
        try:
            yield
        except RecordError as error:
            place = error.detail.get("record", 1) - 1
            told = f"{self._plan.key(shard, len(self._rounds))}: {error}"
            if self._holdout is None and not self._plan.shuffle:
                each = self._plan.writers
                number = self._round_first + (shard - self._round_first) % each + place * each
                if number != place:
                    told += f" (its sample {place} is the input's {number}, from 0)"
            raise RecordError(told, hint=error.hint, **error.detail) from error

    def _close_round(self, number: int, position: Mapping[str, int]) -> None:
        for writer in self._writers.values():
            writer.end()
        written: dict[int, WrittenChunk] = {}
        for shard in sorted(self._writers):
            with self._told_apart(shard):
                written[shard] = self._writers[shard].finish()
            del self._writers[shard]
        with ThreadPoolExecutor(self._publisher.at_once, thread_name_prefix="publish") as pool:
            chunks = dict(zip(written, pool.map(self._publish, written.items()), strict=True))
        finished = Round(
            samples=number,
            position=position,
            chunks=chunks,
            schema=self._schema if not self._rounds else {},
        )
        if not self._rounds:
            self._progress.begin(self._plan.header(self._source))
        self._progress.append(finished)
        self._rounds.append(finished)
        self._round_first = self._counts[0]
        self._dealt_bytes = 0
        self._dealt_samples = 0

    def _publish(self, made: tuple[int, WrittenChunk]) -> Chunk:
        shard, written = made
        name = self._plan.key(shard, len(self._rounds))
        self._publisher.publish(written, name)
        return Chunk(
            key=name,
            num_samples=written.num_samples,
            num_bytes=written.num_bytes,
            crc32c=written.crc32c,
            sha256=written.sha256,
        )


def _keyed(record: Any, number: int) -> dict[str, Any]:
    """Return a record as a tar holds it: its own fields if it names a key, else one JSON member."""
    if isinstance(record, bytes) and b'"__key__"' in record:
        record = msgspec.json.decode(record)
    if not isinstance(record, bytes):
        if "__key__" in record:
            return dict(record)
        record = encode_line(record, number).rstrip(b"\n")
    return {"__key__": f"{number:09d}", "json": record}
