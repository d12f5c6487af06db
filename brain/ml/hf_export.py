"""The weights of a run on an `hf:` model as a folder that transformers (or peft) loads."""

import shutil
from pathlib import Path

import msgspec

from brain.ml.checkpoint import load_weights
from brain.ml.hf_folder import TOKENIZER_FILE, hf_folder
from brain.ml.hf_model import load_hf
from brain.ml.run_files import JOB_FILE
from brain.ml.training_job import TrainingJob, load_job
from tools_utilities.errors import UsageError


def export_folder(checkpoint: Path, job: TrainingJob, out: Path, *, merged: bool) -> None:
    """Write a new folder: of adapters `adapter_model.safetensors` alone, else the whole model.

    `merged`: adapters added to the weights, so that the folder is a model by itself.

    Raises:
        UsageError: `out` exists.
    """
    if out.exists():
        raise UsageError(f"{out} exists", hint="Name a new folder.")
    loaded = load_hf(job)
    load_weights(checkpoint, loaded)
    model = loaded.eval().model
    if merged and job.lora_rank is not None:
        model = model.merge_and_unload()
    hidden = out.with_name(f".{out.name}.tmp")
    shutil.rmtree(hidden, ignore_errors=True)
    model.save_pretrained(hidden)
    tokenizer = hf_folder(job.model) / TOKENIZER_FILE
    if (merged or job.lora_rank is None) and tokenizer.is_file():
        shutil.copyfile(tokenizer, hidden / TOKENIZER_FILE)
    hidden.replace(out)


def job_of_checkpoint(path: Path, checkpoint: Path, model: str) -> TrainingJob:
    """Return the job of the run that a run's or checkpoint's folder belongs to.

    Raises:
        UsageError: it lies beside no job file, which says what the adapters are of.
    """
    for folder in (path, checkpoint.parent.parent):
        try:
            return load_job(folder / JOB_FILE)
        except (OSError, msgspec.DecodeError):
            continue
    raise UsageError(
        f"{checkpoint}: no {JOB_FILE} beside it says how {model} was trained",
        hint="Name the run's folder.",
    )
