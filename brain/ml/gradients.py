"""How the gradients of all ranks become those of the global batch, and are clipped.

By DDP while the backward pass runs, by FSDP block by block, or, where tensor-parallel groups share the
weights and these are whole within a group, by sums after the pass over the ranks with the same part.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from brain.ml.process_group import ProcessGroup
from brain.ml.shared_weights import local_part, num_parts

BUCKET_NUMBERS = 8 << 20
"""Gradients that are summed in one exchange: many small ones wait for each other."""


class Gradients:
    """All ranks make the same calls."""

    def __init__(
        self, model: nn.Module, group: ProcessGroup, device_type: str, *, cut: bool
    ) -> None:
        """`cut`: FSDP has cut the model's weights."""
        self._plain, self._group, self._cut = model, group, cut
        self.model: Any = model if cut else group.wrap(model, device_type)
        """What to call in the place of the model."""

    def of_pass(self, called: Any, *, last: bool) -> Any:
        """Return the context of a backward pass of a step; only in the last one ranks exchange.

        `called`: `model`, or what was compiled of it.
        """
        if self._cut:
            cut: Any = self._plain
            cut.set_requires_gradient_sync(last)
            return nullcontext()
        if last or called is self._plain or not hasattr(called, "no_sync"):
            return nullcontext()
        return called.no_sync()

    def meet(self, limit: float) -> float:
        """Make all ranks' gradients one, clip them to a norm, and return the norm they had."""
        if self._group.mesh is None:
            norm: Any = torch.nn.utils.clip_grad_norm_(self._plain.parameters(), limit)
            return float(norm.full_tensor() if self._cut else norm)
        weights = [weight for weight in self._plain.parameters() if weight.requires_grad]
        if not self._cut:
            self._average(weights)
        return self._clip([weight for weight in weights if weight.grad is not None], limit)

    def _average(self, weights: Sequence[nn.Parameter]) -> None:
        """Average over the ranks that have the same part of each weight, and other data."""
        import torch.distributed as dist

        for weight in weights:
            if weight.grad is None:  # not used in this rank's batch: others may wait for it
                weight.grad = torch.zeros_like(weight)
        group = self._group.mesh["data"].get_group()
        for bucket in _buckets([local_part(weight.grad) for weight in weights]):
            flat = torch.cat([part.flatten() for part in bucket])
            dist.all_reduce(flat, group=group)
            flat /= self._group.data_size
            pieces = torch.split(flat, [part.numel() for part in bucket])
            for part, piece in zip(bucket, pieces, strict=True):
                part.copy_(piece.view_as(part))

    def _clip(self, weights: Sequence[nn.Parameter], limit: float) -> float:
        squares = torch.zeros((), dtype=torch.float64)
        for weight in weights:
            # The parts of all ranks are summed, and those that several ranks have counted as one.
            copies = self._group.world_size // num_parts(weight)
            square = torch.linalg.vector_norm(local_part(weight.grad)).double().square() / copies
            squares = squares.to(square.device) + square
        norm = math.sqrt(self._group.total([float(squares)])[0])
        factor = limit / (norm + 1e-6)
        if factor < 1:
            for weight in weights:
                local_part(weight.grad).mul_(factor)
        return norm


def _buckets(parts: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield neighbours of one number format, `BUCKET_NUMBERS` or few more together."""
    bucket: list[Tensor] = []
    for part in parts:
        full = sum(one.numel() for one in bucket) >= BUCKET_NUMBERS
        if bucket and (full or part.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(part)
    if bucket:
        yield bucket
