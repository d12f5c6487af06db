"""What is shown before a run goes on: the plan it was started with, and what is different now."""

import msgspec

from brain.ml.training_job import TrainingJob
from resource_manager.job_settings import changed_fields
from resource_manager.plan import Plan, limits_of, parameters_of
from resource_manager.provenance import load_run_plan
from resource_manager.runs import RunInfo
from tools_utilities.errors import ChangedError


def goes_on_from(job: TrainingJob, info: RunInfo) -> str:
    """Return where a run goes on, in words."""
    if job.from_step is not None:
        return f"from step {job.from_step}"
    return f"after step {info.checkpoint_step}" if info.checkpoint_step else "from its start"


def resumed_plan(job: TrainingJob, info: RunInfo, canonical: str | None) -> Plan | None:
    """Return the plan of a run that goes on; None when what it was started with cannot be read.

    Nothing is looked for again: the data are the run's own, and are checked as they are read.
    """
    try:
        before, plan = load_run_plan(info)
    except ChangedError:
        return None
    steps, known = _steps(job, before, plan)
    return msgspec.structs.replace(
        plan,
        run_dir=job.run_dir,
        parameters=parameters_of(job) or plan.parameters,
        device=job.device or plan.device,
        processes=job.processes,
        nodes=job.nodes,
        precision=job.precision or plan.precision,
        batch_size=job.batch_size,
        seq_len=job.seq_len,
        limits=limits_of(job),
        steps=steps,
        steps_known=known,
        earlier_seconds=None,
        differences=changed_fields(job, before),
        notes=(f"goes on {goes_on_from(job, info)}",),
        warnings=(),
        canonical=canonical,
    )


def _steps(job: TrainingJob, before: TrainingJob, plan: Plan) -> tuple[int | None, bool]:
    """Return the steps of the whole run under its new limits, and whether they are exact."""
    if limits_of(job) == limits_of(before):
        return plan.steps, plan.steps_known
    if len(limits_of(job)) != 1 or len(limits_of(before)) != 1:
        return None, False
    if job.max_steps:
        return job.max_steps, True
    if job.epochs and before.epochs and plan.steps:
        return round(plan.steps * job.epochs / before.epochs), False
    return None, False
