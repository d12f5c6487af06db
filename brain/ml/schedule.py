"""How far a run has come, when it stops, and the learning rate: pure functions of what is recorded.

Nothing here depends on the clock unless `max_seconds` is the only rule: a run that was interrupted
and resumed sees the same learning rate at every step.
"""

import math
from collections.abc import Callable

import msgspec

from brain.ml.training_job import Every, TrainingJob

FINAL_SHARE = 0.1
"""The learning rate ends at this share of its peak: the length of an epoch of text is an estimate,
and steps after an early zero would teach nothing."""


class Progress(msgspec.Struct, kw_only=True):
    """What a run has done, over all ranks; changed by the trainer alone, saved in each checkpoint."""

    step: int = 0
    epoch: int = 0
    """Whole passes made."""
    epoch_samples: int = 0
    samples: int = 0
    tokens: int = 0
    """Tokens that were targets; padding does not count."""
    seconds: float = 0.0
    """Time spent training, over all starts of the run."""
    loss: float | None = None
    val_loss: float | None = None
    best_val_loss: float | None = None
    best_step: int = -1
    """Of the best evaluation; its checkpoint is kept."""
    worse_evals: int = 0
    """Evaluations since then."""
    last_eval_step: int = -1
    last_checkpoint_step: int = -1
    last_eval_seconds: float = 0.0
    last_checkpoint_seconds: float = 0.0


class RunLength(msgspec.Struct, frozen=True, kw_only=True):
    """What an epoch holds, so that progress can be told; recorded, never measured again in a run."""

    source_samples: tuple[int, ...]
    """Samples of each source's epoch, as estimated from its bytes before the first step."""

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch."""
        return sum(self.source_samples)


def epochs_done(progress: Progress, length: RunLength) -> float:
    """Return passes made, with the started one as a fraction below 1."""
    started = min(progress.epoch_samples / max(1, length.epoch_samples), 0.999_999)
    return progress.epoch + started


def fractions(job: TrainingJob, progress: Progress, length: RunLength) -> dict[str, float]:
    """Return how much of each stop rule is used up, by the rule's name."""
    used: dict[str, tuple[float, float | None]] = {
        "max_steps": (progress.step, job.max_steps),
        "max_tokens": (progress.tokens, job.max_tokens),
        "max_samples": (progress.samples, job.max_samples),
        "epochs": (epochs_done(progress, length), job.epochs),
        "max_seconds": (progress.seconds, job.max_seconds),
    }
    return {name: done / limit for name, (done, limit) in used.items() if limit is not None}


def stop_rule(job: TrainingJob, progress: Progress, length: RunLength) -> str | None:
    """Return the name of a stop rule that has been reached, or None."""
    for name, share in fractions(job, progress, length).items():
        if share >= 1:
            return name
    # Not among the shares: the learning rate must not follow it.
    if job.early_stop is not None and progress.worse_evals >= job.early_stop:
        return "early_stop"
    return None


def note_evaluation(progress: Progress, loss: float) -> None:
    """Take in the validation loss of the step that was just made."""
    progress.val_loss = loss
    progress.last_eval_step = progress.step
    progress.last_eval_seconds = progress.seconds
    if progress.best_val_loss is None or loss < progress.best_val_loss:
        progress.best_val_loss, progress.best_step, progress.worse_evals = loss, progress.step, 0
    else:
        progress.worse_evals += 1


def share_done(job: TrainingJob, progress: Progress, length: RunLength) -> float:
    """Return the share of the run that is done, from 0 to 1; time counts only when nothing else does."""
    shares = fractions(job, progress, length)
    if len(shares) > 1:
        shares.pop("max_seconds", None)
    return min(1.0, max(shares.values(), default=0.0))


def _cosine(share: float) -> float:
    return FINAL_SHARE + (1 - FINAL_SHARE) * 0.5 * (1 + math.cos(math.pi * share))


def _linear(share: float) -> float:
    return FINAL_SHARE + (1 - FINAL_SHARE) * (1 - share)


def _constant(_share: float) -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[float], float]] = {
    "cosine": _cosine,
    "linear": _linear,
    "constant": _constant,
}


def learning_rate(job: TrainingJob, progress: Progress, length: RunLength) -> float:
    """Return the rate of the step about to be made: linear warm-up times the schedule."""
    warm = min(1.0, (progress.step + 1) / job.warmup_steps) if job.warmup_steps else 1.0
    return job.lr * warm * SCHEDULES[job.schedule](share_done(job, progress, length))


def total_steps(job: TrainingJob, length: RunLength) -> int | None:
    """Return the steps of the whole run as far as they can be told; None when only time stops it."""
    targets_per_step = job.batch_size * job.seq_len
    per_epoch = max(1, length.epoch_samples // job.batch_size)
    counts = [
        job.max_steps,
        math.ceil(job.max_samples / job.batch_size) if job.max_samples else None,
        math.ceil(job.max_tokens / targets_per_step) if job.max_tokens else None,
        math.ceil(job.epochs * per_epoch) if job.epochs else None,
    ]
    return min((count for count in counts if count is not None), default=None)


def is_due(
    every: Every | None, progress: Progress, samples_before: int, last_seconds: float
) -> bool:
    """Return whether something repeated is due after the step that was just made."""
    if every is None:
        return False
    if every.steps is not None:
        return progress.step % every.steps == 0
    if every.samples is not None:
        return progress.samples // every.samples > samples_before // every.samples
    return every.seconds is not None and progress.seconds - last_seconds >= every.seconds
