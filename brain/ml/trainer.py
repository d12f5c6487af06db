"""The training loop, read top to bottom.

Every rank runs the same loop over its own share of each step. What must be decided together (an
epoch's end, a stop, the time) travels in two small sums a step, so that all ranks decide alike.
"""

import logging
import math
import time
from typing import Any, NamedTuple, NoReturn

import torch

from brain.ml.broken_step import broken_step
from brain.ml.checkpoint import Parts, TrainerState
from brain.ml.checkpoint_place import CheckpointPlace
from brain.ml.checkpoint_saver import CheckpointSaver
from brain.ml.device_peak import peak_of
from brain.ml.evaluation import Evaluator
from brain.ml.gradients import Gradients
from brain.ml.left_out import left_out, left_out_text
from brain.ml.model_shape import ModelShape
from brain.ml.optimizer import set_learning_rate
from brain.ml.rank_pace import RankPace
from brain.ml.sample_log import SampleLog
from brain.ml.schedule import (
    Progress,
    RunLength,
    epochs_done,
    is_due,
    learning_rate,
    note_evaluation,
    share_done,
    stop_rule,
)
from brain.ml.session import Session
from brain.ml.step_report import SUMMED, RunSize, StepReport
from brain.ml.stop_request import EXIT_CODES
from brain.ml.task import Task
from brain.ml.training_stream import TrainingStream
from tools_utilities.activity import ACTIVITY
from tools_utilities.errors import DataError, QuarkError, RunStoppedError

logger = logging.getLogger(__name__)


class TrainerStart(NamedTuple):
    """Where a run stands when the loop begins."""

    shape: ModelShape
    precision: str
    progress: Progress
    length: RunLength
    task: Task
    cut: bool = False
    """The weights are cut over the ranks (FSDP): every pass of the model is an exchange."""


class Agreed(NamedTuple):
    """What all ranks know of the step that is about to be made."""

    tokens: int
    samples: int
    stop: str | None
    """Why to stop instead of making it."""
    failed: bool
    """A rank cannot have its data."""


class Trainer:
    """Trains until a stop rule is reached or somebody asks it to stop."""

    def __init__(
        self,
        session: Session,
        parts: Parts,
        stream: TrainingStream,
        evaluator: Evaluator | None,
        start: TrainerStart,
        place: CheckpointPlace,
    ) -> None:
        """Take what `training_run.py` has built."""
        self.session, self.job, self.group = session, session.job, session.group
        self.parts, self.stream, self.evaluator = parts, stream, evaluator
        self.shape, self.precision = start.shape, start.precision
        self.progress, self.length = start.progress, start.length
        self.cut, self.task = start.cut, start.task
        self._gradients = Gradients(parts.model, self.group, parts.device.type, cut=self.cut)
        self.model: Any = self._gradients.model
        if self.job.compile:
            self.model = torch.compile(self.model)
        saved = parts.model.state_dict().keys()
        self._buffers = [name for name, _ in parts.model.named_buffers() if name in saved]
        """Running means and the like: each rank has its own, of the samples it has seen."""
        self.report = StepReport(self.job, self.progress, self.length, self._size())
        timed_by = torch.cuda if parts.device.type == "cuda" else None
        self._pace = RankPace(self.group.rank, self.group.world_size, timed_by=timed_by)
        self._samples = SampleLog(session.run_dir, self.group) if self.job.sample_log else None
        self._started = time.monotonic() - self.progress.seconds
        self._saver = CheckpointSaver(place, self.group, keep=self.job.keep, tell=session.tell)
        self._stats: dict[str, float] = {}
        """Of the data, `SUMMED` over all ranks; as of the last step."""
        self._position = stream.state_dict()
        """Of the data: after the last step made, whatever has been fetched since."""
        self._failed: QuarkError | None = None
        """Why this rank cannot have its data."""

    def _size(self) -> RunSize:
        device = self.parts.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        return RunSize(
            parameters=sum(weight.numel() for weight in self.parts.model.parameters()),
            devices=self.group.world_size,
            peak=peak_of(name, self.precision) if self.task.counts == "tokens" else None,
        )

    def run(self) -> int:
        """Train to the end; returns the exit code."""
        reason = stop_rule(self.job, self.progress, self.length)
        fresh = self.progress.epoch_samples == 0
        while reason is None:
            if fresh:
                self.stream.start_epoch(self.progress.epoch)
            reason = self._epoch()
            fresh = True
        return self._finish(reason)

    def _epoch(self) -> str | None:
        """Make the steps of one pass; returns why the run must end, or None to go on."""
        while True:
            started = time.monotonic()
            batches = self._fetch()
            agreed = self._agree(batches)
            if agreed.stop is not None:
                return agreed.stop
            if agreed.failed:
                self._save_and_fail()
            if not agreed.samples:
                self._end_epoch()
                return stop_rule(self.job, self.progress, self.length)
            waited = time.monotonic() - started
            samples_before = self.progress.samples
            rate = learning_rate(self.job, self.progress, self.length)
            loss, norm = self._step(self._filled(batches), agreed, rate)
            if not self._is_sound(loss, norm):
                self._failed = broken_step(self.session, self.stream, self.progress, loss, norm)
                self._save_and_fail()
            self._advance(agreed, loss)
            if self._samples is not None:
                self._samples.write(self.progress.step, batches)
            step_seconds = time.monotonic() - started
            if self.group.is_main:
                event = self.report.event(
                    loss=loss, rate=rate, norm=norm, tokens=agreed.tokens,
                    seconds=step_seconds, waited=waited, stats=self._stats,
                )  # fmt: skip
                self.session.tell("step", **event, slow_ranks=self._pace.slow())
            self._saver.look()
            self._evaluate_and_save_when_due(samples_before)
            reason = stop_rule(self.job, self.progress, self.length)
            if reason is not None:
                return reason

    def _fetch(self) -> list[Any]:
        """Return this rank's micro-batches of the next step; none when stopped or without data."""
        try:
            with self.session.stop.interruptible(), self._pace.fetching():
                return self.stream.take(self.job.grad_accum)
        except RunStoppedError:
            return []
        except QuarkError as error:
            self._failed = error  # `_agree` tells the other ranks, since all of them save
            return []

    def _filled(self, batches: list[Any]) -> list[Any]:
        """Return what to compute: at least one batch, and as many as the others where that is needed."""
        count = self.job.grad_accum if self.cut else 1
        lacking = range(count - len(batches))
        return [*batches, *(self.task.idle_batch() for _ in lacking)]

    def _agree(self, batches: list[Any]) -> Agreed:
        stop = self.session.stop
        tokens = sum(batch.num_targets for batch in batches)
        counts = self.group.once([tokens, sum(batch.num_samples for batch in batches)])
        tokens, samples, failed, *asked = self.group.total(
            [*counts, self._failed is not None, *stop.flags()]
        )
        return Agreed(int(tokens), int(samples), stop.settle(asked), failed > 0)

    def _step(self, batches: list[Any], agreed: Agreed, rate: float) -> tuple[float, float]:
        """Make one optimizer step; returns the mean loss over all ranks' targets and the gradient norm."""
        parts, job = self.parts, self.job
        set_learning_rate(parts.optimizer, rate)
        # The mean over the global batch: gradients are averaged over ranks, targets are not alike.
        scale = self.group.data_size / max(1, agreed.tokens)
        total = torch.zeros((), dtype=torch.float64, device=parts.device)
        for number, batch in enumerate(batches, start=1):
            with self._gradients.of_pass(self.model, last=number == len(batches)):
                with self._pace.computing():
                    loss = self.task.loss_sum(self.model, batch, self.precision, parts.device)
                parts.scaler.scale(loss * scale).backward()
            total += loss.detach().double()
        parts.scaler.unscale_(parts.optimizer)
        limit = job.grad_clip or float("inf")
        norm = self._gradients.meet(limit)
        # Known to all ranks alike, since they have the same gradients: the weights stay sound.
        if self._is_sound(0.0, norm):
            parts.scaler.step(parts.optimizer)
        parts.scaler.update()
        parts.optimizer.zero_grad(set_to_none=True)
        clock = time.monotonic() - self._started if self.group.is_main else 0.0
        stats = self.stream.get_stats()
        told = [clock, *(stats.get(name, 0.0) for name in SUMMED), *self._pace.exchanged()]
        loss_all, self.progress.seconds, *sums = self.group.total(
            [*self.group.once([float(total)]), *told]
        )
        self._stats = {**stats, **dict(zip(SUMMED, sums, strict=False))}
        self._pace.take(sums[len(SUMMED) :])
        return loss_all / max(1, agreed.tokens), norm

    def _is_sound(self, loss: float, norm: float) -> bool:
        """Tell whether a step may count; fp16 makes endless gradients by itself, and skips them."""
        return math.isfinite(loss) and (self.parts.scaler.is_enabled() or math.isfinite(norm))

    def _advance(self, agreed: Agreed, loss: float) -> None:
        progress = self.progress
        progress.step += 1
        progress.samples += agreed.samples
        progress.epoch_samples += agreed.samples
        progress.tokens += agreed.tokens
        progress.loss = loss
        self.session.steps_made += 1
        ACTIVITY.moved()
        self._position = self.stream.state_dict()

    def _end_epoch(self) -> None:
        """Count a whole pass; evaluate and save."""
        progress = self.progress
        if progress.epoch_samples == 0:
            raise DataError(
                "an epoch gave no samples to train on",
                hint="There are fewer samples than ranks, or no record holds a token.",
            )
        progress.epoch += 1
        progress.epoch_samples = 0
        self._position = self.stream.state_dict()
        self._evaluate()
        self._save(again=True)

    def _evaluate_and_save_when_due(self, samples_before: int) -> None:
        progress, job = self.progress, self.job
        if is_due(job.eval_every, progress, samples_before, progress.last_eval_seconds):
            self._evaluate()
            if progress.best_step == progress.step:
                self._save()
        if is_due(job.checkpoint_every, progress, samples_before, progress.last_checkpoint_seconds):
            self._save()

    def _evaluate(self) -> bool:
        """Evaluate, unless that was done at this very step; False: somebody asked to stop meanwhile."""
        progress = self.progress
        if self.evaluator is None or progress.last_eval_step == progress.step:
            return True
        self.session.tell("evaluating", step=progress.step)
        self._share_buffers()
        try:
            found = self.evaluator.run(self.parts.model, self.group, self.session.stop)
        except QuarkError as error:
            if self.group.world_size > 1:
                raise  # the other ranks do not know of it, and a save takes all of them
            self._failed = error
            self._save_and_fail()
        if found is None:
            return False  # the next border of a step sees to it, or `_finish`
        note_evaluation(progress, found.loss)
        # One that was saved at this very step knows nothing of it.
        progress.last_checkpoint_step = -1
        self.session.tell("eval", step=progress.step, **found.event)
        return True

    def _save(self, *, again: bool = False) -> None:
        """Begin to save a checkpoint, unless that was done at this very step (`again`: even then)."""
        progress = self.progress
        if progress.last_checkpoint_step == progress.step and not again:
            return
        progress.last_checkpoint_step = progress.step
        progress.last_checkpoint_seconds = progress.seconds
        state = TrainerState(
            model=self.job.model,
            shape=self.shape,
            progress=progress,
            length=self.length,
            optimizer=self.job.optimizer,
            scaler=self.parts.scaler.state_dict(),
            stream=self._position,
        )
        self._share_buffers()
        self._saver.save(state, self.parts)

    def _share_buffers(self) -> None:
        """Make what is evaluated and saved one model: that of rank 0; a collective."""
        self.group.share([self.parts.model.get_buffer(name) for name in self._buffers])

    def _save_and_fail(self) -> NoReturn:
        """Save the last finished step, then fail for want of data; a collective.

        Raises:
            QuarkError: what kept this rank from its data.
        """
        if self.session.steps_made:
            try:
                self._save()
                self._saver.wait()
            except (QuarkError, OSError) as error:  # what ended the run matters more
                message = f"step {self.progress.step} could not be saved: {error}"
                self.session.tell("warning", message=message)
        if self._failed is not None:
            raise self._failed
        while True:  # the rank that failed tells why, and the watchdog ends this one
            self.group.barrier()

    def _finish(self, reason: str) -> int:
        """Evaluate (unless somebody waits for the end), save, and say how it ended."""
        stop = self.session.stop
        if reason not in EXIT_CODES and not self._evaluate():
            # Resumed, it evaluates: a run is not through without that.
            reason = stop.settle(self.group.total(stop.flags())) or reason
        code = EXIT_CODES.get(reason, 0)
        if code:
            self.session.tell("stopping", reason=reason)
        if self.progress.step:
            self._save()
        self._saver.wait()
        progress = self.progress
        stats = self.stream.get_stats()
        lacking = left_out(stats, self.group)
        self.session.watchdog.watch_peers(())  # from here on ranks end, one before the other
        # In place of a barrier: from here on ranks part.
        sums = self.group.total([stats.get(name, 0.0) for name in SUMMED])
        stats |= dict(zip(SUMMED, sums, strict=True)) | lacking
        text = left_out_text(lacking, self.group.world_size)
        if text:
            self.session.tell("warning", message=text)
        self.session.tell(
            "end",
            reason=reason,
            exit_code=code,
            step=progress.step,
            epoch=epochs_done(progress, self.length),
            loss=progress.loss,
            val_loss=progress.val_loss,
            seconds=progress.seconds,
            samples=progress.samples,
            tokens=progress.tokens,
            share=share_done(self.job, progress, self.length),
            # The stream counts every position taken of it; only these were saved.
            stats={**stats, "num_checkpoints": self._saver.saved},
        )
        return code
