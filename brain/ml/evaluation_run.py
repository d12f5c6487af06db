"""A run that trains nothing: the loss of a checkpoint on data (`TrainingJob.evaluate_only`)."""

import time

import torch

from brain.ml.compute import choose_device, choose_precision, make_exact
from brain.ml.evaluation import Evaluation, EvaluationLimit, Evaluator
from brain.ml.job_check import check_job
from brain.ml.model_making import make_model
from brain.ml.session import Session
from brain.ml.shared_weights import share_weights
from brain.ml.training_job import TrainingJob
from brain.ml.training_run import load_initial_weights, meet
from tools_utilities.errors import RunStoppedError, UsageError


def run(session: Session) -> int:
    """Evaluate as the job says; returns the exit code.

    Raises:
        QuarkError: whatever keeps it from being measured.
        RunStoppedError: somebody asked it to stop.
    """
    started = time.monotonic()
    with session.stop.interruptible():
        evaluator, model = prepare(session)
    session.tell("evaluating", step=0)
    found = evaluator.run(model, session.group, session.stop, limit_of(session.job))
    if found is None:
        session.stop.settle(session.group.total(session.stop.flags()))
        raise RunStoppedError("stopped before all of the data was seen")
    session.tell("eval", step=0, **found.event)
    session.watchdog.watch_peers(())
    session.group.barrier()
    _tell_end(session, found, time.monotonic() - started)
    return 0


def prepare(session: Session) -> tuple[Evaluator, torch.nn.Module]:
    """Do everything that comes before the first batch."""
    job, group = session.job, session.group
    if job.init_from is None or not job.val:
        raise UsageError("an evaluation needs weights (init_from) and data (val)")
    per_rank = check_job(job, group.world_size)
    device = choose_device(job, group.world)
    precision = choose_precision(job, device)
    meet(session, device)
    make_exact(precision, device)
    made = make_model(job)
    sources = [made.task.source(data, training=False) for data in job.val]
    model = made.model.to(device)
    share_weights(model, group, job.model)
    load_initial_weights(job, model)
    session.tell(
        "start", schema=1, run=job.name, world_size=group.world_size, device=str(device),
        parameters=sum(weight.numel() for weight in model.parameters()), resumed_from_step=None,
        total_steps=None, samples=None, samples_estimated=True, precision=precision,
        text=[source.about for source in sources], counts=made.task.counts, finished=None,
    )  # fmt: skip
    together = group.mesh is not None
    return Evaluator(sources, made.task, per_rank, precision, device, together=together), model


def limit_of(job: TrainingJob) -> EvaluationLimit:
    """Return where an evaluation ends early: after the batch that reaches a stop rule."""
    world_size = job.processes * job.nodes // job.tensor_parallel
    return EvaluationLimit(
        batches=job.max_steps,
        samples=job.max_samples and -(-job.max_samples // world_size),
        tokens=job.max_tokens and -(-job.max_tokens // world_size),
        seconds=job.max_seconds,
    )


def _tell_end(session: Session, found: Evaluation, seconds: float) -> None:
    session.tell(
        "end", reason="evaluated", exit_code=0, step=0, epoch=0.0, loss=None, val_loss=found.loss,
        seconds=seconds, samples=found.samples, tokens=found.tokens, share=1.0, stats={},
    )  # fmt: skip
