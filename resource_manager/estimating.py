"""`estimate`: what a run would read, how many steps it makes and how long it takes. Starts nothing.

Time is only known from a run like it on this machine: its tokens a second, and what it spent beside
its steps. Before there is one it is unknown, and 20 steps would tell.
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
    tokens: int | None
    seconds: float | None = None
    """None: no run like it has finished on this machine."""
    from_run: str | None = None
    probe: str | None = None
    """The command whose run would tell the time."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What an earlier run showed."""

    run: str
    tokens_per_second: float
    other_seconds: float
    """From its launch to its end, beside that: starting, warming up, saving at the end."""
    epoch_tokens: float | None
    """Of its data; None when it did not come far enough to tell."""
    tokens_per_step: float


def estimate(job: TrainingJob, plan: Plan, runs: Sequence[RunInfo]) -> Estimate:
    """Return what `job` would take, from its plan and earlier runs (newest first)."""
    like = next(measured_runs(runs, job), None)
    epoch_tokens = next(
        (one.epoch_tokens for one in measured_runs(runs, job, same_data=True)), None
    )
    tokens = _tokens(job, plan, epoch_tokens, like)
    train_bytes = sum(item.total_bytes for item in plan.data if item.role == "train")
    passes = _passes(job, tokens, epoch_tokens or _planned_epoch(job, plan))
    per_step = like.tokens_per_step if like else job.batch_size * job.seq_len
    steps = job.max_steps if tokens is None else max(1, round(tokens / per_step))
    probe = plan.canonical and _probe(plan.canonical)
    seconds = None
    if like is not None and tokens is not None:
        seconds = like.other_seconds + tokens / like.tokens_per_second
    if job.max_seconds is not None:
        seconds = min(seconds, job.max_seconds) if seconds is not None else None
    return Estimate(
        bytes=None if passes is None else round(train_bytes * passes),
        steps=steps,
        tokens=None if tokens is None else round(tokens),
        seconds=seconds,
        from_run=like.run if like is not None and seconds is not None else None,
        probe=probe if seconds is None else None,
    )


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
        if found is not None and not (same_data and found.epoch_tokens is None):
            yield found


def estimate_lines(found: Estimate, plan: Plan, width: int | None) -> list[Line]:
    """Return the estimate for people."""
    exact = plan.steps_known and found.steps == plan.steps
    steps = "unknown" if found.steps is None else human_count(found.steps)
    rows = [
        ("reads", "unknown" if found.bytes is None else f"about {human_bytes(found.bytes)}"),
        ("steps", steps if exact or found.steps is None else f"about {steps}"),
        ("tokens", "unknown" if found.tokens is None else f"about {human_count(found.tokens)}"),
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
    epoch_tokens = tokens / epoch if epoch >= 1 and epoch == int(epoch) else None
    return Measured(
        run=info.name,
        tokens_per_second=rate,
        other_seconds=max(0.0, float(end["time"]) - info.created_at - tokens / rate),
        epoch_tokens=epoch_tokens,
        tokens_per_step=tokens / steps,
    )


def _settled_rate(events: Sequence[dict[str, Any]]) -> float | None:
    """Return the tokens a second of a run's later half: the first steps warm up, once a run."""
    steps = [event for event in events if event["event"] == "step"]
    later = steps[len(steps) // 2 :]
    if len(later) < LEAST_STEPS:
        return None
    seconds = float(later[-1]["time"]) - float(later[0]["time"])
    tokens = float(later[-1]["tokens"]) - float(later[0]["tokens"])
    return tokens / seconds if seconds > 0 and tokens > 0 else None


def _tokens(
    job: TrainingJob, plan: Plan, epoch_tokens: float | None, like: Measured | None
) -> float | None:
    """Return the tokens that the first of the stop rules allows; time, where speed is known."""
    per_step = like.tokens_per_step if like else float(job.batch_size * job.seq_len)
    epoch = epoch_tokens or _planned_epoch(job, plan)
    bounds = [
        job.max_steps and job.max_steps * per_step,
        job.max_samples and job.max_samples * per_step / job.batch_size,
        job.max_tokens and float(job.max_tokens),
        job.epochs and epoch and job.epochs * epoch,
        job.max_seconds and like and job.max_seconds * like.tokens_per_second,
    ]
    return min((float(bound) for bound in bounds if bound), default=None)


def _planned_epoch(job: TrainingJob, plan: Plan) -> float | None:
    """Return the tokens of an epoch as the plan guesses them, else by its steps of epochs alone."""
    if plan.epoch_tokens:
        return plan.epoch_tokens
    only_epochs = not (job.max_steps or job.max_samples or job.max_tokens)
    if not job.epochs or plan.steps is None or not only_epochs:
        return None
    return plan.steps * job.batch_size * job.seq_len / job.epochs


def _passes(job: TrainingJob, tokens: float | None, epoch_tokens: float | None) -> float | None:
    if tokens is not None and epoch_tokens:
        return tokens / epoch_tokens
    return job.epochs


def _probe(canonical: str) -> str:
    verb, blank, rest = canonical.partition(" ")
    sentence = f"train{blank}{rest}" if verb == "estimate" else canonical
    shorter = re.sub(r" --override max_steps=\S+", "", sentence)
    return f"{shorter} --override max_steps={PROBE_STEPS}"
