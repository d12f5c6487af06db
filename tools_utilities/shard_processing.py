"""A function over every sample of a claimed shard, chunk by chunk, into the claim's own folder.

Outputs lie under `<out>/<shard>/<gen>-<owner>/`, one file a chunk in the chunk's order, each followed
by a small `.done.json` that says what it was made of. A worker that takes a shard over copies the
chunks that an earlier claim finished, so at most one chunk is worked twice. Readers follow only the
`output` of completed records: what a lost claim left behind is never seen. Memory is a split of the
input and a few batches of results, whatever the chunk's size: results go to a local file first.
"""

import contextlib
import functools
import hashlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities import batch_work
from tools_utilities.batch_work import BadSample, BatchFunction, FunctionError, Work
from tools_utilities.chunk_publisher import upload_to
from tools_utilities.chunk_writer import (
    ChunkWriter,
    FormatChunkWriter,
    LineChunkWriter,
    WrittenChunk,
    copy_chunk,
)
from tools_utilities.claim_record import ClaimRecord, output_folder
from tools_utilities.errors import (
    ChunkError,
    DataError,
    DataNotFoundError,
    ObjectNotFoundError,
    ObjectReplacedError,
)
from tools_utilities.folder_columns import FolderColumns
from tools_utilities.json_text import decode_json
from tools_utilities.manifest import Chunk, Shard
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.patience import patiently
from tools_utilities.prepared_types import prepared
from tools_utilities.sample_source import SourceOptions
from tools_utilities.sample_sources.stored import StoredRecords
from tools_utilities.shard_format import ReadOptions, Sample, shard_formats

__all__ = ["BatchFunction", "FunctionError", "ShardOutput", "ShardProcessor", "Work"]

DONE = ".done.json"


@prepared
class DoneChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The `.done.json` beside a chunk's output."""

    fingerprint: str
    num_samples: int
    num_bytes: int
    sha256: str
    crc32c: str = ""
    bad: tuple[BadSample, ...] = ()


class ShardOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A shard's finished output."""

    folder: str
    num_samples: int
    checksum: str
    """SHA-256 over the chunks' own, in order."""
    num_worked: int
    """Chunks that the function ran on; the others were taken over."""
    num_bad: int = 0
    """Samples left out by `on_bad=skip`."""


class Observer(msgspec.Struct, frozen=True, kw_only=True):
    """Who hears of the work."""

    on_batch: Callable[[int], None] = lambda _samples: None
    """Samples just worked."""
    on_chunk: Callable[[int], None] = lambda _chunks: None
    """Chunks of the shard done so far."""


class Stuck(msgspec.Struct, frozen=True):
    """How often, and where, the claims of a shard ended without a word."""

    claims: int
    chunk: str


class Input(msgspec.Struct, frozen=True, kw_only=True):
    """Where chunks are read, and what is known of them."""

    store: ObjectStore
    prefix: str
    counted: bool = True
    """Whether the chunks' counts are known, so that they are checked."""
    cut: frozenset[str] = frozenset()
    """Keys of chunks of which only the first `num_samples` are worked."""
    folder_columns: FolderColumns = ()
    """Columns that `name=value` folders give the samples below them."""
    token_dtype: str | None = None
    """Of token files whose dataset has no index that says it."""

    def records(self, key: str, info: ObjectInfo) -> StoredRecords:
        """Return the records of a whole key."""
        options = SourceOptions(read=ReadOptions(token_dtype=self.token_dtype))
        return StoredRecords(key, self.store, [info], options, self.folder_columns)


class ShardProcessor:
    """Works one shard under one claim. `check` raises once the claim must not be worked on."""

    def __init__(
        self,
        source: Input,
        out: tuple[ObjectStore, str],
        work: Work,
        *,
        check: Callable[[], None],
        observer: Observer | None = None,
    ) -> None:
        self._source = source
        self._out, self._out_prefix = out
        self._work = work
        self._check = check
        self._observer = observer or Observer()
        suffix: str = shard_formats()[work.output_format].suffixes[0]
        self._suffix = suffix

    def run(self, shard: Shard, record: ClaimRecord) -> ShardOutput:
        """Work every chunk and return what came of it.

        Raises:
            ClaimError: the claim is lost or in danger; what was written is never seen.
            FunctionError: the function failed; names the chunk and sample.
            ChunkError: a chunk is damaged, gone, or not what the manifest says.
        """
        name = f"shard_{shard.shard_id:03d}"
        folder = f"{self._out_prefix}{output_folder(name, record)}"
        earlier = self._earlier(f"{self._out_prefix}{name}/", folder)
        done: list[DoneChunk] = []
        num_worked = 0
        for number, chunk in enumerate(shard.chunks):
            self._check()
            key = f"{folder}chunk_{number:04d}{self._suffix}"
            found = self._take_over(earlier, number, key, self._work.fingerprint(chunk))
            if found is None:
                found = self._work_chunk(chunk, key, sum(len(entry.bad) for entry in done))
                num_worked += 1
            done.append(found)
            self._observer.on_chunk(number + 1)
        sums = "".join(entry.sha256 for entry in done)
        return ShardOutput(
            folder=f"{self._out.spec.uri}/{folder}",
            num_samples=sum(entry.num_samples for entry in done),
            checksum=hashlib.sha256(sums.encode()).hexdigest(),
            num_worked=num_worked,
            num_bad=sum(len(entry.bad) for entry in done),
        )

    def stuck(self, shard: Shard, record: ClaimRecord) -> Stuck:
        """Return how many claims in a row crashed since the last that finished another chunk.

        Dead claims leave the chunks they finished: a worker that is killed now and then gets on, one
        that its shard kills does not.
        """
        folder = f"{self._out_prefix}shard_{shard.shard_id:03d}/"
        done: Counter[int] = Counter()
        for key in self._earlier(folder, ""):
            number = key.removeprefix(folder).partition("-")[0]
            if key.endswith(DONE) and number.isdigit() and int(number) < record.gen:
                done[int(number)] += 1
        furthest, reached_by = 0, 0
        for gen in sorted(done):
            if done[gen] > furthest:
                furthest, reached_by = done[gen], gen
        chunk = shard.chunks[min(furthest, len(shard.chunks) - 1)]
        return Stuck(min(record.crashes, record.gen - reached_by), chunk.key)

    def _work_chunk(self, chunk: Chunk, key: str, bad_before: int) -> DoneChunk:
        with self._staging() as (path, writer):
            bad: list[BadSample] = []
            seen = 0
            for batch in self._read(chunk):
                self._check()
                results, left_out = self._apply(batch, chunk, seen)
                bad += left_out
                self._check_budget(bad, bad_before, chunk)
                with _writing(self._work):
                    writer.add(self._rows(results, chunk))
                seen += len(batch)
                self._observer.on_batch(len(batch))
            if self._source.counted and seen != chunk.num_samples:
                raise ChunkError(
                    f"{chunk.key}: {seen} samples, the manifest says {chunk.num_samples}",
                    hint="Write the dataset again: its metadata and its data differ.",
                    key=chunk.key,
                )
            written = _finished(writer, path, seen - len(bad), self._work)
            self._check()
            return self._publish(key, written, self._work.fingerprint(chunk), tuple(bad))

    @contextlib.contextmanager
    def _staging(self) -> Iterator[tuple[Path, ChunkWriter]]:
        with tempfile.TemporaryDirectory(prefix="quark-process-") as folder:
            path = Path(folder) / f"chunk{self._suffix}"
            writer: ChunkWriter = (
                LineChunkWriter(path, None)
                if self._work.output_format == "jsonl"
                else FormatChunkWriter(path, shard_formats()[self._work.output_format], None)
            )
            try:
                yield path, writer
            except BaseException:
                writer.abandon()
                raise

    def _rows(self, results: Sequence[Any], chunk: Chunk) -> list[Any]:
        chosen = self._work.output_format
        if chosen == "jsonl":
            return [batch_work.encode_line(result, chunk.key) for result in results]
        return [batch_work.as_sample(result, chosen, chunk.key) for result in results]

    def _apply(
        self, batch: list[Sample], chunk: Chunk, first: int
    ) -> tuple[list[Any], list[BadSample]]:
        if self._work.on_bad != "skip":
            return batch_work.apply(self._work, batch, chunk, first), []
        try:
            return batch_work.apply(self._work, batch, chunk, first), []
        except FunctionError:
            return batch_work.apply_each(self._work, batch, chunk, first)

    def _check_budget(self, bad: Sequence[BadSample], before: int, chunk: Chunk) -> None:
        if before + len(bad) > self._work.bad_budget:
            raise FunctionError(
                f"{self._work.function_name}: more than bad_budget={self._work.bad_budget} samples "
                f"of a shard failed; the last: {bad[-1].error} ({chunk.key}, sample {bad[-1].sample})",
                hint="Correct the function, or raise bad_budget.",
                key=chunk.key,
            )

    def _read(self, chunk: Chunk) -> Iterator[list[Sample]]:
        """Yield a chunk's batches; what is wrong with its data becomes the error of its shard alone."""
        try:
            yield from self._batches(chunk)
        except ChunkError:
            raise
        except (DataError, ObjectNotFoundError, ObjectReplacedError) as error:
            raise ChunkError(
                f"{error}" if chunk.key in str(error) else f"{chunk.key}: {error}",
                hint=error.hint or "Write the dataset again, or put the chunk back.",
                **{**error.detail, "key": self._source.prefix + chunk.key},
            ) from error

    def _batches(self, chunk: Chunk) -> Iterator[list[Sample]]:
        """Yield a chunk's samples in order, `batch_size` at a time; the last batch may be shorter."""
        left = chunk.num_samples if chunk.key in self._source.cut else None
        size = self._work.batch_size
        waiting: list[Sample] = []
        for block in self._records(chunk).blocks(0, None):
            waiting += block.records[:left]  # type: ignore[arg-type] # json_bytes is off: samples
            left = None if left is None else max(0, left - len(block.records))
            whole = len(waiting) - len(waiting) % size
            for begin in range(0, whole, size):
                yield waiting[begin : begin + size]
            waiting = waiting[whole:]
            if left == 0:
                break
        if waiting:
            yield waiting

    def _records(self, chunk: Chunk) -> StoredRecords:
        store, key = self._source.store, self._source.prefix + chunk.key
        stored = store.head(key)
        if chunk.num_bytes is not None and stored.size_bytes != chunk.num_bytes:
            raise ChunkError(
                f"{key}: {stored.size_bytes} bytes, the manifest says {chunk.num_bytes}",
                hint="Write the dataset again, or put the chunk back; then the same command goes on.",
                key=key,
            )
        info = msgspec.structs.replace(stored, crc32c=chunk.crc32c or stored.crc32c)
        return self._source.records(key, info)

    def _publish(
        self, key: str, written: WrittenChunk, fingerprint: str, bad: tuple[BadSample, ...]
    ) -> DoneChunk:
        done = DoneChunk(
            fingerprint=fingerprint,
            num_samples=written.num_samples,
            num_bytes=written.num_bytes,
            sha256=written.sha256,
            crc32c=written.crc32c,
            bad=bad,
        )
        upload_to(self._out, "", written, key)
        # After its data: a kill between the two leaves a chunk that is simply worked again.
        patiently(lambda: self._out.put(self._done_key(key), msgspec.json.encode(done)))
        return done

    def _earlier(self, shard_folder: str, own: str) -> dict[str, ObjectInfo]:
        try:
            found = patiently(lambda: list(self._out.list(shard_folder)))
        except DataNotFoundError:  # a local folder that is made by the first output
            return {}
        return {info.key: info for info in found if not (own and info.key.startswith(own))}

    def _take_over(
        self, earlier: dict[str, ObjectInfo], number: int, key: str, fingerprint: str
    ) -> DoneChunk | None:
        """Copy a chunk that an earlier claim finished with the same work, if there is one."""
        for old in earlier:
            named = old.endswith(f"/chunk_{number:04d}{self._suffix}")
            if not named or self._done_key(old) not in earlier:
                continue
            found = patiently(functools.partial(self._copy, old, key, fingerprint))
            if found is not None:
                return found
        return None

    def _copy(self, old: str, key: str, fingerprint: str) -> DoneChunk | None:
        try:
            done = decode_json(b"".join(self._pieces(self._done_key(old))), type=DoneChunk)
            if done.fingerprint != fingerprint:
                return None
            with tempfile.TemporaryDirectory(prefix="quark-process-") as folder:
                path = Path(folder) / "chunk"
                written = copy_chunk(self._pieces(old), path, done.num_samples)
                if written.sha256 != done.sha256:
                    return None
                return self._publish(key, written, fingerprint, done.bad)
        except (ObjectNotFoundError, msgspec.MsgspecError):
            return None

    def _pieces(self, key: str) -> Iterator[bytes]:
        body = self._out.get(key)
        try:
            yield from body
        finally:
            body.close()

    def _done_key(self, key: str) -> str:
        return key.removesuffix(self._suffix) + DONE


@contextlib.contextmanager
def _writing(work: Work) -> Iterator[None]:
    """Turn a format's refusal of the results into the function's error."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise FunctionError(
            f"{work.function_name}: its results cannot be written as {work.output_format}: {error}",
            hint="Return the same fields, of the same types, for every sample.",
        ) from error


def _finished(writer: ChunkWriter, path: Path, num_samples: int, work: Work) -> WrittenChunk:
    with _writing(work):
        written = writer.finish()
    if written.num_samples != num_samples:
        raise DataError(f"{path.name}: {written.num_samples} results written of {num_samples}")
    return written
