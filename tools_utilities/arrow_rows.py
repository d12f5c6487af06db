"""Arrow record batches kept for reading rows at random, in bounded memory.

Small ones stay as they are; past `SPILL_BYTES` they go to an unlinked file and are read in place.
Nothing here needs whole columns in one piece, so nested columns of any size can be read.
"""

import sys
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from tools_utilities.spill import SPILL_BYTES, Spill

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowRows:
    """All rows of some record batches, by index."""

    def __init__(
        self,
        schema: "pa.Schema",
        batches: Iterable["pa.RecordBatch"],
        *,
        memory_bytes: int = SPILL_BYTES,
    ) -> None:
        """Take every batch; the iterable may be lazy: one batch at a time is in memory."""
        self.schema = schema
        self._spill: Spill | None = None
        held: list[Any] = []
        spans: list[tuple[int, int]] = []
        held_bytes = 0
        for batch in batches:
            held.append(batch)
            held_bytes += batch.nbytes
            if held_bytes > memory_bytes and self._spill is None:
                self._spill = Spill(memory_bytes=0)
            if self._spill is not None:
                spans.extend(_write_batch(self._spill, each) for each in held)
                held = []
        self.batches: list[Any] = held if self._spill is None else _mapped(self._spill, spans)
        if self._spill is not None:
            _release_unused_memory()
        self._bounds = np.cumsum([0, *(batch.num_rows for batch in self.batches)])
        self.num_rows = int(self._bounds[-1])
        self.held_bytes = held_bytes if self._spill is None else 0
        self._row_bytes = held_bytes // max(1, self.num_rows)
        self._num_buffers = sum(
            len(column.buffers()) for batch in self.batches[:1] for column in batch.columns
        )

    def take(self, indices: Sequence[int]) -> "pa.RecordBatch":
        """Return the rows at `indices`, in that order, as one batch."""
        import pyarrow as pa

        if not len(indices):
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        taken: pa.RecordBatch
        if len(self.batches) == 1:
            taken = self.batches[0].take(pa.array(indices, pa.int64()))
            return taken
        # Slices of one row each: `Table.take` would first copy whole list columns together.
        where = np.searchsorted(self._bounds, indices, side="right") - 1
        inside = np.asarray(indices) - self._bounds[where]
        rows = [
            self.batches[batch].slice(row, 1)
            for batch, row in zip(where.tolist(), inside.tolist(), strict=True)
        ]
        taken = pa.concat_batches(rows)  # type: ignore[attr-defined]  # the stubs lag behind pyarrow
        if self._spill is not None:
            self._spill.touched(len(rows) * self._num_buffers, len(rows) * self._row_bytes)
        return taken

    def select(self, names: Sequence[str]) -> "ArrowRows":
        """Return the same rows with only these columns; shares the data, so close only one."""
        chosen = copy(self)
        chosen.batches = [batch.select(list(names)) for batch in self.batches]
        chosen.schema = _select_fields(self.schema, names)
        return chosen

    def close(self) -> None:
        """Let go of the batches."""
        self.batches = []
        if self._spill is not None:
            self._spill.close()


def _select_fields(schema: "pa.Schema", names: Sequence[str]) -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([schema.field(name) for name in names])


def python_rows(batch: "pa.RecordBatch") -> list[dict[str, Any]]:
    """Return a batch's rows as dicts of Python values (nested ones too).

    Raises:
        ValueError: a value has no exact Python form (text that is not UTF-8, odd nanoseconds).
    """
    names = [sys.intern(name) for name in batch.schema.names]
    columns = [_python_values(column) for column in batch.columns]
    if not columns:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def _python_values(column: Any) -> list[Any]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        # Else the values would be pandas' own where pandas happens to be installed.
        column = column.cast(pa.timestamp("us", tz=kind.tz))
    values: list[Any] = column.to_pylist()
    return values


def _release_unused_memory() -> None:
    """Give back what decoding a large row group left in Arrow's pool."""
    import pyarrow as pa

    pa.default_memory_pool().release_unused()


def _write_batch(spill: Spill, batch: "pa.RecordBatch") -> tuple[int, int]:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    start = spill.size_bytes
    spill.write(memoryview(sink.getvalue()))
    padding = -spill.size_bytes % 64  # Arrow wants its buffers aligned
    spill.write(bytes(padding))
    return start, spill.size_bytes - padding


def _mapped(spill: Spill, spans: list[tuple[int, int]]) -> list[Any]:
    import pyarrow as pa

    view = spill.view()
    return [
        pa.ipc.open_stream(pa.py_buffer(view[start:end])).read_next_batch() for start, end in spans
    ]
