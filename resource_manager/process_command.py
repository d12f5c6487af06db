"""`process`: a function over every sample by claims, in this process or in several."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from resource_manager.group_choice import choose_groups, several_groups_error
from tools_utilities.console import Console
from tools_utilities.errors import UsageError
from tools_utilities.process_progress import StatusLine
from tools_utilities.scripts.dataset_discovery import ShardGroup
from tools_utilities.scripts.process_shards import (
    ProcessOptions,
    process_shards,
    summary_line,
)
from tools_utilities.scripts.process_worker import ProcessSummary
from tools_utilities.settings import Settings
from tools_utilities.stop_signals import Stop
from tools_utilities.worker_processes import WorkerProcess, merged, run_worker_processes

BAD_BUDGET = 1000


def process_options(settings: Settings, slots: Mapping[str, Any]) -> ProcessOptions:
    """Return how the sentence's worker works.

    Raises:
        UsageError: words that do not go together.
    """
    wanted = slots.get("groups")
    if wanted is not None and worker_count(slots) > 1:
        raise UsageError(
            "groups with several workers", hint="Start the command once for each worker."
        )

    budget = settings.value("bad_budget")

    def choose(groups: Sequence[ShardGroup]) -> Sequence[ShardGroup]:
        return choose_groups(groups, wanted, _nobody)[0]

    return ProcessOptions(
        batch_size=slots.get("batch_size", 32),
        endpoint_url=settings.value("endpoint_url"),
        profile=settings.value("profile"),
        on_bad=settings.value("on_bad") or "fail",
        bad_budget=BAD_BUDGET if budget is None else budget,
        max_attempts=settings.value("max_attempts"),
        max_samples=slots.get("max_samples"),
        device=slots.get("device"),
        token_dtype=settings.value("token_dtype"),
        choose_groups=None if wanted is None else choose,
    )


def worker_count(slots: Mapping[str, Any]) -> int:
    """Return how many processes a sentence asks for: a worker each, or one for each GPU.

    Raises:
        UsageError: both are said, and differ; or there are none.
    """
    workers, gpus = slots.get("workers"), slots.get("gpus")
    if workers is not None and gpus is not None and workers != gpus:
        raise UsageError(
            f"{workers} workers on {gpus} gpus", hint="There is one worker for each GPU: say one."
        )
    count = int(workers if workers is not None else gpus if gpus is not None else 1)
    if count < 1:
        raise UsageError(f"{count} workers: at least 1")
    return count


def run_process(
    dataset: str,
    out: str | None,
    slots: Mapping[str, Any],
    options: ProcessOptions,
    console: Console,
) -> ProcessSummary:
    """Work until nothing is left. Raises as `process_shards` does."""
    line, stop = StatusLine(sys.stderr, animates=console.can_animate), Stop()
    with stop.on_signals(line.say), line:
        if worker_count(slots) > 1 or "gpus" in slots:
            found = run_worker_processes(_workers(dataset, out, slots, options), stop)
            return msgspec.convert(merged(found), ProcessSummary)
        return process_shards(
            dataset,
            str(slots["function"]),
            out=out,
            worker_id=slots.get("worker"),
            options=msgspec.structs.replace(options, progress=line.paint, stop=stop),
            report=line.say,
        )


def show_summary(summary: ProcessSummary, console: Console, schema: int) -> int:
    """Show what came of it; returns the exit code."""
    data = {"schema": schema, **msgspec.to_builtins(summary)}
    console.result([summary_line(summary)], data)
    for shard, why in summary.failed.items():
        console.failure(f"shard {shard}: {why}", "")
    return 1 if summary.failed else 0


def _workers(
    dataset: str, out: str | None, slots: Mapping[str, Any], options: ProcessOptions
) -> list[WorkerProcess]:
    given = {
        "--output_dir": out,
        "--endpoint_url": options.endpoint_url,
        "--profile": options.profile,
        "--max_samples": options.max_samples,
        "--device": options.device,
        "--batch_size": options.batch_size,
        "--on_bad": options.on_bad,
        "--bad_budget": options.bad_budget,
        "--max_attempts": options.max_attempts,
        "--token_dtype": options.token_dtype,
    }
    flags = [
        part for name, value in given.items() if value is not None for part in (name, str(value))
    ]
    name = slots.get("worker")
    return [
        WorkerProcess(
            arguments=(
                *("--dataset_dir", dataset, "--function", str(slots["function"]), "--verbose"),
                *flags,
                *(("--worker_id", f"{name}-{number}") if name else ()),
            ),
            environment={"CUDA_VISIBLE_DEVICES": str(number)} if "gpus" in slots else {},
        )
        for number in range(worker_count(slots))
    ]


def _nobody(groups: Sequence[ShardGroup]) -> Sequence[ShardGroup]:
    raise several_groups_error(groups, "quark")
