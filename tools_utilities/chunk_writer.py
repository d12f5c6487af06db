"""Writes one chunk file: records in, bytes, counts and checksums out. Published by its caller.

JSON lines that are already bytes are copied; every other format's own writer runs on a thread of
its own, fed through a bounded queue, so that N chunks grow side by side in bounded memory.
"""

import hashlib
import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import msgspec

from tools_utilities.checksum import crc32c, encode_crc32c
from tools_utilities.compression import compressed_writer
from tools_utilities.shard_format import Sample, ShardFormat

QUEUE_BATCHES = 4
BUFFER_BYTES = 1 << 20


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
        self._file.close()
        self.path.unlink(missing_ok=True)


class LineChunkWriter:
    """Copies JSON lines, and writes samples as such."""

    def __init__(self, path: Path, compression: str | None) -> None:
        self._file = _CheckedFile(path)
        self._stream = compressed_writer(self._file, compression)  # type: ignore[arg-type] # writes only
        self._num_samples = 0

    def add(self, records: Sequence[bytes | Sample]) -> None:
        """Append lines, each without its line end; samples of other formats are encoded."""
        if records:
            lines = (
                record if isinstance(record, bytes) else msgspec.json.encode(record)
                for record in records
            )
            self._stream.write(b"\n".join(lines) + b"\n")
            self._num_samples += len(records)

    def finish(self) -> WrittenChunk:
        """End the compression and sync."""
        self._stream.close()
        return self._file.settle(self._num_samples)

    def abandon(self) -> None:
        """Remove the file."""
        self._file.remove()


class FormatChunkWriter:
    """Runs a format's writer on a thread."""

    def __init__(self, path: Path, shard_format: ShardFormat, compression: str | None) -> None:
        self._file = _CheckedFile(path)
        self._format = shard_format
        self._compression = compression
        self._batches: queue.Queue[Sequence[Sample] | None] = queue.Queue(QUEUE_BATCHES)
        self._error: BaseException | None = None
        self._num_samples = 0
        self._abandoned = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()

    def add(self, records: Sequence[Sample]) -> None:
        """Append samples; raises what the format's writer raised."""
        self._raise()
        self._batches.put(records)

    def finish(self) -> WrittenChunk:
        """Wait for the writer and sync."""
        self._batches.put(None)
        self._thread.join()
        self._raise()
        return self._file.settle(self._num_samples)

    def abandon(self) -> None:
        """Stop the thread and remove the file."""
        self._abandoned.set()
        self._batches.put(None)
        self._thread.join()
        self._file.remove()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _samples(self) -> Iterator[Sample]:
        while (batch := self._batches.get()) is not None:
            if not self._abandoned.is_set():
                yield from batch
        self._ended = True

    def _write(self) -> None:
        try:
            self._num_samples = self._write_all()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that adds
            self._error = error
            while not self._ended:  # keep `add` from blocking for ever
                self._ended = self._batches.get() is None

    def _write_all(self) -> int:
        file: BinaryIO = self._file  # type: ignore[assignment] # writes only
        if self._compression is None:
            return self._format.write(self._samples(), file)
        stream = compressed_writer(file, self._compression)
        count = self._format.write(self._samples(), stream)  # type: ignore[arg-type] # writes only
        stream.close()
        return count
