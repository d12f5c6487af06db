"""Arrow record batches kept for reading rows at random, in bounded memory.

Small ones stay as they are; past `SPILL_BYTES` they go to an unlinked file and are read in place.
Nothing here needs whole columns in one piece, so nested columns of any size can be read.
"""

import sys
from collections.abc import Iterable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import numpy as np

from tools_utilities.cached_file import ReadPages
from tools_utilities.spill import SPILL_BYTES, Spill

_LONG_LIST_BYTES = 512  # a row

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
        in_place: bool = False,
        pages: ReadPages | None = None,
    ) -> None:
        """Take every batch; the iterable may be lazy: one batch at a time is in memory.

        `in_place`: the batches lie in memory or a mapped file that is there anyway; they are neither
        copied nor counted. `pages`: the file, where it is to be closed with them.
        """
        self.schema = schema
        self._spill: Spill | None = None
        self._pages = pages
        in_place = in_place or pages is not None
        held: list[Any] = []
        spans: list[tuple[int, int]] = []
        held_bytes = 0
        for batch in batches:
            held.append(batch)
            held_bytes += batch.nbytes
            if in_place:
                continue
            if held_bytes > memory_bytes and self._spill is None:
                self._spill = Spill(memory_bytes=0)
            if self._spill is not None:
                spans.extend(_write_batch(self._spill, each) for each in held)
                held = []
        self.batches: list[Any] = (
            _mapped(self._spill, spans)
            if self._spill is not None
            else (held if in_place else _joined(held))
        )
        self._bounds = np.cumsum([0, *(batch.num_rows for batch in self.batches)])
        self.num_rows = int(self._bounds[-1])
        self.held_bytes = held_bytes if self._spill is None and not in_place else 0
        self.num_bytes = held_bytes
        """Decoded, wherever they lie."""
        self._row_bytes = held_bytes // max(1, self.num_rows)
        self._num_buffers = sum(
            len(column.buffers()) for batch in self.batches[:1] for column in batch.columns
        )
        # Arrow's `take` copies lists element by element.
        long_lists = self._row_bytes > _LONG_LIST_BYTES and any(map(_has_list, schema.types))
        self._by_slices = long_lists or any(map(_has_no_take, schema.types))

    def take(self, indices: Sequence[int]) -> "pa.RecordBatch":
        """Return the rows at `indices`, in that order, as one batch."""
        import pyarrow as pa

        if not len(indices):
            return pa.RecordBatch.from_pylist([], schema=self.schema)
        taken: pa.RecordBatch
        if len(self.batches) == 1 and not self._by_slices:
            taken = self.batches[0].take(pa.array(indices, pa.int64()))
        else:
            # Slices of one row each: `Table.take` would first copy whole columns together.
            places = self.locate(indices)
            taken = _concat([self.batches[batch].slice(row, 1) for batch, row in places])
        self.touched(len(indices))
        return taken

    def locate(self, indices: Sequence[int]) -> list[tuple[int, int]]:
        """Return the batch and the row in it of each index."""
        batches = np.searchsorted(self._bounds, indices, side="right") - 1
        rows = np.asarray(indices) - self._bounds[batches]
        return list(zip(batches.tolist(), rows.tolist(), strict=True))

    def touched(self, num_rows: int) -> None:
        """Tell that rows were read, so that mapped pages can be let go."""
        lying = self._spill or self._pages
        if lying is not None:
            lying.touched(num_rows * self._num_buffers, num_rows * self._row_bytes)

    def select(self, names: Sequence[str]) -> "ArrowRows":
        """Return the same rows with only these columns; shares the data, so close only one."""
        chosen = copy(self)
        chosen.batches = [batch.select(list(names)) for batch in self.batches]
        chosen.schema = _select_fields(self.schema, names)
        return chosen

    def close(self) -> None:
        """Let go of the batches."""
        self.batches = []
        for lying in (self._spill, self._pages):
            if lying is not None:
                lying.close()


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
    kind = exact_type(column.type)
    if kind != column.type:
        column = column.cast(kind)
    values: list[Any] = column.to_pylist()
    return values


def exact_type(kind: Any) -> Any:
    """Return a type with microseconds for nanoseconds, inside nested types too.

    Else the values would be pandas' own where pandas happens to be installed.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        return pa.struct([field.with_type(exact_type(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(kind.key_type, kind.item_field.with_type(exact_type(kind.item_type)))
    if types.is_fixed_size_list(kind):
        value = kind.value_field.with_type(exact_type(kind.value_type))
        return pa.list_(value, kind.list_size)
    if types.is_list(kind) or types.is_large_list(kind):
        make = pa.list_ if types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(exact_type(kind.value_type)))
    return _leaf_inexact_type(kind) if getattr(kind, "unit", "") == "ns" else kind


def _leaf_inexact_type(kind: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz=kind.tz)
    return pa.duration("us") if pa.types.is_duration(kind) else pa.time64("us")


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


def _joined(batches: list[Any]) -> list[Any]:
    return [_concat(batches)] if len(batches) > 1 else batches


def _concat(batches: list[Any]) -> Any:
    import pyarrow as pa

    return pa.concat_batches(batches)  # type: ignore[attr-defined]  # the stubs lag behind pyarrow


def _has_no_take(kind: Any) -> bool:
    """Tell whether pyarrow cannot take rows of a type: the views that polars writes, run lengths."""
    import pyarrow as pa

    types = pa.types
    inside = [kind.field(i).type for i in range(kind.num_fields)]
    is_view = types.is_string_view(kind) or types.is_binary_view(kind)
    return is_view or types.is_run_end_encoded(kind) or any(map(_has_no_take, inside))


def _has_list(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        return any(_has_list(field.type) for field in kind)
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list or types.is_map(kind)


def _mapped(spill: Spill, spans: list[tuple[int, int]]) -> list[Any]:
    import pyarrow as pa

    pa.default_memory_pool().release_unused()  # what decoding a large row group left behind
    view = spill.view()
    return [
        pa.ipc.open_stream(pa.py_buffer(view[start:end])).read_next_batch() for start, end in spans
    ]
