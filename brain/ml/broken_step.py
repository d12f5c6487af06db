"""A step whose loss or gradients are no numbers: what is written down of it, and how the run ends."""

import logging
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.dataset_shards.samples_in_step import SampleRef
from brain.ml.run_files import BROKEN_FILE
from brain.ml.schedule import Progress
from brain.ml.session import Session
from brain.ml.training_stream import TrainingStream
from tools_utilities.errors import QuarkError
from tools_utilities.private_files import write_private

logger = logging.getLogger(__name__)


class NotFiniteError(QuarkError):
    """The loss or the gradient norm of a step is NaN or infinite."""


class BrokenStep(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `broken-step.json`."""

    schema: int = 1
    step: int
    epoch: int
    loss: float | None
    """None: not a number."""
    grad_norm: float | None
    samples: list[SampleRef] | None
    """Of the step, over all ranks; None: they could not be found."""


def broken_step(
    session: Session, stream: TrainingStream, progress: Progress, loss: float, norm: float
) -> NotFiniteError:
    """Write down which samples the step after `progress` had, and return the error to end with.

    Rank 0 does so for all. Samples are named by object, split and number, as the order has them.
    """
    step = progress.step + 1
    what = f"step {step}: the loss is {loss:g}, the gradient norm {norm:g}"
    path = session.run_dir / BROKEN_FILE
    samples = _samples(session, stream) if session.group.is_main else None
    if session.group.is_main:
        found = BrokenStep(
            step=step, epoch=progress.epoch, loss=loss, grad_norm=norm, samples=samples
        )
        _write(path, found)
    kept = f"saved as it was before, after step {progress.step}" if progress.step else "not saved"
    return NotFiniteError(
        f"{what}; the model is {kept}",
        hint=f"{path} names the samples of the step. Look at them, lower lr, or lower grad_clip.",
        step=step,
        file=str(path),
    )


def _samples(session: Session, stream: TrainingStream) -> list[SampleRef] | None:
    try:
        return stream.samples_of_step(session.job.grad_accum)
    except (QuarkError, OSError):  # the store may be gone; how the run ends matters more
        logger.exception("the samples of the step cannot be found")
        return None


def _write(path: Path, found: Any) -> None:
    write_private(path, msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
