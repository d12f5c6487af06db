"""Record batches with their dictionaries replaced by what they stand for."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tools_utilities.parquet_pages import bomb, is_bomb

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN_BYTES = 8 << 20
"""Of what dictionaries stand for, made at once."""


def has_dictionary(kind: Any) -> bool:
    """Tell whether a type, or one inside it, is a dictionary."""
    import pyarrow as pa

    inside = [kind.field(i).type for i in range(kind.num_fields)]
    return pa.types.is_dictionary(kind) or any(map(has_dictionary, inside))


def plain_batches(key: str, batch: "pa.RecordBatch", size_bytes: int) -> Iterator["pa.RecordBatch"]:
    """Yield a batch that may be joined with others: checked, dictionaries replaced by their values.

    What dictionaries stand for may be any number of times what they hold, so it is counted first, and
    done in pieces.

    Raises:
        RecordError: it is more than so many stored bytes can be; `reason` is bomb.
    """
    import pyarrow as pa

    batch.validate(full=True)
    schema = plain_schema(batch.schema)
    if schema.equals(batch.schema):
        yield batch
        return
    longest = sum(_longest_value(column) for column in batch.columns)
    if is_bomb(batch.num_rows * longest, size_bytes):
        _count_values(key, batch, size_bytes)
    rows = max(1, _PLAIN_BYTES // max(1, longest))
    for start in range(0, batch.num_rows, rows):
        piece = batch.slice(start, rows)
        columns = [
            column.cast(field.type) for column, field in zip(piece.columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _value_sizes(column: Any) -> Any:
    """Return the bytes of each value of a dictionary column; None: it is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_dictionary(column.type):
        return None
    values, kind = column.dictionary, column.type.value_type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return pc.binary_length(values)
    if pa.types.is_large_binary(kind) or pa.types.is_large_string(kind):
        return pc.binary_length(values)
    # Of all else the whole is the most that one of them can be.
    return pa.array([values.nbytes] * len(values), pa.int64())


def _longest_value(column: Any) -> int:
    import pyarrow.compute as pc

    sizes = _value_sizes(column)
    return 0 if sizes is None else int(pc.max(sizes).as_py() or 0)


def _count_values(key: str, batch: "pa.RecordBatch", size_bytes: int) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    total = 0
    columns: list[Any] = list(batch.columns)
    for column in columns:
        sizes = _value_sizes(column)
        if sizes is not None:
            total += int(pc.sum(sizes.cast(pa.int64()).take(column.indices)).as_py() or 0)
    if is_bomb(total, size_bytes):
        raise bomb(key, f"{total:,} bytes", size_bytes)


def plain_schema(schema: "pa.Schema") -> "pa.Schema":
    """Return a schema with the values' types in place of the dictionaries'."""
    import pyarrow as pa

    return pa.schema(
        [
            field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
            for field in schema
        ]
    )
