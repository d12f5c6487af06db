"""What is shown before a run goes on: the plan it was started with, and what is different now."""

from typing import Any

import msgspec

from brain.ml.training_job import TrainingJob
from resource_manager.accelerators import (
    Accelerators,
    device_notes,
    planned_device,
    planned_precision,
)
from resource_manager.job_settings import SAME_NAME, changed_fields
from resource_manager.launch_places import where_of
from resource_manager.plan import Plan, PlannedSetting, limits_of, parameters_of
from resource_manager.provenance import load_run_plan
from resource_manager.repeating import ALL_STOP_RULES, NEAREST, settings_of_job
from resource_manager.runs import RunInfo
from tools_utilities.errors import ChangedError
from tools_utilities.settings import Settings

AS_SAID = frozenset({*SAME_NAME, "epochs", "batch_size", "betas", "checkpoint_every", "eval_every"})
"""Settings that a job holds as they were said."""
RESUMED = "an earlier resume"


def goes_on_from(job: TrainingJob, info: RunInfo) -> str:
    """Return where a run goes on, in words."""
    if job.from_step is not None:
        return f"from step {job.from_step}"
    return f"after step {info.checkpoint_step}" if info.checkpoint_step else "from its start"


def resumed_plan(
    job: TrainingJob, info: RunInfo, told: Settings, here: Accelerators, canonical: str | None
) -> Plan | None:
    """Return the plan of a run that goes on; None when what it was started with cannot be read.

    Nothing is looked for again: the data are the run's own, and are checked as they are read.
    `told` are the settings of this command.
    """
    try:
        before, plan = load_run_plan(info)
    except ChangedError:
        return None
    steps, known = _steps(job, before, plan)
    device = planned_device(job, here)
    return msgspec.structs.replace(
        plan,
        run_dir=job.run_dir,
        where=where_of(job),
        machine=(),
        parameters=parameters_of(job) or plan.parameters,
        device=device,
        processes=job.processes,
        nodes=job.nodes,
        precision=planned_precision(job, device),
        batch_size=job.batch_size,
        seq_len=job.seq_len,
        limits=limits_of(job),
        steps=steps,
        steps_known=known,
        earlier_seconds=None,
        settings=_settings(plan, told, job, before),
        differences=changed_fields(job, before),
        notes=(f"goes on {goes_on_from(job, info)}", *device_notes(job, here)),
        warnings=(),
        canonical=canonical,
        flags="",
    )


def _settings(
    plan: Plan, told: Settings, job: TrainingJob, before: TrainingJob
) -> tuple[PlannedSetting, ...]:
    """Return what this command sets, then what the run was given before and still holds."""
    said = {name: source for name, _, source in told.non_defaults() if source in NEAREST}
    values = settings_of_job(job)
    now = [
        PlannedSetting(
            name=name, value=values[name] if _is_relative(value) else value, why=said[name]
        )
        for name, value, _ in told.non_defaults()
        if name in said
    ]
    stops_anew = any(rule in said for rule in ALL_STOP_RULES)
    kept = [
        item
        for item in _given(plan, before)
        if item.name not in said and not (stops_anew and item.name in ALL_STOP_RULES)
    ]
    return (*now, *kept)


def _is_relative(value: Any) -> bool:
    """Tell `1 more epoch` and `half the batch size` from values that stand by themselves."""
    return isinstance(value, dict) and bool(value.keys() & {"add", "scale"})


def _given(plan: Plan, before: TrainingJob) -> list[PlannedSetting]:
    """Return what a run was given when it was started, and by a resume since."""
    values = settings_of_job(before)
    started = {item.name: item for item in plan.settings}
    of_device = "batch_scope" in started  # then the job's batch size is another number
    found = []
    for name, item in started.items():
        holds = name in AS_SAID and not (name == "batch_size" and of_device)
        value = values[name] if holds else item.value
        same = msgspec.to_builtins(value) == item.value
        if value is not None or same:
            why = f"{item.why} of its start" if same else RESUMED
            found.append(PlannedSetting(name=name, value=value, why=why))
    if not any(rule in started for rule in ALL_STOP_RULES) and before.epochs == 1:
        return found  # one pass: nobody said so
    more = [rule for rule in ALL_STOP_RULES if rule not in started and values[rule] is not None]
    return [*found, *(PlannedSetting(name=rule, value=values[rule], why=RESUMED) for rule in more)]


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
