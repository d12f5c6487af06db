"""Settings of a job that do not go together: checked before a launch and by every rank. Imports no torch."""

from brain.ml.model_name import HF_PREFIX, is_hf, is_own
from brain.ml.training_job import TrainingJob
from tools_utilities.errors import UsageError

PARALLEL = ("ddp", "fsdp")


def check_job(job: TrainingJob, world_size: int) -> int:
    """Return the sequences of a micro-batch of one rank.

    Raises:
        UsageError: settings that do not go together.
    """
    if job.parallel not in PARALLEL:
        raise UsageError(f"parallel={job.parallel}: unknown", hint=f"Known: {', '.join(PARALLEL)}.")
    num_data = _check_tensor_parallel(job, world_size)
    share = num_data * job.grad_accum
    if job.batch_size % share:
        ranks = f"{num_data} process{'es' * (num_data > 1)}"
        if job.tensor_parallel > 1:
            ranks = f"{num_data} group{'s' * (num_data > 1)} of {job.tensor_parallel} processes"
        parts = f" in {job.grad_accum} micro-batches each" if job.grad_accum > 1 else ""
        raise UsageError(
            f"batch_size={job.batch_size} cannot be dealt to {ranks}{parts}",
            hint=f"Use a multiple of {share}.",
        )
    if len(job.train) > 1 and job.equalize == "none":
        raise UsageError(
            f"equalize=none with {len(job.train)} training groups: ranks would part ways",
            hint="Use equalize=drop or equalize=pad.",
        )
    if job.weights is not None and (
        len(job.weights) != len(job.train) or min(job.weights, default=0) <= 0
    ):
        raise UsageError(
            f"weights={job.weights}: one above 0 for each of {len(job.train)} groups",
            hint="Name as many weights as groups, or none.",
        )
    if job.command is not None and world_size > 1:
        raise UsageError(
            f"{world_size} processes: a program of one's own is started once",
            hint='Let it start them: command: "torchrun --nproc-per-node 4 my_train.py".',
        )
    if job.early_stop is not None and not job.val and not job.evaluate_only:
        raise UsageError(
            f"early_stop={job.early_stop}: there is no validation data to tell by",
            hint="Name some (validate on …), or leave early_stop out.",
        )
    return job.batch_size // share


def _check_tensor_parallel(job: TrainingJob, world_size: int) -> int:
    """Return how many ranks or groups of ranks have data of their own."""
    size = job.tensor_parallel
    if size == 1 or job.command is not None:  # a program of one's own has ranks of its own
        return world_size
    asked = f"tensor_parallel={size}"
    if world_size % size:
        raise UsageError(
            f"{asked}: {world_size} process{'es' * (world_size > 1)} do not make whole groups",
            hint=f"Use a multiple of {size} processes (on {size} gpus).",
        )
    if is_hf(job.model):
        raise UsageError(
            f"{asked}: not for {HF_PREFIX} models", hint="Use parallel=fsdp to share their weights."
        )
    if not is_own(job.model) and job.layers % size:
        raise UsageError(
            f"{asked}: {job.layers} heads cannot be dealt to {size} ranks",
            hint=f"Use a number of layers that {size} divides: there are as many heads.",
        )
    if job.precision == "fp16":
        raise UsageError(f"{asked}: not in fp16, whose loss is scaled", hint="Use precision=bf16.")
    if job.compile:
        raise UsageError(f"{asked}: not with compile", hint="Leave one of them out.")
    return world_size // size
