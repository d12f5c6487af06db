"""The validation loss: mean over every target of every sample, whatever the world size."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from brain.ml.process_group import ProcessGroup
from brain.ml.stop_request import StopRequest
from brain.ml.streamed_source import StreamedSource
from brain.ml.task import Task
from tools_utilities.activity import ACTIVITY
from tools_utilities.errors import DataError, RunStoppedError


class Evaluation(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one."""

    loss: float
    """The mean over the targets: of text, nats a token."""
    samples: int
    tokens: int
    figures: dict[str, float] = {}
    """What else the task measures: `accuracy`, `r2`."""

    @property
    def event(self) -> dict[str, Any]:
        """The fields of an `eval` event."""
        found = {"loss": self.loss, "samples": self.samples, "tokens": self.tokens}
        return {**found, **self.figures}


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

    def add(self, batch: Any) -> None:
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
        sources: Sequence[StreamedSource],
        task: Task,
        batch_size: int,
        precision: str,
        device: torch.device,
        *,
        together: bool = False,
    ) -> None:
        """`together`: the model's weights are shared by the ranks, so all pass forward alike."""
        self._together, self._task = together, task
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
        total: Tensor | None = None
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
                batch = batch or (self._task.idle_batch() if going else None)
            if batch is None or stopped:
                break
            measured = self._task.measure(model, batch, self._precision, self._device)
            total = measured if total is None else total + measured
            seen.add(batch)
            ACTIVITY.moved()
        model.train()
        counts = group.once([seen.samples, seen.tokens])
        samples_all, tokens_all, stopped_all = group.total([*counts, stopped])
        if stopped_all:
            return None
        if not tokens_all:
            what = f"the validation data holds no {self._task.counts}"
            raise DataError(what, hint="Train with no validation.")
        own = [0.0] * self._task.num_sums if total is None else total.tolist()
        sums = group.total(group.once(own))
        return Evaluation(
            loss=sums[0] / tokens_all,
            samples=int(samples_all),
            tokens=int(tokens_all),
            figures=self._task.figures(sums),
        )

    def _batches(self) -> Iterator[Any]:
        for loader in self._loaders:
            loader.set_epoch(0)
            yield from loader
