"""What a model is trained for: which samples it sees, and what its loss is. Text, or records.

Letters: B batch, T time, V vocabulary, N what a loss is a mean over.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from brain.ml.compute import autocast, loss_sum, summed
from brain.ml.record_source import MakeBatch, RecordBatch, RecordSource
from brain.ml.streamed_source import StreamedSource
from brain.ml.token_source import Batch, TokenSource, empty_batch
from brain.ml.tokenizer import Tokenizer
from brain.ml.training_job import DataSource, TrainingJob
from tools_utilities.errors import DataError

Loss = Callable[[Any, Any], Tensor]
"""(outputs, targets) → their mean, or one value for each target."""


class Task(Protocol):
    """All ranks make the same calls."""

    counts: str
    """What is counted as a target: `tokens` or `samples`."""
    num_sums: int
    """Of `measure`."""

    def source(self, data: DataSource, *, training: bool) -> StreamedSource:
        """Return a shard group as this task reads it."""
        ...

    def loss_sum(
        self, model: nn.Module, batch: Any, precision: str, device: torch.device
    ) -> Tensor:
        """Return the loss of a micro-batch, summed over its targets."""
        ...

    def measure(self, model: nn.Module, batch: Any, precision: str, device: torch.device) -> Tensor:
        """Return sums over a batch, float64: the loss first, then what `figures` needs."""
        ...

    def figures(self, sums: list[float]) -> dict[str, float]:
        """Return what else there is to say, of the sums over all batches of all ranks."""
        ...

    def idle_batch(self) -> Any:
        """Return a batch without targets, for a rank that has run out while others have not."""
        ...


class TextTask:
    """Each token from those before it."""

    counts = "tokens"
    num_sums = 1

    def __init__(
        self,
        job: TrainingJob,
        tokenizer: Tokenizer,
        loss: Loss | None = None,
        *,
        apart: bool = True,
    ) -> None:
        """`loss`: of (logits_NV, targets_N); None: cross-entropy. `apart`: as of `loss_sum`."""
        self._job, self._tokenizer, self._loss, self._apart = job, tokenizer, loss, apart

    def source(self, data: DataSource, *, training: bool) -> StreamedSource:
        """Return token sequences."""
        return TokenSource(self._job, data, self._tokenizer, training=training)

    def loss_sum(
        self, model: nn.Module, batch: Any, precision: str, device: torch.device
    ) -> Tensor:
        """Return the loss of a batch's targets; padding does not count."""
        return loss_sum(model, batch, precision, device, self._loss, apart=self._apart)

    def measure(self, model: nn.Module, batch: Any, precision: str, device: torch.device) -> Tensor:
        """Return the loss alone."""
        return self.loss_sum(model, batch, precision, device).double().reshape(1)

    def figures(self, sums: list[float]) -> dict[str, float]:  # noqa: ARG002 - the contract's
        """Return nothing: the loss says it."""
        return {}

    def idle_batch(self) -> Batch:
        """Return padding."""
        return empty_batch(self._job.pad_id)


class RecordTask:
    """Inputs and targets that the user's `collate` makes of records."""

    counts = "samples"
    num_sums = 7

    def __init__(self, job: TrainingJob, loss: Loss, make: MakeBatch) -> None:
        self._job, self._loss, self._make = job, loss, make
        self._seen: RecordBatch | None = None

    def source(self, data: DataSource, *, training: bool) -> StreamedSource:
        """Return records."""
        return RecordSource(self._job, data, self._make, training=training)

    def loss_sum(
        self, model: nn.Module, batch: Any, precision: str, device: torch.device
    ) -> Tensor:
        """Return the loss summed over the samples.

        Raises:
            UsageError: the loss gave neither a mean nor a value for each sample.
        """
        return self._loss_and_outputs(model, batch, precision, device)[0]

    def measure(self, model: nn.Module, batch: Any, precision: str, device: torch.device) -> Tensor:
        """Return [loss, classified, right, measured, squared residuals, sum, squares of the targets].

        Whole numbers as targets are classes; where each sample has one other number, it is measured.
        """
        loss, outputs, targets = self._loss_and_outputs(model, batch, precision, device)
        sums = torch.zeros(self.num_sums, dtype=torch.float64, device=device)
        sums[0] = loss
        if not (batch.num_samples and isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
            return sums
        if targets.dtype == torch.int64 and outputs.dim() == 2 and targets.dim() == 1:  # noqa: PLR2004 - (B, classes)
            sums[1] = targets.numel()
            sums[2] = (outputs.argmax(dim=1) == targets).sum()
        elif targets.is_floating_point() and outputs.numel() == targets.numel() == len(targets):
            wanted, found = targets.double().flatten(), outputs.double().flatten()
            sums[3] = wanted.numel()
            sums[4] = (found - wanted).square().sum()
            sums[5], sums[6] = wanted.sum(), wanted.square().sum()
        return sums

    def figures(self, sums: list[float]) -> dict[str, float]:
        """Return `accuracy` of classes, `r2` of numbers."""
        _, classified, right, measured, residual, total, squares = sums
        if classified:
            return {"accuracy": right / classified}
        spread = squares - total * total / measured if measured else 0.0
        return {"r2": 1 - residual / spread} if spread > 0 else {}

    def idle_batch(self) -> RecordBatch:
        """Return the last batch, counting for nothing: what it must look like, only `collate` knows.

        Raises:
            DataError: this rank has had none.
        """
        if self._seen is None:
            raise DataError(
                "a rank has no sample at all", hint="Use fewer ranks than there are samples."
            )
        return RecordBatch(inputs=self._seen.inputs, targets=self._seen.targets, num_samples=0)

    def _loss_and_outputs(
        self, model: nn.Module, batch: RecordBatch, precision: str, device: torch.device
    ) -> tuple[Tensor, Any, Any]:
        if batch.num_samples:
            self._seen = batch
        inputs, targets = moved(batch.inputs, device), moved(batch.targets, device)
        with autocast(precision, device):
            outputs = model(inputs)
        loss = self._loss(outputs, targets)
        return summed(loss, batch.num_samples, self._job.model), outputs, targets


def moved(value: Any, device: torch.device) -> Any:
    """Return tensors, and lists, tuples and maps of them, on a device; anything else as it is."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, dict):
        return {name: moved(one, device) for name, one in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(one, device) for one in value))
    if isinstance(value, list | tuple):
        return type(value)(moved(one, device) for one in value)
    return value
