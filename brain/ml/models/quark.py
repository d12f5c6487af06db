"""`quark`: a decoder-only transformer with RMSNorm before each part, rotary positions and SDPA.

Letters: B batch, T time, C width, H heads, D features of a head, V vocabulary.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from brain.ml.model import ModelKind
from brain.ml.model_shape import HEAD_SIZE, ModelShape

ROTARY_BASE = 10_000.0


def rotary_tables(seq_len: int) -> tuple[Tensor, Tensor]:
    """Return (cos_TD, sin_TD) of the rotary angles, both halves of D alike."""
    frequencies_D = ROTARY_BASE ** (-torch.arange(0, HEAD_SIZE, 2, dtype=torch.float32) / HEAD_SIZE)
    angles_TD = torch.outer(torch.arange(seq_len, dtype=torch.float32), frequencies_D).repeat(1, 2)
    return angles_TD.cos(), angles_TD.sin()


def rotate(x_BHTD: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    """Turn each pair of features by its position's angle; a dot product then sees the distance."""
    first, second = x_BHTD.chunk(2, dim=-1)
    return x_BHTD * cos_TD + torch.cat((-second, first), dim=-1) * sin_TD


def seen_of(documents_BT: Tensor) -> Tensor:
    """Return which positions (last) each one (before) sees: those of its document up to itself."""
    same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
    return same_BTT.tril().unsqueeze(1)


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        # Rows head by head, each its query, key and value: ranks that each have some heads have whole rows.
        self.qkv_by_head = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(
        self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor, seen_B1TT: Tensor | None = None
    ) -> Tensor:
        """Return what each position takes from those before it (`seen_B1TT`: of these, from which)."""
        batch, time, _ = x_BTC.shape
        qkv_BTH3D = self.qkv_by_head(x_BTC).view(batch, time, -1, 3, HEAD_SIZE)
        q_BHTD, k_BHTD, v_BHTD = (part.transpose(1, 2) for part in qkv_BTH3D.unbind(3))
        mixed_BHTD = functional.scaled_dot_product_attention(
            rotate(q_BHTD, cos_TD, sin_TD).to(v_BHTD.dtype),
            rotate(k_BHTD, cos_TD, sin_TD).to(v_BHTD.dtype),
            v_BHTD,
            attn_mask=seen_B1TT,
            is_causal=seen_B1TT is None,
        )
        out: Tensor = self.out(mixed_BHTD.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention, then an MLP with squared ReLU, each on the normed stream and added to it."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.attention = Attention(shape)
        self.mlp_norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(
        self, x_BTC: Tensor, cos_TD: Tensor, sin_TD: Tensor, seen_B1TT: Tensor | None = None
    ) -> Tensor:
        """Return the stream with this block's share added."""
        x_BTC = x_BTC + self.attention(self.attention_norm(x_BTC), cos_TD, sin_TD, seen_B1TT)
        hidden = functional.relu(self.up(self.mlp_norm(x_BTC))).square()
        added_BTC: Tensor = x_BTC + self.down(hidden)
        return added_BTC


class Quark(nn.Module):
    """The model; embedding and head are separate, since a byte vocabulary is small."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=1e-6)
        self.head = nn.Linear(shape.width, shape.vocab_size, bias=False)
        cos_TD, sin_TD = rotary_tables(shape.seq_len)
        # Derived from the shape, so a checkpoint need not hold them.
        self.register_buffer("cos_TD", cos_TD, persistent=False)
        self.register_buffer("sin_TD", sin_TD, persistent=False)

    def forward(self, tokens_BT: Tensor, documents_BT: Tensor | None = None) -> Tensor:
        """Return logits_BTV of the token after each position; documents do not see each other.

        Rotary positions only tell distances, so they need not begin anew with each document.
        """
        seen_B1TT = None if documents_BT is None else seen_of(documents_BT)
        time = tokens_BT.shape[1]
        cos_TD, sin_TD = self.get_buffer("cos_TD")[:time], self.get_buffer("sin_TD")[:time]
        x_BTC: Tensor = self.embedding(tokens_BT)
        for block in self.blocks:
            x_BTC = block(x_BTC, cos_TD, sin_TD, seen_B1TT)
        logits_BTV: Tensor = self.head(self.norm(x_BTC))
        return logits_BTV

    def tensor_plan(self) -> dict[str, Any]:
        """Return how ranks share each weight, for torch's `parallelize_module`.

        Each has some of the heads and of the MLP's features, and some of the width of embedding and head: a
        vocabulary seldom divides evenly. What lies between the blocks all of them have. Two sums a block
        and pass, as in Megatron-LM (Shoeybi et al., 2019), one of the logits and one gathering at the start.
        """
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        return {
            "embedding": ColwiseParallel(output_layouts=Replicate()),
            "blocks.*.attention.qkv_by_head": ColwiseParallel(),
            "blocks.*.attention.out": RowwiseParallel(),
            "blocks.*.up": ColwiseParallel(),
            "blocks.*.down": RowwiseParallel(),
            "head": RowwiseParallel(input_layouts=Replicate()),
        }

    @torch.no_grad()
    def initialize(self, seed: int) -> None:
        """Draw the weights: normal, 1/√(fan in); parts that add to the stream and the head start small.

        One generator a parameter, so that no weight depends on the order of the others.
        """
        depth_scale = 1 / math.sqrt(2 * len(self.blocks))
        for index, (name, weight) in enumerate(self.named_parameters()):
            if weight.dim() < 2:  # noqa: PLR2004 - norms have one dimension and start at 1
                continue
            scale = 1.0 if name == "embedding.weight" else 1 / math.sqrt(weight.shape[1])
            if name.endswith(("out.weight", "down.weight")):
                scale *= depth_scale
            if name == "head.weight":
                scale *= 0.1
            generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
            weight.normal_(0, scale, generator=generator)


class _QuarkKind:
    name = "quark"

    def build(self, shape: ModelShape, seed: int) -> nn.Module:
        model = Quark(shape)
        model.initialize(seed)
        return model


MODEL: ModelKind = _QuarkKind()
