"""TokenCollate: batches of token sequences, copied once, narrow until they are delivered.

    loader = StreamLoader(stream, 32, num_workers=2, collate_fn=TokenCollate())
    for ids in loader: ...  # int64, (batch, sequence length)

A worker process sends the ids as they are stored (2 or 4 bytes each, not 8); they are widened where
the batch is delivered.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tools_utilities.errors import DataError
from tools_utilities.shard_formats.tokens import FIELD


class TokenCollate:
    """Makes one tensor of a list of samples `{"input_ids": array}` of one length."""

    def __call__(self, samples: Sequence[dict[str, Any]]) -> torch.Tensor:
        """Return the ids in their stored type, shape (len(samples), length).

        Raises:
            DataError: the samples have different lengths.
        """
        rows = [sample[FIELD] for sample in samples]
        length, dtype = len(rows[0]), rows[0].dtype
        if any(len(row) != length for row in rows):
            raise DataError(
                f"token sequences of {sorted({len(row) for row in rows})} ids in one batch",
                hint="Collate with padding, or pack the tokens.",
            )
        block = np.empty((len(rows), length), dtype)
        np.concatenate(rows, out=block.reshape(-1))
        return torch.from_numpy(block)

    def finish(self, batch: torch.Tensor) -> torch.Tensor:
        """Return what is delivered: int64, as embeddings and losses want ids."""
        # By numpy: torch would use several threads for it, which costs more than it gains.
        wide = torch.from_numpy(batch.numpy().astype(np.int64))
        return wide.pin_memory() if batch.is_pinned() else wide
