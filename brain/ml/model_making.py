"""From a job to its model and task, whichever kind the model's name says."""

import inspect
from typing import NamedTuple

import msgspec
from torch import nn

from brain.ml.hf_model import load_hf
from brain.ml.model import build_model
from brain.ml.model_name import is_hf, is_own
from brain.ml.model_shape import ModelShape
from brain.ml.own_model import build_own
from brain.ml.task import RecordTask, Task, TextTask
from brain.ml.tokenizer import Tokenizer, check_special_ids, load_tokenizer
from brain.ml.training_job import TrainingJob


class MadeModel(NamedTuple):
    """What is trained, and for what."""

    model: nn.Module
    task: Task
    shape: ModelShape


def make_model(job: TrainingJob) -> MadeModel:
    """Return the job's model with fresh weights, on the cpu.

    Raises:
        QuarkError: there is no such model, or its settings do not go together.
    """
    tokenizer = load_tokenizer(job.tokenizer)
    vocab_size = max(job.vocab_size or 0, tokenizer.vocab_size)
    shape = ModelShape(layers=job.layers, vocab_size=vocab_size, seq_len=job.seq_len)
    if is_own(job.model):
        return _own(job, tokenizer, shape)
    check_special_ids(job.tokenizer, vocab_size, eos_id=job.eos_id, pad_id=job.pad_id)
    if is_hf(job.model):
        return MadeModel(load_hf(job), TextTask(job, tokenizer), shape)
    return MadeModel(build_model(job.model, shape, job.seed), TextTask(job, tokenizer), shape)


def _own(job: TrainingJob, tokenizer: Tokenizer, shape: ModelShape) -> MadeModel:
    made = build_own(msgspec.structs.replace(job, vocab_size=shape.vocab_size))
    if made.collate is not None:
        return MadeModel(made.model, RecordTask(job, made.loss, made.collate), shape)
    check_special_ids(job.tokenizer, shape.vocab_size, eos_id=job.eos_id, pad_id=job.pad_id)
    apart = "documents_BT" in inspect.signature(made.model.forward).parameters
    return MadeModel(made.model, TextTask(job, tokenizer, made.loss, apart=apart), shape)
