"""TokenCollate: batches of token sequences, copied once, narrow until they are delivered.

    loader = StreamLoader(stream, 32, num_workers=2, collate_fn=TokenCollate())
    for ids in loader: ...  # int64, (batch, sequence length)

A worker process sends the ids as they are stored (2 or 4 bytes each, not 8); they are widened where
the batch is delivered.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from brain.ml.dataset_shards.bulk_reading import RowBlock
from tools_utilities.errors import DataError
from tools_utilities.shard_formats.tokens import FIELD

if TYPE_CHECKING:  # a worker process needs no torch for this
    import torch


class TokenCollate:
    """Makes one tensor of a list of samples `{"input_ids": array}` of one length."""

    takes_blocks = True
    """A StreamLoader may give it a RowBlock."""
    finish_copies = True
    """What `finish` returns shares no memory with what it was given."""

    def __call__(self, samples: Sequence[dict[str, Any]]) -> "torch.Tensor":
        """Return the ids in their stored type, shape (len(samples), length).

        Raises:
            DataError: the samples have different lengths.
        """
        import torch

        return torch.from_numpy(self.pack(samples))

    def pack(self, samples: Sequence[dict[str, Any]]) -> npt.NDArray[Any]:
        """Return the ids as an array: what a worker sends.

        Raises:
            DataError: the samples have different lengths.
        """
        if isinstance(samples, RowBlock):
            return samples.rows
        rows = [sample[FIELD] for sample in samples]
        length, dtype = len(rows[0]), rows[0].dtype
        if any(len(row) != length for row in rows):
            raise DataError(
                f"token sequences of {sorted({len(row) for row in rows})} ids in one batch",
                hint="Collate with padding, or pack the tokens.",
            )
        block = np.empty((len(rows), length), dtype)
        np.concatenate(rows, out=block.reshape(-1))
        return block

    def finish(self, batch: "torch.Tensor | npt.NDArray[Any]") -> "torch.Tensor":
        """Return what is delivered: int64, as embeddings and losses want ids."""
        import torch

        pinned = isinstance(batch, torch.Tensor) and batch.is_pinned()
        narrow = batch.numpy() if isinstance(batch, torch.Tensor) else batch
        # By numpy: torch would use several threads for it, which costs more than it gains.
        wide = torch.from_numpy(narrow.astype(np.int64))
        return wide.pin_memory() if pinned else wide
