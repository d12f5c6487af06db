"""The plan as a screen: what `quark` shows before it asks. Pure."""

from collections.abc import Iterator
from typing import Any

from brain.ml.dataset_shards.shuffle_figures import ShuffleQuality
from resource_manager.plan import Plan, PlannedData
from tools_utilities.reading_hints import typed
from tools_utilities.terminal_text import (
    COMMAND,
    Line,
    Span,
    fold,
    human_bytes,
    human_count,
    human_seconds,
    pairs,
)

SHOWN_GROUPS = 20
"""Groups listed by name; a plan of more says how many."""


def plan_lines(plan: Plan, *, width: int | None) -> list[Line]:
    """Return the plan's lines, folded to `width` (None: off a terminal, one fact a line)."""
    return [
        [Span(plan.name, "title"), f"  {plan.task} {plan.model}"],
        *pairs(_facts(plan), width=width),
        *_folded([f"note: {note}" for note in plan.notes], width, ""),
        *_folded([f"warning: {warning}" for warning in plan.warnings], width, "yellow"),
        *_command(plan),
    ]


def _facts(plan: Plan) -> Iterator[tuple[str, str]]:
    shown = plan.data[:SHOWN_GROUPS]
    for item in shown:
        yield "data" if item.role == "train" else item.role, f"{item.store}/{item.prefix}"
        yield "", _about(item)
        if item.shuffle is not None:
            yield "", _mixing(item.shuffle)
    if len(plan.data) > len(shown):
        yield "", f"and {len(plan.data) - len(shown)} more groups"
    if not any(item.role == "validation" for item in plan.data):
        yield "validation", "none"
    if plan.text:
        yield "text", plan.text
    yield "model", _model(plan)
    yield "compute", _compute(plan)
    yield from plan.machine
    yield "batch", _batch(plan)
    yield "steps", _steps(plan)
    if plan.earlier_seconds is not None:
        yield "time", f"{human_seconds(plan.earlier_seconds)} in an earlier run like this"
    yield "run folder", plan.run_dir
    for i, setting in enumerate(plan.settings):
        yield "settings" if not i else "", f"{setting.name}={_text(setting.value)}  ({setting.why})"
    for i, difference in enumerate(plan.differences):
        yield "since last run" if not i else "", difference


def _about(item: PlannedData) -> str:
    least = "" if item.complete_listing else "≥ "
    facts = [
        f"{least}{item.num_shards:,} shard{'' if item.num_shards == 1 else 's'}",
        f"{least}{human_bytes(item.total_bytes)}",
        item.format or "unknown format",
    ]
    if item.num_samples is not None:
        about = "" if item.samples_known else "about "
        facts.append(f"{about}{human_count(item.num_samples)} samples")
    if item.records_decoded:
        facts.append(f"{item.records_decoded} records decoded")
    return " · ".join(facts) + (f" ({item.why})" if item.why else "")


def _mixing(found: ShuffleQuality) -> str:
    if not found.shuffled:
        return "in file order"
    window = f"{found.lanes} lanes of {found.window_splits}"
    batch = f"{found.batch_shards:.1f} shards in a batch of {found.batch_size}"
    return " · ".join(
        [
            f"mixed over {found.open_splits} splits ({human_bytes(found.open_bytes)}), {window}",
            f"{found.same_shard:.1%} of neighbours from one shard",
            f"displacement {found.displacement:.2f} of a full shuffle's",
            f"{batch} (full shuffle {found.full_batch_shards:.1f})",
        ]
    )


def _model(plan: Plan) -> str:
    facts = [plan.model]
    if plan.layers is not None:
        facts.append(f"{plan.layers} layer" + "s" * (plan.layers > 1))
    if plan.parameters is not None:
        facts.append(f"{human_count(plan.parameters)} parameters")
    return " · ".join(facts)


def _compute(plan: Plan) -> str:
    facts = [plan.where, plan.device, f"{plan.processes} process" + "es" * (plan.processes > 1)]
    if plan.nodes > 1:
        facts.append(f"{plan.nodes} nodes")
    return " · ".join([*facts, plan.precision])


def _batch(plan: Plan) -> str:
    if plan.samples == "sequences":
        return f"{plan.batch_size:,} sequences of {plan.seq_len:,} tokens"
    return f"{plan.batch_size:,} {plan.samples or 'samples'}"


def _steps(plan: Plan) -> str:
    limits = " or ".join(plan.limits)
    if plan.task == "evaluate":
        return f"none: every sample once{f', at most {limits}' if limits else ''}"
    if len(plan.limits) > 1:
        limits += ", whichever comes first"
    if plan.steps is None:
        return limits
    return f"{'' if plan.steps_known else 'about '}{plan.steps:,} ({limits})"


def _command(plan: Plan) -> list[Line]:
    """The command is for copying: one line as a shell takes it, which a terminal wraps by itself."""
    if plan.canonical is None:
        return []
    command = typed(plan.canonical.removesuffix(plan.flags)) + plan.flags
    return [[Span("same as", "dim")], ["  ", Span(command, COMMAND)]]


def _folded(texts: list[str], width: int | None, style: str) -> list[Line]:
    return [
        [Span(line, style)] for text in texts for line in (fold(text, width) if width else [text])
    ]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    if isinstance(value, dict):
        return ",".join(f"{amount:g}{unit}" for unit, amount in value.items())
    return str(value)
