"""JSON lines to Arrow tables by Arrow's own parser, which lets other threads run; exact, or not at all.

Only plain columns (true/false, 64-bit integers and floats, text) are taken, under a schema that is
settled already. Whatever this parser reads otherwise than Python does is left to the caller: a key
that is there twice, one that the schema has not, a number of another kind, a whole number too large for a float.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_EXACT_FLOATS = float(1 << 53)
_MOST_BYTES = 1 << 30
"""Its blocks are counted in 32 bits."""


def takes_schema(schema: "pa.Schema") -> bool:
    """Say whether lines of this schema may be given to `lines_table`."""
    import pyarrow as pa

    plain = {pa.bool_(), pa.int64(), pa.float64(), pa.string()}
    return len(schema) > 0 and all(field.type in plain for field in schema)


def lines_table(lines: Sequence[bytes], schema: "pa.Schema") -> "pa.Table | None":
    """Return records, one a line, as a table; None where only Python's values would be exact."""
    import pyarrow as pa
    import pyarrow.json

    joined = b"\n".join([*lines, b""])
    if len(joined) > _MOST_BYTES:
        return None
    try:
        table = pyarrow.json.read_json(
            pa.BufferReader(joined),  # type: ignore[arg-type]  # any file will do
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(joined) + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="error"
            ),
        )
    except pa.ArrowException:
        return None
    if table.num_rows != len(lines) or table.schema != schema:
        return None
    return table if all(map(_is_exact, table.columns)) else None


def _is_exact(column: "pa.ChunkedArray[Any]") -> bool:
    """Say whether no float of a column can be a whole number that was rounded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if column.type != pa.float64():
        return True
    bounds = pc.min_max(column)
    least, most = bounds["min"].as_py(), bounds["max"].as_py()
    return least is None or (least > -_EXACT_FLOATS and most < _EXACT_FLOATS)
