"""`estimate`: what a run would read, how many steps it makes and how long it takes. Starts nothing.

Time is only known from a run like it on this machine: its targets a second (tokens, or the samples of a
model of records), and what it spent beside its steps. Before there is one it is unknown, and 20 steps would tell.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.training_job import TrainingJob
from resource_manager.plan import Plan
from resource_manager.repeating import job_of
from resource_manager.runs import RunInfo, read_events
from tools_utilities.errors import ChangedError
from tools_utilities.reading_hints import typed
from tools_utilities.terminal_text import (
    COMMAND,
    Line,
    Span,
    human_bytes,
    human_count,
    human_seconds,
    pairs,
)

PROBE_STEPS = 20
LEAST_STEPS = 5
"""In the later half of a run, for its speed to be told from that half."""
SAME = (
    "model", "layers", "seq_len", "batch_size", "grad_accum", "precision", "device", "processes",
    "nodes", "compile", "optimizer", "tokenizer", "vocab_size",
)  # fmt: skip
"""Fields that must be alike for one run's speed to tell another's."""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a run would take."""

    bytes: int | None
    """Read of the training data; what is read twice counts twice."""
    steps: int | None
    counts: str = "tokens"
    """What is counted as a target: `tokens`, or `samples` where the model takes records."""
    tokens: int | None
    """None too where no tokens are counted."""
    samples: int | None = None
    """Sequences, or records; None: unknown."""
    seconds: float | None = None
    """None: no run like it has finished on this machine."""
    from_run: str | None = None
    probe: str | None = None
    """The command whose run would tell the time."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier run showed."""

    run: str
    targets_per_second: float
    other_seconds: float
    """From its launch to its end, beside that: starting, warming up, saving at the end."""
    counts: str
    """`tokens` or `samples`: what its targets are."""
    epoch_targets: float | None
    """Of its data; None when it did not come far enough to tell."""
    targets_per_step: float


def estimate(job: TrainingJob, plan: Plan, runs: Sequence[RunInfo]) -> Estimate:
    """Return what `job` would take, from its plan and earlier runs (newest first)."""
    like = next(measured_runs(runs, job), None)
    epoch = next((one.epoch_targets for one in measured_runs(runs, job, same_data=True)), None)
    per_step = _targets_per_step(job, plan, like)
    epoch = epoch or _planned_epoch(job, plan, per_step)
    targets = _targets(job, epoch, per_step, like)
    train_bytes = sum(item.total_bytes for item in plan.data if item.role == "train")
    passes = _passes(job, targets, epoch)
    steps = job.max_steps
    if targets is not None and per_step is not None:
        steps = max(1, round(targets / per_step))
    probe = plan.canonical and _probe(plan.canonical)
    seconds = None
    if like is not None and targets is not None:
        seconds = like.other_seconds + targets / like.targets_per_second
    if job.max_seconds is not None:
        seconds = min(seconds, job.max_seconds) if seconds is not None else None
    counts = like.counts if like is not None else _counts(plan)
    samples = targets if counts == "samples" else steps and steps * job.batch_size
    return Estimate(
        bytes=None if passes is None else round(train_bytes * passes),
        steps=steps,
        counts=counts,
        tokens=None if targets is None or counts == "samples" else round(targets),
        samples=None if samples is None else round(samples),
        seconds=seconds,
        from_run=like.run if like is not None and seconds is not None else None,
        probe=probe if seconds is None else None,
    )


def _counts(plan: Plan) -> str:
    return "tokens" if plan.samples == "sequences" else "samples"


def _targets_per_step(job: TrainingJob, plan: Plan, like: Measured | None) -> float | None:
    """Return the targets of a step; None: nobody knows whether the model takes text or records."""
    if like is not None:
        return like.targets_per_step
    if not plan.samples:
        return None
    return float(job.batch_size * (job.seq_len if plan.samples == "sequences" else 1))


def measured_runs(
    runs: Sequence[RunInfo], job: TrainingJob, *, same_data: bool = False
) -> Iterator[Measured]:
    """Yield what finished runs like `job` showed, the newest first."""
    for info in runs:
        if info.status != "finished" or not info.step:
            continue
        try:
            before = job_of(info)
        except ChangedError:  # a run of another version tells nothing
            continue
        alike = all(getattr(before, name) == getattr(job, name) for name in SAME)
        if not alike or (same_data and before.train != job.train):
            continue
        found = _measured(info)
        if found is not None and not (same_data and found.epoch_targets is None):
            yield found


def estimate_lines(found: Estimate, plan: Plan, width: int | None) -> list[Line]:
    """Return the estimate for people."""
    exact = plan.steps_known and found.steps == plan.steps
    steps = "unknown" if found.steps is None else human_count(found.steps)
    counted = found.samples if found.counts == "samples" else found.tokens
    rows = [
        ("reads", "unknown" if found.bytes is None else f"about {human_bytes(found.bytes)}"),
        ("steps", steps if exact or found.steps is None else f"about {steps}"),
        (found.counts, "unknown" if counted is None else f"about {human_count(counted)}"),
    ]
    if found.seconds is not None:
        rows.append(("time", f"about {human_seconds(found.seconds)}, as fast as {found.from_run}"))
    else:
        rows.append(("time", "unknown: no run like it has finished on this machine"))
    lines: list[Line] = [[Span("estimate", "title"), f"  {plan.model}, nothing is started"]]
    lines += pairs(rows, width=width)
    if found.probe:
        probe = Span(typed(found.probe), COMMAND)
        lines.append([Span(f"{PROBE_STEPS} steps would tell  ", "dim"), probe])
    return lines


def as_json(found: Estimate) -> dict[str, Any]:
    """Return the estimate for `--json`."""
    return {"schema": 1, "estimate": msgspec.to_builtins(found)}


def _measured(info: RunInfo) -> Measured | None:
    events = read_events(Path(info.path))
    starts = [event for event in events if event["event"] == "start"]
    ends = [event for event in events if event["event"] == "end"]
    if len(starts) != 1 or len(ends) != 1:  # of a resumed run the seconds are not one launch's
        return None
    end = ends[0]
    tokens, seconds, steps = (float(end.get(name) or 0) for name in ("tokens", "seconds", "step"))
    if not tokens or not seconds or not steps:
        return None
    rate = _settled_rate(events) or tokens / seconds
    epoch = float(end.get("epoch") or 0)
    # A fraction of an epoch is itself an estimate; whole ones are counted.
    epoch_targets = tokens / epoch if epoch >= 1 and epoch == int(epoch) else None
    return Measured(
        run=info.name,
        targets_per_second=rate,
        counts=str(starts[0].get("counts") or "tokens"),
        other_seconds=max(0.0, float(end["time"]) - info.created_at - tokens / rate),
        epoch_targets=epoch_targets,
        targets_per_step=tokens / steps,
    )


def _settled_rate(events: Sequence[dict[str, Any]]) -> float | None:
    """Return the tokens a second of a run's later half: the first steps warm up, once a run."""
    steps = [event for event in events if event["event"] == "step"]
    later = steps[len(steps) // 2 :]
    if len(later) < LEAST_STEPS:
        return None
    seconds = float(later[-1]["time"]) - float(later[0]["time"])
    tokens = float(later[-1].get("tokens") or 0) - float(later[0].get("tokens") or 0)
    return tokens / seconds if seconds > 0 and tokens > 0 else None


def _targets(
    job: TrainingJob, epoch: float | None, per_step: float | None, like: Measured | None
) -> float | None:
    """Return the targets that the first of the stop rules allows; time, where speed is known."""
    bounds = [
        job.max_steps and per_step and job.max_steps * per_step,
        job.max_samples and per_step and job.max_samples * per_step / job.batch_size,
        job.max_tokens and float(job.max_tokens),
        job.epochs and epoch and job.epochs * epoch,
        job.max_seconds and like and job.max_seconds * like.targets_per_second,
    ]
    return min((float(bound) for bound in bounds if bound), default=None)


def _planned_epoch(job: TrainingJob, plan: Plan, per_step: float | None) -> float | None:
    """Return the targets of an epoch as the plan guesses them, else by its steps of epochs alone."""
    if plan.samples == "records":
        counts = [item.num_samples for item in plan.data if item.role == "train"]
        known = [count for count in counts if count is not None]
        return float(sum(known)) if len(known) == len(counts) else None
    if plan.epoch_tokens:
        return plan.epoch_tokens
    only_epochs = not (job.max_steps or job.max_samples or job.max_tokens)
    if not job.epochs or plan.steps is None or per_step is None or not only_epochs:
        return None
    return plan.steps * per_step / job.epochs


def _passes(job: TrainingJob, targets: float | None, epoch: float | None) -> float | None:
    return targets / epoch if targets is not None and epoch else job.epochs


def _probe(canonical: str) -> str:
    verb, blank, rest = canonical.partition(" ")
    sentence = f"train{blank}{rest}" if verb == "estimate" else canonical
    shorter = re.sub(r" --override max_steps=\S+", "", sentence)
    return f"{shorter} --override max_steps={PROBE_STEPS}"
