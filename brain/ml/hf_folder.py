"""A folder with a causal language model that transformers saved; imports no torch, so that a plan can look.

Only `config.json`, `tokenizer.json` and safetensors files are read, and no code of the folder is run.
"""

from pathlib import Path
from typing import Any

import msgspec

from brain.ml.model_name import HF_PREFIX
from tools_utilities.errors import DataNotFoundError, UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.prepared_types import prepared

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
_LENGTH_BYTES = 8


@prepared
class HfConfig(msgspec.Struct, frozen=True):
    """What is needed of `config.json`."""

    vocab_size: int
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    max_position_embeddings: int | None = None
    n_positions: int | None = None

    @property
    def end_id(self) -> int | None:
        """The token that ends a document; of several the first."""
        found = self.eos_token_id
        return found[0] if isinstance(found, list) else found

    @property
    def most_positions(self) -> int | None:
        """The longest sequence it was made for."""
        return self.max_position_embeddings or self.n_positions


def hf_folder(name: str) -> Path:
    """Return the folder of `hf:FOLDER`.

    Raises:
        DataNotFoundError: it is not there, or holds no model in safetensors.
    """
    folder = Path(name.removeprefix(HF_PREFIX))
    if not (folder / CONFIG_FILE).is_file():
        raise DataNotFoundError(
            f"model {name}: {folder} is no folder with a {CONFIG_FILE}",
            hint="Name a folder that transformers saved: train hf:models/tiny with …",
        )
    if not weight_files(folder):
        raise DataNotFoundError(
            f"model {name}: no .safetensors file in {folder}",
            hint="Pickled weights are never loaded: save it anew with save_pretrained.",
        )
    return folder


def weight_files(folder: Path) -> list[Path]:
    """Return the files of a model's weights."""
    return sorted(folder.glob("*.safetensors"))


def read_config(folder: Path) -> HfConfig:
    """Return what `config.json` says.

    Raises:
        UsageError: it is damaged, or of a model without a vocabulary.
    """
    path = folder / CONFIG_FILE
    try:
        return decode_json(path.read_bytes(), type=HfConfig)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{path}: {error}", hint="It must be of a causal language model."
        ) from error


def count_parameters(folder: Path) -> int:
    """Return the numbers that the files hold, by their headers; tied ones count once, as saved.

    Raises:
        UsageError: a file is cut short or damaged.
    """
    return sum(_count(path) for path in weight_files(folder))


def _count(path: Path) -> int:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if length > path.stat().st_size:
            raise UsageError(f"{path}: cut short", hint="Fetch the model anew.")
        try:
            header = decode_json(file.read(length), type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise UsageError(f"{path}: a damaged header", hint="Fetch the model anew.") from error
    total = 0
    for name, about in header.items():
        size = 1
        for edge in about.get("shape", ()):
            size *= edge
        total += size * (name != "__metadata__")
    return total
