"""The one dial of the `quark` model, and its size; imports no torch, so that a plan can say it.

`layers` derives the rest: width = 64 · layers, heads = layers (64 features each), an MLP of four
times the width. Depth and width grow together, so the parameters grow with the cube of the dial:
1 layer 0.1 M, 2 0.5 M, 4 3.3 M, 8 25 M, 12 85 M, 16 202 M, 24 681 M (byte vocabulary).
"""

import msgspec

HEAD_SIZE = 64


MOST_LAYERS = 200
"""A model of this many has 400 billion parameters."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a model is built from."""

    layers: int
    vocab_size: int
    seq_len: int

    @property
    def width(self) -> int:
        """Features of a token between the blocks."""
        return HEAD_SIZE * self.layers

    @property
    def heads(self) -> int:
        """Attention heads of a block."""
        return self.layers

    @property
    def num_parameters(self) -> int:
        """Trained numbers: embedding and head, and in a block attention 4 w², MLP 8 w², two norms."""
        width = self.width
        block = 12 * width * width + 2 * width
        return 2 * self.vocab_size * width + self.layers * block + width


def layers_for(parameters: int, vocab_size: int, seq_len: int) -> int:
    """Return the dial whose size comes nearest to a number of parameters, as a ratio."""

    def ratio(layers: int) -> float:
        made = ModelShape(layers=layers, vocab_size=vocab_size, seq_len=seq_len).num_parameters
        return max(made / parameters, parameters / made)

    return min(range(1, MOST_LAYERS + 1), key=ratio)
