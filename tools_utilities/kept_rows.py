"""Decoded rows kept beside their object: Arrow batches in a sidecar, read where they lie.

For what costs more to decode than to map: two thirds of a row of Parquet is paid before it is an
Arrow row (docs/benchmarks.md).
"""

import logging
from collections.abc import Callable

from tools_utilities.arrow_rows import ArrowRows
from tools_utilities.cached_file import CachedFile, ReadPages
from tools_utilities.open_objects import SharedShard
from tools_utilities.shard_format import ReadOptions, ShardBytes, Split
from tools_utilities.spare_entry import SpareContent

_LOGGER = logging.getLogger(__name__)
_LEAST_BYTES, _MOST_BYTES = 64 << 10, 64 << 20
"""Decoded: an entry of less costs more than it saves; of more it takes memory to write one."""
_FIRST_ROW = b"quark.first_row"

Decode = Callable[[], tuple[ArrowRows, int]]
"""Returns a split's rows, and the number of its first one in the file."""


def kept_rows(
    shard: ShardBytes, split: Split, options: ReadOptions, decode: Decode
) -> tuple[ArrowRows, int]:
    """Return what `decode` does, from the sidecar where there is one."""
    if not isinstance(shard, SharedShard):
        return decode()
    chosen = (options.columns, options.first_of, options.optional_columns)
    name = f"arrow-1 {split.start} {split.end} {chosen!r}"
    file = shard.open_sidecar(name)
    kept = None if file is None else _lying_in(file)
    if kept is not None:
        return kept
    rows, first_row = decode()
    num_bytes = rows.num_bytes
    if rows.num_rows and _LEAST_BYTES <= num_bytes <= _MOST_BYTES:
        shard.offer_sidecar(name, lambda: _content(rows, first_row), about_bytes=num_bytes)
    return rows, first_row


def _content(rows: ArrowRows, first_row: int) -> SpareContent | None:
    """Return the rows as a stream of Arrow; None for types that it cannot carry."""
    import pyarrow as pa

    schema = rows.batches[0].schema  # in the order of the file, not of the columns asked for
    metadata = {**(schema.metadata or {}), _FIRST_ROW: b"%d" % first_row}
    sink = pa.BufferOutputStream()
    try:
        with pa.ipc.new_stream(sink, schema.with_metadata(metadata)) as writer:
            for batch in rows.batches:
                writer.write_batch(batch)
    except pa.ArrowException as error:
        _LOGGER.debug("decoded rows are not kept: %s", error)
        return None
    view = memoryview(sink.getvalue())
    return SpareContent(len(view), [view])


def _lying_in(file: CachedFile) -> tuple[ArrowRows, int] | None:
    """Return the rows; None: this pyarrow cannot read what another one wrote."""
    import pyarrow as pa

    try:
        with pa.ipc.open_stream(pa.py_buffer(file.view)) as reader:
            batches, metadata = list(reader), dict(reader.schema.metadata or {})
            first_row = int(metadata.pop(_FIRST_ROW))
            schema = reader.schema.remove_metadata()
            schema = schema.with_metadata(metadata) if metadata else schema
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        file.close()
        _LOGGER.debug("kept rows are decoded anew: %s", error)
        return None
    return ArrowRows(schema, batches, pages=ReadPages(file)), first_row
