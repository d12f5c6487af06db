"""`tensors.json`: which file holds which piece of which tensor; what DCP keeps in a pickle.

torch.distributed.checkpoint's own metadata is a pickled object. Here the same facts are JSON with
a schema, so that a checkpoint from anywhere can be looked into without running anything.
"""

from pathlib import Path

import msgspec

from tools_utilities.errors import DataError
from tools_utilities.prepared_types import prepared

INDEX_FILE = "tensors.json"


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
        index = msgspec.json.decode((folder / INDEX_FILE).read_bytes(), type=TensorIndex)
    except FileNotFoundError as error:
        raise DataError(
            f"checkpoint {folder.name}: {INDEX_FILE} is missing",
            hint="An earlier version wrote it; resume with that.",
        ) from error
    except msgspec.DecodeError as error:
        raise DataError(f"checkpoint {folder.name}: {INDEX_FILE}: {error}") from error
    for name, tensor in index.tensors.items():
        for piece in tensor.pieces:
            # An index must not lead out of its folder.
            if "/" in piece.file or not piece.file.endswith(".safetensors"):
                raise DataError(f"checkpoint {folder.name}: {name} lies in {piece.file!r}")
    return index
