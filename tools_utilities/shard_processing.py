"""A function over every sample of a claimed shard, chunk by chunk, into the claim's own folder.

Outputs are JSON lines under `<out>/<shard>/<gen>-<owner>/`, one file a chunk, each followed by a
small `.done.json` that says what it was made of. A worker that takes a shard over copies the chunks
that an earlier claim finished, so at most one chunk is worked twice. Readers follow only the
`output` of completed records: what a lost claim left behind is never seen.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tools_utilities.claim_record import ClaimRecord, output_folder
from tools_utilities.errors import (
    DataError,
    DataNotFoundError,
    ObjectNotFoundError,
    QuarkError,
)
from tools_utilities.manifest import Chunk, Shard
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.sample_source import SourceOptions
from tools_utilities.sample_sources.stored import StoredRecords
from tools_utilities.shard_format import Sample

BatchFunction = Callable[[list[Sample]], Sequence[Any]]
"""A batch of samples → one result a sample, in order; each a mapping or anything JSON can hold."""


class FunctionError(QuarkError):
    """The user's function raised, or returned something that cannot be written."""


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What is done with every shard."""

    function: BatchFunction
    function_name: str
    batch_size: int = 32

    def fingerprint(self, chunk: Chunk) -> str:
        """Return what a finished chunk must share with this work to be used again."""
        made_of = (self.function_name, self.batch_size, chunk.key, chunk.num_samples)
        content = (chunk.num_bytes, chunk.crc32c, chunk.sha256)
        return hashlib.sha256(repr((made_of, content)).encode()).hexdigest()


class DoneChunk(msgspec.Struct, frozen=True, kw_only=True):
    """The `.done.json` beside a chunk's output."""

    fingerprint: str
    num_samples: int
    num_bytes: int
    sha256: str


class ShardOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A shard's finished output."""

    folder: str
    num_samples: int
    checksum: str
    """SHA-256 over the chunks' own, in order."""
    num_worked: int
    """Chunks that the function ran on; the others were taken over."""


class ShardProcessor:
    """Works one shard under one claim. `check` raises once the claim must not be worked on."""

    def __init__(
        self,
        source: tuple[ObjectStore, str],
        out: tuple[ObjectStore, str],
        work: Work,
        *,
        check: Callable[[], None],
        report: Callable[[int], None] = lambda _chunks: None,
    ) -> None:
        self._store, self._prefix = source
        self._out, self._out_prefix = out
        self._work = work
        self._check = check
        self._report = report

    def run(self, shard: Shard, record: ClaimRecord) -> ShardOutput:
        """Work every chunk and return what came of it.

        Raises:
            ClaimError: the claim is lost or in danger; what was written is never seen.
            FunctionError: the function failed; names the chunk and sample.
            DataError: a chunk is not what the manifest says.
        """
        name = f"shard_{shard.shard_id:03d}"
        folder = f"{self._out_prefix}{output_folder(name, record)}"
        earlier = self._earlier(f"{self._out_prefix}{name}/", folder)
        done: list[DoneChunk] = []
        num_worked = 0
        for number, chunk in enumerate(shard.chunks):
            self._check()
            key = f"{folder}chunk_{number:04d}.jsonl"
            found = self._take_over(earlier, number, key, self._work.fingerprint(chunk))
            if found is None:
                found = self._work_chunk(chunk, key)
                num_worked += 1
            done.append(found)
            self._report(number + 1)
        sums = "".join(entry.sha256 for entry in done)
        return ShardOutput(
            folder=f"{self._out.spec.uri}/{folder}",
            num_samples=sum(entry.num_samples for entry in done),
            checksum=hashlib.sha256(sums.encode()).hexdigest(),
            num_worked=num_worked,
        )

    def _work_chunk(self, chunk: Chunk, key: str) -> DoneChunk:
        lines: list[bytes] = []
        for batch in self._batches(chunk):
            self._check()
            lines += [
                _encode(result, chunk.key) for result in self._apply(batch, chunk, len(lines))
            ]
        if len(lines) != chunk.num_samples:
            raise DataError(
                f"{chunk.key}: {len(lines)} samples, the manifest says {chunk.num_samples}",
                hint="Write the dataset again: its metadata and its data differ.",
                key=chunk.key,
            )
        data = b"".join(line + b"\n" for line in lines)
        return self._publish(key, data, len(lines), self._work.fingerprint(chunk))

    def _apply(self, batch: list[Sample], chunk: Chunk, first: int) -> Sequence[Any]:
        where = f"{chunk.key}, samples {first} to {first + len(batch) - 1}"
        try:
            results: Any = self._work.function(batch)
        except Exception as error:
            raise FunctionError(
                f"{self._work.function_name}: {type(error).__name__}: {error} ({where})",
                hint="Its shard is free again; correct the function and run the same command.",
                key=chunk.key,
            ) from error
        if not isinstance(results, Sequence) or len(results) != len(batch):
            shown = f"{len(results)} results" if hasattr(results, "__len__") else "no list"
            raise FunctionError(
                f"{self._work.function_name} returned {shown} for {len(batch)} samples ({where})",
                hint="It gets a list of samples and returns a list with one result for each.",
                key=chunk.key,
            )
        checked: Sequence[Any] = results
        return checked

    def _batches(self, chunk: Chunk) -> Iterator[list[Sample]]:
        key = self._prefix + chunk.key
        stored = self._store.head(key)
        if chunk.num_bytes is not None and stored.size_bytes != chunk.num_bytes:
            raise DataError(
                f"{key}: {stored.size_bytes} bytes, the manifest says {chunk.num_bytes}", key=key
            )
        info = msgspec.structs.replace(stored, crc32c=chunk.crc32c or stored.crc32c)
        records = StoredRecords(key, self._store, [info], SourceOptions())
        waiting: list[Sample] = []
        for block in records.blocks(0, None):
            waiting += block.records  # type: ignore[arg-type] # json_bytes is off: samples
            whole = len(waiting) - len(waiting) % self._work.batch_size
            for begin in range(0, whole, self._work.batch_size):
                yield waiting[begin : begin + self._work.batch_size]
            waiting = waiting[whole:]
        if waiting:
            yield waiting

    def _publish(self, key: str, data: bytes, num_samples: int, fingerprint: str) -> DoneChunk:
        self._out.put(key, data)
        done = DoneChunk(
            fingerprint=fingerprint,
            num_samples=num_samples,
            num_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
        )
        # After its data: a kill between the two leaves a chunk that is simply worked again.
        self._out.put(_done_key(key), msgspec.json.encode(done))
        return done

    def _earlier(self, shard_folder: str, own: str) -> dict[str, ObjectInfo]:
        try:
            found = list(self._out.list(shard_folder))
        except DataNotFoundError:  # a local folder that is made by the first output
            return {}
        return {info.key: info for info in found if not info.key.startswith(own)}

    def _take_over(
        self, earlier: dict[str, ObjectInfo], number: int, key: str, fingerprint: str
    ) -> DoneChunk | None:
        """Copy a chunk that an earlier claim finished with the same work, if there is one."""
        for old in earlier:
            if not old.endswith(f"/chunk_{number:04d}.jsonl") or _done_key(old) not in earlier:
                continue
            try:
                done = msgspec.json.decode(self._read(_done_key(old)), type=DoneChunk)
                data = self._read(old)
            except (ObjectNotFoundError, msgspec.MsgspecError):
                continue
            if done.fingerprint == fingerprint and done.sha256 == hashlib.sha256(data).hexdigest():
                return self._publish(key, data, done.num_samples, fingerprint)
        return None

    def _read(self, key: str) -> bytes:
        body = self._out.get(key)
        try:
            return b"".join(body)
        finally:
            body.close()


def _done_key(key: str) -> str:
    return key.removesuffix(".jsonl") + ".done.json"


def _encode(result: Any, key: str) -> bytes:
    try:
        return msgspec.json.encode(result, enc_hook=_plain)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise FunctionError(f"a result of {key} is not JSON: {error}", key=key) from error


def _plain(value: Any) -> Any:
    """Turn numpy arrays and scalars, and tensors, into numbers."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} cannot be written as JSON")
