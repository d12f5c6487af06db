"""The validation loss: mean over every target of every sample, whatever the world size."""

import time
from collections.abc import Iterator, Sequence

import msgspec
import torch
from torch import nn

from brain.ml.compute import loss_sum
from brain.ml.process_group import ProcessGroup
from brain.ml.stop_request import StopRequest
from brain.ml.token_source import Batch, TokenSource, empty_batch
from tools_utilities.activity import ACTIVITY
from tools_utilities.errors import DataError, RunStoppedError


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one."""

    loss: float
    """Nats a token."""
    samples: int
    tokens: int


class EvaluationLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Where one rank ends before the data does: after the batch that reaches one of these."""

    batches: int | None = None
    samples: int | None = None
    tokens: int | None = None
    seconds: float | None = None

    def reached(self, *, batches: int, samples: int, tokens: int, seconds: float) -> bool:
        """Tell whether enough has been seen."""
        seen = (
            (batches, self.batches),
            (samples, self.samples),
            (tokens, self.tokens),
            (seconds, self.seconds),
        )
        return any(most is not None and count >= most for count, most in seen)


NO_LIMIT = EvaluationLimit()


class _Seen:
    """What one rank has seen of the data so far."""

    def __init__(self, limit: EvaluationLimit) -> None:
        self.batches = self.samples = self.tokens = 0
        self._limit = limit
        self._started = time.monotonic()

    def add(self, batch: Batch) -> None:
        """Count a batch; one without targets counts for nothing."""
        if batch.num_targets:
            self.batches += 1
            self.samples += batch.num_samples
            self.tokens += batch.num_targets

    @property
    def enough(self) -> bool:
        """Whether the limit is reached."""
        return self._limit.reached(
            batches=self.batches,
            samples=self.samples,
            tokens=self.tokens,
            seconds=time.monotonic() - self._started,
        )


class Evaluator:
    """Runs over the validation data, in file order, each sample once."""

    def __init__(
        self,
        sources: Sequence[TokenSource],
        batch_size: int,
        precision: str,
        device: torch.device,
        *,
        together: bool = False,
    ) -> None:
        """`together`: the model's weights are cut over the ranks, so all pass forward alike."""
        self._together = together
        self._loaders = [source.loader(batch_size) for source in sources]
        self._precision = precision
        self._device = device

    @torch.no_grad()
    def run(
        self,
        model: nn.Module,
        group: ProcessGroup,
        stop: StopRequest,
        limit: EvaluationLimit = NO_LIMIT,
    ) -> Evaluation | None:
        """Return the loss over all ranks; None when a stop was asked for meanwhile.

        Raises:
            DataError: there is nothing to evaluate.
        """
        model.eval()
        # Summed on the device: reading each loss would wait for it.
        total = torch.zeros((), dtype=torch.float64, device=self._device)
        seen = _Seen(limit)
        stopped = 0
        batches = self._batches()
        while not stopped:
            try:
                with stop.interruptible():
                    batch = None if seen.enough else next(batches, None)
            except RunStoppedError:
                batch, stopped = None, 1
            if self._together:
                # Every forward pass is an exchange: ranks that are through go along with nothing.
                going, asked = group.total([batch is not None, stopped])
                stopped = int(asked > 0)
                batch = batch or (empty_batch(0) if going else None)
            if batch is None or stopped:
                break
            total += loss_sum(model, batch, self._precision, self._device).double()
            seen.add(batch)
            ACTIVITY.moved()
        model.train()
        loss, samples_all, tokens_all, stopped_all = group.total(
            [float(total), seen.samples, seen.tokens, stopped]
        )
        if stopped_all:
            return None
        if not tokens_all:
            raise DataError("the validation data holds no tokens", hint="Train with no validation.")
        return Evaluation(loss=loss / tokens_all, samples=int(samples_all), tokens=int(tokens_all))

    def _batches(self) -> Iterator[Batch]:
        for loader in self._loaders:
            loader.set_epoch(0)
            yield from loader
