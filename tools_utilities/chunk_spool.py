"""Chunks made from a file: a round's records wait on disk, then `workers` chunks are written at a time.

However many shards grow side by side, only the chunks being written take memory. Formats whose
writers are Python code get a process for each worker (`chunk_process.py`), so that they use the cores;
the bytes are the same wherever a chunk is written.
"""

import queue
import secrets
import struct
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from tools_utilities.chunk_writer import WrittenChunk, write_chunk
from tools_utilities.errors import QuarkError, RecordError, said_by
from tools_utilities.process_environment import OWN_PATH, child_environment, own_program
from tools_utilities.sample_codec import decode_sample, encode_sample
from tools_utilities.token_width import NARROW, writing_format

Message = TypeVar("Message", bound=msgspec.Struct)
_FRAME = struct.Struct("<cQ")
_LENGTH = struct.Struct("<I")
_LINES, _SAMPLES = b"j", b"s"
_BUFFER_BYTES = 32 << 10


class ChunkJob(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk to be written from a file of waiting records."""

    spool: Path
    path: Path
    format: str
    compression: str | None
    memory_bytes: int
    token_dtype: str = NARROW


class ChunkReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a process answers to a job: one of the two."""

    written: WrittenChunk | None = None
    error: str | None = None
    hint: str = ""
    detail: dict[str, Any] = {}
    is_record: bool = False
    """The error is one of a record."""


class ChunkProcessError(QuarkError):
    """A process that writes chunks failed or was lost."""


def encode_message(message: ChunkJob | ChunkReply) -> bytes:
    """Return a job or a reply as one line of JSON, without the line end."""
    return msgspec.json.encode(message, enc_hook=str)


def decode_message(line: bytes, kind: type[Message]) -> Message:
    """Return what `encode_message` was given; paths as such."""
    return msgspec.json.decode(line, type=kind, dec_hook=lambda wanted, value: wanted(value))


def do_job(job: ChunkJob) -> WrittenChunk:
    """Write a chunk and remove what it was made from; a failed one leaves no file."""
    try:
        with job.spool.open("rb", buffering=1 << 20) as file:
            written = write_chunk(
                waiting(file),
                job.path,
                writing_format(job.format, job.token_dtype),
                job.compression,
                memory_bytes=job.memory_bytes,
            )
    finally:
        job.spool.unlink(missing_ok=True)
    return written


def waiting(file: BinaryIO) -> Iterator[list[Any]]:
    """Yield the batches of a spool as they were added."""
    while head := file.read(_FRAME.size):
        kind, length = _FRAME.unpack(head)
        content = file.read(length)
        if kind == _LINES:
            yield content.split(b"\n")
            continue
        batch, offset = [], 0
        while offset < length:
            (size,) = _LENGTH.unpack_from(content, offset)
            offset += _LENGTH.size + size
            batch.append(decode_sample(memoryview(content)[offset - size : offset]))
        yield batch


class SpooledChunkWriter:
    """One chunk whose records wait in a file beside it until `end`."""

    def __init__(self, job: ChunkJob, pool: "ChunkPool") -> None:
        self._job = job
        self._pool = pool
        self._file = job.spool.open("wb", buffering=_BUFFER_BYTES)
        self._future: Future[WrittenChunk] | None = None

    def add(self, records: Sequence[Any]) -> None:
        """Append records: JSON lines as they are, samples with every type kept."""
        if isinstance(records[0], bytes):
            kind, content = _LINES, b"\n".join(records)
        else:
            kind, pieces = _SAMPLES, [encode_sample(record) for record in records]
            content = b"".join(_LENGTH.pack(len(piece)) + piece for piece in pieces)
        self._file.write(_FRAME.pack(kind, len(content)))
        self._file.write(content)

    def end(self) -> None:
        """Hand the chunk over to be written."""
        if self._future is None:
            self._file.close()
            self._future = self._pool.submit(self._job)

    def finish(self) -> WrittenChunk:
        """Wait for the chunk."""
        self.end()
        assert self._future is not None  # noqa: S101 - `end` sets it
        return self._future.result()

    def abandon(self) -> None:
        """Remove the files; a chunk that is being written is waited for."""
        with suppress(OSError):  # a full disk: what cannot be flushed is not wanted either
            self._file.close()
        if self._future is not None and not self._future.cancel():
            with suppress(Exception):  # the error that made us give up is told already
                self._future.result()
        for path in (self._job.spool, self._job.path):
            path.unlink(missing_ok=True)


class ChunkPool:
    """Writes chunks from spools, `workers` at a time, on threads or in a process each."""

    def __init__(self, workers: int, *, processes: bool) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="quark-chunk")
        self._processes = processes
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._started: list[subprocess.Popen[bytes]] = []
        self._closed = False

    def submit(self, job: ChunkJob) -> "Future[WrittenChunk]":
        """Have a chunk written."""
        return self._threads.submit(self._ask if self._processes else do_job, job)

    def close(self) -> None:
        """End the processes and threads; what was not begun is not written."""
        self._closed = True
        for process in self._started:
            process.kill()  # idle, or writing what nobody waits for
        self._threads.shutdown(cancel_futures=True)
        for process in self._started:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()

    def _ask(self, job: ChunkJob) -> WrittenChunk:
        process = self._process()
        assert process.stdin is not None  # noqa: S101 - both are pipes
        assert process.stdout is not None  # noqa: S101 - both are pipes
        try:
            process.stdin.write(encode_message(job) + b"\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = b""
        if not answer:
            raise ChunkProcessError(
                f"{job.path.name}: the process that wrote this chunk ended with {process.wait()}",
                hint="Run the same command again: it goes on after the last finished chunks.",
            )
        self._idle.put(process)
        return _written(decode_message(answer, ChunkReply))

    def _process(self) -> "subprocess.Popen[bytes]":
        with suppress(queue.Empty):
            return self._idle.get_nowait()
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            own_program("tools_utilities.chunk_process"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(OWN_PATH),
            start_new_session=True,  # Ctrl-C reaches it through its parent
        )
        self._started.append(process)
        if self._closed:
            process.kill()
        return process


def _written(reply: ChunkReply) -> WrittenChunk:
    if reply.written is not None:
        return reply.written
    kind = RecordError if reply.is_record else ChunkProcessError
    raise kind(reply.error or "", hint=reply.hint, **reply.detail)


def reply_to(job: ChunkJob) -> ChunkReply:
    """Do a job and say how it went; any error is told, never raised."""
    try:
        return ChunkReply(written=do_job(job))
    except QuarkError as error:
        return ChunkReply(
            error=str(error),
            hint=error.hint,
            detail=error.detail,
            is_record=isinstance(error, RecordError),
        )
    except Exception as error:  # noqa: BLE001 - told to the process that asked
        return ChunkReply(error=f"{job.path.name}: {said_by(error)}")


def new_paths(staging: Path, name: str) -> tuple[Path, Path]:
    """Return where a chunk's records wait and where it is written, as no other run names them.

    A process of a run that was killed may still be writing the chunk it had begun.
    """
    staging.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{secrets.token_hex(4)}"
    return staging / f"{stem}.spool.tmp", staging / f"{stem}.tmp"
