"""Writes one chunk file: records in, bytes, counts and checksums out. Published by its caller.

Every chunk's writer runs on a thread of its own, fed through a bounded queue, so that N chunks grow
side by side in bounded memory. JSON lines that are already bytes are copied.
"""

import hashlib
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from tools_utilities.background import BACKGROUND
from tools_utilities.checksum import crc32c, encode_crc32c
from tools_utilities.compression import CompressedWriter, compressed_writer
from tools_utilities.json_records import ExactJson, decode_objects, encode_line
from tools_utilities.shard_format import BoundedWriter, ReadOptions, Sample, ShardFormat

QUEUE_BATCHES = 2
BUFFER_BYTES = 256 << 10
WRITER_BYTES = 12 << 20
"""What one writer may hold in memory, unless it is told less."""
_MOST_PIECE_BYTES, _PIECES_OF_MEMORY = 1 << 20, 12
"""What a compressor is given at a time: the fewer pieces, the fewer turns to wait for."""
_LOOK_SECONDS = 0.05


class WrittenChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished chunk file holds."""

    path: Path
    num_samples: int
    num_bytes: int
    crc32c: str
    """Base64 of the big-endian CRC-32C."""
    sha256: str


class ChunkWriter(Protocol):
    """One chunk being written; not thread-safe."""

    def add(self, records: Sequence[Any]) -> None:
        """Append records (JSON lines as bytes, or samples, as the writer was made for)."""
        ...

    def finish(self) -> WrittenChunk:
        """Flush to disk and return what was written."""
        ...

    def abandon(self) -> None:
        """Stop and remove the file."""
        ...


class _CheckedFile:
    """A file that counts and sums what goes through it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("wb", buffering=BUFFER_BYTES)
        self._crc32c = 0
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: Any, /) -> int:
        self._crc32c = crc32c(data, self._crc32c)
        self._sha256.update(data)
        size = memoryview(data).nbytes
        self.num_bytes += size
        self._file.write(data)
        return size

    def writelines(self, pieces: Iterable[Any], /) -> None:
        for piece in pieces:
            self.write(piece)

    def tell(self) -> int:
        return self.num_bytes

    def flush(self) -> None:
        self._file.flush()

    @property
    def closed(self) -> bool:
        return self._file.closed

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        """Formats may close what they write to; the chunk closes the real file."""

    def settle(self, num_samples: int) -> WrittenChunk:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return WrittenChunk(
            path=self.path,
            num_samples=num_samples,
            num_bytes=self.num_bytes,
            crc32c=encode_crc32c(self._crc32c),
            sha256=self._sha256.hexdigest(),
        )

    def remove(self) -> None:
        with suppress(OSError):  # a full disk: what cannot be flushed is not wanted either
            self._file.close()
        self.path.unlink(missing_ok=True)


def encode_lines(records: Sequence[bytes | Sample], first: int) -> bytes:
    """Return records as JSON lines; those that are lines already are copied.

    Raises:
        RecordError: a sample holds what JSON cannot say exactly; `first` numbers the first record.
    """
    if records and isinstance(records[0], bytes):
        return b"\n".join([*records, b""])  # type: ignore[list-item] # a source gives one kind
    return b"".join(encode_line(sample, first + at) for at, sample in enumerate(records))  # type: ignore[arg-type] # as above


def write_lines(
    batches: Iterable[Sequence[Any]], stream: CompressedWriter, piece_bytes: int = BUFFER_BYTES
) -> int:
    """Write batches of JSON lines or samples and return how many; in pieces of one size.

    What a compressor gives may depend on how it is fed: so it is fed alike whatever the batches are,
    which a resumed run cuts at other places.
    """
    count, held = 0, bytearray()
    for batch in batches:
        encoded = memoryview(encode_lines(batch, count))
        count += len(batch)
        start = 0
        if held:
            start = piece_bytes - len(held)
            held += encoded[:start]
            if len(held) < piece_bytes:
                continue
            stream.write(bytes(held))
            held.clear()
        whole = len(encoded) - (len(encoded) - start) % piece_bytes
        for at in range(start, whole, piece_bytes):
            stream.write(encoded[at : at + piece_bytes])  # type: ignore[arg-type] # any buffer
        held += encoded[whole:]
    stream.write(bytes(held))
    return count


class LineChunkWriter:
    """Copies JSON lines, and writes samples as such, on the thread that adds."""

    def __init__(self, path: Path, compression: str | None) -> None:
        self._file = _CheckedFile(path)
        self._stream = compressed_writer(self._file, compression)  # type: ignore[arg-type] # writes only
        self._num_samples = 0

    def add(self, records: Sequence[bytes | Sample]) -> None:
        """Append lines, each without its line end; samples of other formats are encoded."""
        if records:
            self._stream.write(encode_lines(records, self._num_samples))
            self._num_samples += len(records)

    def finish(self) -> WrittenChunk:
        """End the compression and sync."""
        self._stream.close()
        return self._file.settle(self._num_samples)

    def abandon(self) -> None:
        """Remove the file."""
        self._file.remove()


class FormatChunkWriter:
    """Runs a format's writer on a thread; compressing and checking let other threads run."""

    def __init__(
        self,
        path: Path,
        shard_format: ShardFormat,
        compression: str | None,
        *,
        slots: threading.Semaphore | None = None,
        memory_bytes: int = WRITER_BYTES,
    ) -> None:
        """Begin a chunk; `slots`: how many of the writers that share it work at a time."""
        self._memory_bytes = memory_bytes
        self._file = _CheckedFile(path)
        self._format = shard_format
        self._compression = compression
        self._slots = slots or threading.Semaphore(1)
        self._batches: queue.Queue[Sequence[Any] | None] = queue.Queue(QUEUE_BATCHES)
        self._error: BaseException | None = None
        self._written: WrittenChunk | None = None
        self._abandoned = threading.Event()
        self._ended = self._told_end = False
        self._thread = threading.Thread(target=self._run, name="quark-chunk", daemon=True)
        self._thread.start()

    def add(self, records: Sequence[Any]) -> None:
        """Append records; raises what the format's writer raised."""
        self._raise()
        self._batches.put(records)

    def end(self) -> None:
        """Say that nothing follows, without waiting for what is still to be written."""
        if not self._told_end:
            self._told_end = True
            self._batches.put(None)

    def finish(self) -> WrittenChunk:
        """Wait for the writer and sync."""
        self.end()
        self._thread.join()
        self._raise()
        assert self._written is not None  # noqa: S101 - else there is an error
        return self._written

    def abandon(self) -> None:
        """Stop the thread and remove the file."""
        self._abandoned.set()
        while self._thread.is_alive():
            with suppress(queue.Full):
                self._batches.put(None, timeout=_LOOK_SECONDS)
            self._thread.join(_LOOK_SECONDS)
        self._file.remove()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _next(self) -> Sequence[Any] | None:
        """Wait for the next batch, without holding up the others meanwhile."""
        self._slots.release()
        try:
            with BACKGROUND.away():
                return self._batches.get()
        finally:
            self._slots.acquire()

    def _each_batch(self) -> Iterator[Sequence[Any]]:
        while (batch := self._next()) is not None:
            if not self._abandoned.is_set():
                yield batch
        self._ended = True

    def _run(self) -> None:
        num_samples = 0
        with self._slots, BACKGROUND.piece():
            try:
                num_samples = self._write()
            except BaseException as error:  # noqa: BLE001 - handed to the thread that adds
                self._error = error
                while not self._ended:  # keep `add` from blocking for ever
                    self._ended = self._next() is None
        if self._error is None and not self._abandoned.is_set():
            try:  # several wait for the disk at a time, while others write
                self._written = self._file.settle(num_samples)
            except BaseException as error:  # noqa: BLE001 - as above
                self._error = error

    def _write(self) -> int:
        return write_batches(
            self._each_batch(),
            self._file,  # type: ignore[arg-type] # writes only
            self._format,
            self._compression,
            memory_bytes=self._memory_bytes,
        )


def write_chunk(
    batches: Iterable[Sequence[Any]],
    path: Path,
    shard_format: ShardFormat,
    compression: str | None,
    *,
    memory_bytes: int,
) -> WrittenChunk:
    """Write a chunk on this thread and sync it; a failed one leaves no file."""
    file = _CheckedFile(path)
    try:
        count = write_batches(batches, file, shard_format, compression, memory_bytes=memory_bytes)  # type: ignore[arg-type] # writes only
        return file.settle(count)
    except BaseException:
        file.remove()
        raise


def copy_chunk(pieces: Iterable[bytes], path: Path, num_samples: int) -> WrittenChunk:
    """Write a chunk's bytes as they come, and sync it; a failed one leaves no file."""
    file = _CheckedFile(path)
    try:
        file.writelines(pieces)
        return file.settle(num_samples)
    except BaseException:
        file.remove()
        raise


def write_batches(
    batches: Iterable[Sequence[Any]],
    file: BinaryIO,
    shard_format: ShardFormat,
    compression: str | None,
    *,
    memory_bytes: int,
) -> int:
    """Write batches of JSON lines or samples in a format, compressed; returns how many records."""
    if shard_format.name == "jsonl":
        piece_bytes = min(_MOST_PIECE_BYTES, max(BUFFER_BYTES, memory_bytes // _PIECES_OF_MEMORY))
        stream = compressed_writer(
            file, compression, memory_bytes=memory_bytes, piece_bytes=piece_bytes
        )
        count = write_lines(batches, stream, piece_bytes)
        stream.close()
        return count
    samples = _samples(batches)
    if compression is None:
        return _format_write(samples, file, shard_format, memory_bytes)
    stream = compressed_writer(file, compression, memory_bytes=memory_bytes)
    count = _format_write(samples, _Lines(stream), shard_format, memory_bytes)  # type: ignore[arg-type] # writes only
    stream.close()
    return count


class _Lines:
    """A compressor as a format's writer takes it: several pieces at a time too."""

    def __init__(self, stream: CompressedWriter) -> None:
        self.write = stream.write

    def writelines(self, pieces: Iterable[Any], /) -> None:
        """Compress every piece."""
        for piece in pieces:
            self.write(piece)


def _samples(batches: Iterable[Sequence[Any]]) -> Iterator[Sample]:
    for batch in batches:
        if isinstance(batch[0], bytes):
            yield from decode_objects([memoryview(b"\n".join(batch))], count=len(batch)) or [
                _exact.decode(line) for line in batch
            ]
        else:
            yield from batch


_exact = ExactJson(ReadOptions(allow_nan=True))
"""For what the source took: it was told whether NaN may be there."""


def _format_write(
    samples: Iterator[Sample], file: BinaryIO, shard_format: ShardFormat, memory_bytes: int
) -> int:
    if isinstance(shard_format, BoundedWriter):
        return shard_format.write_within(samples, file, memory_bytes)
    return shard_format.write(samples, file)
