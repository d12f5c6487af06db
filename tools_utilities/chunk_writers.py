"""Chooses how the chunks of a run are written: side by side on threads, or from waiting files."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from tools_utilities.chunk_spool import ChunkJob, ChunkPool, SpooledChunkWriter, new_paths
from tools_utilities.chunk_writer import WRITER_BYTES, FormatChunkWriter, WrittenChunk
from tools_utilities.token_width import NARROW, writing_format

_ALL_WRITERS_BYTES = 128 << 20
_FEWEST_WRITER_BYTES = 256 << 10
_SIDE_BY_SIDE = 8
"""Chunks of formats that hold samples back, that may grow at a time."""
_PYTHON_FORMATS = frozenset(
    {"csv", "json", "litdata", "mds", "npy", "npz", "tokens", "txt", "webdataset"}
)
"""Writers that hold the interpreter's lock: they need processes to run side by side."""
_WORTH_PROCESSES_BYTES = 48 << 20
"""Of the source; starting a process takes what writing a few megabytes does."""


class GrowingChunk(Protocol):
    """One chunk being written."""

    def add(self, records: Sequence[Any]) -> None:
        """Append records, JSON lines or samples."""
        ...

    def end(self) -> None:
        """Say that nothing follows, without waiting."""
        ...

    def finish(self) -> WrittenChunk:
        """Wait until it is on disk."""
        ...

    def abandon(self) -> None:
        """Stop, and remove its files."""
        ...


class ChunkWriters:
    """Opens the chunks of one run. Nothing here changes a byte of them but `plan`'s own values."""

    def __init__(
        self,
        staging: Path,
        *,
        format_name: str,
        compression: str | None,
        num_growing: int,
        workers: int,
        source_bytes: int | None,
        token_dtype: str = NARROW,
    ) -> None:
        """`num_growing`: chunks that grow at a time; `source_bytes`: None where it is not known."""
        self._staging = staging
        self._format_name = format_name
        self._compression = compression
        self._token_dtype = token_dtype
        self._slots = threading.Semaphore(workers)
        share = _ALL_WRITERS_BYTES // num_growing
        self._memory_bytes = min(WRITER_BYTES, max(_FEWEST_WRITER_BYTES, share))
        large = source_bytes is None or source_bytes >= _WORTH_PROCESSES_BYTES
        processes = workers > 1 and large and format_name in _PYTHON_FORMATS
        self._pool: ChunkPool | None = None
        if processes or (num_growing > _SIDE_BY_SIDE and format_name != "jsonl"):
            self._pool = ChunkPool(workers, processes=processes)

    def open(self, name: str) -> GrowingChunk:
        """Begin a chunk; `name` tells it apart in the staging folder."""
        spool, path = new_paths(self._staging, name)
        if self._pool is None:
            return FormatChunkWriter(
                path,
                writing_format(self._format_name, self._token_dtype),
                self._compression,
                slots=self._slots,
                memory_bytes=self._memory_bytes,
            )
        job = ChunkJob(
            spool=spool,
            path=path,
            format=self._format_name,
            compression=self._compression,
            memory_bytes=self._memory_bytes,
            token_dtype=self._token_dtype,
        )
        return SpooledChunkWriter(job, self._pool)

    def close(self) -> None:
        """End what works for it."""
        if self._pool is not None:
            self._pool.close()


def takes_lines(format_name: str, num_growing: int) -> bool:
    """Say whether JSON lines are best given as they are: copied, or decoded where they are written."""
    known = format_name in {"jsonl", "parquet"} or format_name in _PYTHON_FORMATS
    return known or num_growing > _SIDE_BY_SIDE
