"""The `index.json` that LitData and mosaicml-streaming need beside the shards they read."""

import struct
from collections.abc import Callable, Sequence

import msgspec

from tools_utilities import litdata_index
from tools_utilities.errors import DataError
from tools_utilities.json_text import decode_json
from tools_utilities.manifest import Chunk
from tools_utilities.shard_formats import mds

_FOOTER_BYTES = 12


Read = Callable[[str, int, int], bytes]
"""`read(name, start, end)` returns a range of an object's bytes."""


def peer_index(format_name: str, chunks: Sequence[Chunk], read: Read) -> bytes | None:
    """Return the index of a folder's chunks for their format's own library; None: it needs none.

    Reads the head or the end of chunks only. Names in the index are relative to the folder.
    """
    if format_name == "mds":
        return mds.index_of([_mds_head(chunk, read) for chunk in chunks])
    if format_name != "litdata" or not chunks:
        return None
    config = _litdata_config(chunks[0], read)
    sizes = [(_name(chunk), chunk.num_bytes or 0, chunk.num_samples) for chunk in chunks]
    return litdata_index.index_of(sizes, config)


def _name(chunk: Chunk) -> str:
    return chunk.key.rpartition("/")[2]


def _mds_head(chunk: Chunk, read: Read) -> tuple[str, int, int, bytes]:
    count, first = struct.unpack("<II", read(chunk.key, 0, 8))
    return _name(chunk), chunk.num_bytes or 0, count, read(chunk.key, 8 + 4 * count, first)


def _litdata_config(chunk: Chunk, read: Read) -> litdata_index.LitDataConfig:
    """Return what our writer left at the end of a chunk."""
    end = (chunk.num_bytes or 0) - _FOOTER_BYTES
    (length,) = struct.unpack("<I", read(chunk.key, end, end + 4))
    try:
        footer = read(chunk.key, end - length, end)
        return decode_json(footer, type=litdata_index.LitDataConfig)
    except msgspec.MsgspecError as error:
        raise DataError(
            f"{chunk.key}: damaged: its footer cannot be read", key=chunk.key
        ) from error
