"""`tensors.json`: which file holds which piece of which tensor; what DCP keeps in a pickle.

torch.distributed.checkpoint's own metadata is a pickled object. Here the same facts are JSON with
a schema, so that a checkpoint from anywhere can be looked into without running anything.
"""

from math import prod
from pathlib import Path

import msgspec

from tools_utilities.errors import DataError
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared

INDEX_FILE = "tensors.json"
_MOST = 1 << 48
"""Along one axis."""


class Piece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A box of a tensor, stored as one tensor of one file."""

    file: str
    key: str
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class SavedTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole tensor; its pieces cover it without overlap."""

    dtype: str
    """Without `torch.`: float32, bfloat16, int64 …"""
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@prepared
class TensorIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every tensor of a checkpoint by name: `model/NAME`, `optimizer/NAME|SLOT`."""

    tensors: dict[str, SavedTensor]


def read_index(folder: Path) -> TensorIndex:
    """Return the index of a checkpoint that was checked.

    Raises:
        DataError: it is missing, or not what an index is.
    """
    try:
        index = decode_json((folder / INDEX_FILE).read_bytes(), type=TensorIndex)
    except FileNotFoundError as error:
        raise DataError(
            f"checkpoint {folder.name}: {INDEX_FILE} is missing",
            hint="An earlier version wrote it; resume with that.",
        ) from error
    except msgspec.DecodeError as error:
        raise DataError(f"checkpoint {folder.name}: {INDEX_FILE}: {error}") from error
    for name, tensor in index.tensors.items():
        wrong = _what_is_wrong(tensor)
        if wrong:
            raise DataError(f"checkpoint {folder.name}: {name} {wrong}")
    return index


def _what_is_wrong(tensor: SavedTensor) -> str:
    """Return why a tensor cannot be read as the index says; empty where it can.

    What its pieces leave out would be whatever the memory held before.
    """
    if any(not 0 <= size <= _MOST for size in tensor.shape):
        return f"has the shape {tensor.shape}"
    for piece in tensor.pieces:
        # An index must not lead out of its folder.
        if "/" in piece.file or "\0" in piece.file or not piece.file.endswith(".safetensors"):
            return f"lies in {piece.file!r}"
        if len(piece.offsets) != len(tensor.shape) or len(piece.sizes) != len(tensor.shape):
            return f"has a piece with other axes than {tensor.shape}"
        for offset, size, whole in zip(piece.offsets, piece.sizes, tensor.shape, strict=True):
            if min(offset, size) < 0 or offset + size > whole:
                return f"has a piece outside of {tensor.shape}"
    places = {piece.offsets for piece in tensor.pieces}
    held = sum(prod(piece.sizes) for piece in tensor.pieces)
    if held != prod(tensor.shape) or len(places) != len(tensor.pieces):
        return f"has pieces of {held} numbers in all, and is {tensor.shape}"
    return ""
