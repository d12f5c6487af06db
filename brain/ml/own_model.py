"""`package.module:build` as a model: the user's own torch module and loss.

    def build(config):                      # the run's job: config.seed, config.layers, config.seq_len …
        return model, loss                  # text: model(tokens_BT) gives logits_BTV
        return model, loss, collate         # records: collate(records) gives (inputs, targets)

`loss(outputs, targets)` returns their mean, or a value for each; of text it gets the positions that
count alone: logits_NV and targets_N. `config.vocab_size` is set. The project's folder comes first
where modules are looked for, in worker processes too.
"""

import importlib
import logging
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from brain.ml.model_name import check_own, split_own
from brain.ml.record_source import MakeBatch
from brain.ml.task import Loss
from brain.ml.training_job import TrainingJob
from tools_utilities.errors import QuarkError, UsageError, said_by

logger = logging.getLogger(__name__)
_WANTED = "It returns (model, loss), or (model, loss, collate) to make its own batches."


class OwnModel(msgspec.Struct, frozen=True):
    """What a build function returned."""

    model: nn.Module
    loss: Loss
    collate: MakeBatch | None = None


def build_own(job: TrainingJob) -> OwnModel:
    """Import and call the function that the job's model names.

    Every rank gets the same weights: random numbers start from the job's seed, and this process's own
    are as before afterwards.

    Raises:
        UsageError: it is not there, it raised, or it returned something else.
    """
    check_own(job.model, job.project_dir)
    if job.project_dir is not None and job.project_dir not in sys.path:
        sys.path.insert(0, job.project_dir)
    module, function = split_own(job.model)
    try:
        build: Any = getattr(importlib.import_module(module), function)
    except Exception as error:
        raise _raised(job, "importing it", error) from error
    if not callable(build):
        raise UsageError(f"model {job.model}: {function} is no function", hint=_WANTED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        try:
            made = build(job)
        except Exception as error:
            raise _raised(job, f"{function}(config)", error) from error
    return _checked(job, made)


def _checked(job: TrainingJob, made: Any) -> OwnModel:
    """Return what was built, if it is what it must be."""
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        found = f"a tuple of {len(made)}" if isinstance(made, tuple) else type(made).__name__
        raise UsageError(f"model {job.model}: it returned {found}", hint=_WANTED)
    model, *functions = made
    if not isinstance(model, nn.Module):
        what = type(model).__name__
        raise UsageError(f"model {job.model}: {what} is no torch.nn.Module", hint=_WANTED)
    for name, one in zip(("loss", "collate"), functions, strict=False):
        if not callable(one):
            what = type(one).__name__
            raise UsageError(f"model {job.model}: its {name} is {what}", hint=_WANTED)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise UsageError(f"model {job.model}: it has no weights to train", hint=_WANTED)
    return OwnModel(model, *functions)


def _raised(job: TrainingJob, doing: str, error: Exception) -> Exception:
    """Return what to raise for an error in the user's code: where it was, and what."""
    if isinstance(error, QuarkError):
        return error
    logger.error("model %s: %s", job.model, "".join(traceback.format_exception(error)))
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{Path(error.filename).name}:{error.lineno}"
    return UsageError(
        f"model {job.model}: {doing} raised {said_by(error)} ({where})",
        hint="The run's log has the whole traceback.",
    )
