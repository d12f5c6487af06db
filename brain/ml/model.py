"""The contract of a model: built from a shape and a seed, tokens in, logits out.

`brain/ml/models/` holds one model a file, each ending in `MODEL`.
"""

from functools import cache
from typing import Any, Protocol

from torch import nn

from brain.ml.model_shape import ModelShape
from tools_utilities.errors import UsageError
from tools_utilities.plugins import load_plugins


class ModelKind(Protocol):
    """One kind of model."""

    name: str

    def build(self, shape: ModelShape, seed: int) -> nn.Module:
        """Return a model whose weights are a pure function of shape and seed.

        Its forward takes tokens_BT (int64) and returns logits_BTV; position t sees tokens 0 … t. Given
        documents_BT too (which document of its sequence each token belongs to), it sees those of its own.
        """
        ...


@cache
def model_kinds() -> dict[str, Any]:
    """Return every known kind of model by name."""
    return load_plugins("brain.ml.models", "MODEL")


def build_model(name: str, shape: ModelShape, seed: int) -> nn.Module:
    """Return a new model.

    Raises:
        UsageError: nobody knows the name.
    """
    kind: ModelKind | None = model_kinds().get(name)
    if kind is None:
        raise UsageError(f"model {name}: unknown", hint=f"Known: {', '.join(model_kinds())}.")
    return kind.build(shape, seed)
