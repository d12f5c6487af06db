"""The `index.json` that LitData and mosaicml-streaming need beside the shards they read."""

import struct
from collections.abc import Callable

import msgspec

from tools_utilities import litdata_index
from tools_utilities.errors import DataError
from tools_utilities.manifest import Manifest
from tools_utilities.shard_formats import mds

_FOOTER_BYTES = 12


def peer_index(format_name: str, manifest: Manifest, read: Callable[[str], bytes]) -> bytes | None:
    """Return the index of a flat dataset for its format's own library; None where it needs none.

    `read` returns the bytes of an object by its name in the manifest.
    """
    chunks = [chunk for shard in manifest.shards for chunk in shard.chunks]
    if format_name == "mds":
        return mds.index_of([(chunk.key, read(chunk.key)) for chunk in chunks])
    if format_name != "litdata":
        return None
    config = _litdata_config(chunks[0].key, read(chunks[0].key))
    sizes = [(chunk.key, chunk.num_bytes or 0, chunk.num_samples) for chunk in chunks]
    return litdata_index.index_of(sizes, config)


def _litdata_config(key: str, data: bytes) -> litdata_index.LitDataConfig:
    """Return what our writer left at the end of a chunk."""
    end = len(data) - _FOOTER_BYTES
    (length,) = struct.unpack_from("<I", data, end)
    try:
        return msgspec.json.decode(data[end - length : end], type=litdata_index.LitDataConfig)
    except msgspec.MsgspecError as error:
        raise DataError(f"{key}: damaged: its footer cannot be read", key=key) from error
