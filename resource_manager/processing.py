"""What sentences do with sharded datasets: process, shard, claim, complete, fail, reset, status."""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from resource_manager.process_command import (
    process_options,
    run_process,
    show_summary,
    worker_count,
)
from tools_utilities.console import Console
from tools_utilities.dataset_copy import FinishedDataset, copy_dataset, find_finished
from tools_utilities.dataset_creation import OutputOptions, create_sharded_dataset
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.errors import ClaimError, InputNeededError, UsageError
from tools_utilities.object_store import open_store
from tools_utilities.redaction import refuse_signed
from tools_utilities.sample_source import SourceOptions
from tools_utilities.scripts.create_sharded_dataset import ProgressReporter, stopping_cleanly
from tools_utilities.scripts.shard_actions import paint_status, watched_status
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.settings import Settings
from tools_utilities.shard_format import ReadOptions
from tools_utilities.shard_status import status_line, status_table
from tools_utilities.sharded_dataset import WORKERS
from tools_utilities.sharding_plan import ShardingPlan

SCHEMA = 1
_SHAPE = frozenset(
    {
        "shards",
        "chunk_bytes",
        "samples_per_shard",
        "format",
        "compression",
        "max_samples",
        "shuffle",
        "seed",
    }
)
"""What a sentence may say of the shards that it wants; without any a finished dataset is copied."""
ACTIONS = ("claim", "complete", "fail", "reset_shard", "shard_status")


class ShardCommands:
    """The commands of one person at one console."""

    def __init__(self, settings: Settings, console: Console, *, plan_only: bool = False) -> None:
        self._settings = settings
        self._console = console
        self._plan_only = plan_only

    def process(self, slots: Mapping[str, Any]) -> int:
        """Run a function over the dataset's samples until nothing is left; 1 when a shard failed."""
        dataset = self._one_dataset(slots)
        out = slots.get("out")
        options = process_options(self._settings, slots)
        workers = worker_count(slots)
        plan = [
            f"process {dataset} with {slots['function']}",
            f"batches of {options.batch_size}, results below {out or dataset.rstrip('/') + '/out'}",
            f"{workers} worker{'s' * (workers > 1)} here",
        ]
        if self._planned(plan, slots):
            return 0
        summary = run_process(
            dataset, self._place(out) if out else None, slots, options, self._console
        )
        return show_summary(summary, self._console, SCHEMA)

    def shard(self, slots: Mapping[str, Any]) -> int:
        """Make a sharded dataset."""
        source, out, name = self._place(str(slots["source"])), slots.get("out"), slots.get("name")
        flat = "samples_per_shard" in slots
        target = self._place(str(out)) if out else f"{source.rstrip('/')}-sharded"
        if name is not None and not flat:
            # A dataset of that name: in `out`, else beside its source.
            folder = target if out else source.rstrip("/").rpartition("/")[0]
            target = f"{folder.rstrip('/')}/{name}"
        reach = {
            "endpoint_url": self._settings.value("endpoint_url"),
            "profile": self._settings.value("profile"),
        }
        finished = None if _SHAPE & set(slots) else find_finished(source, SourceOptions(**reach))
        if finished is not None:
            return self._copy(finished, (source, target), slots, OutputOptions(**reach))
        compression = slots.get("compression")
        plan = ShardingPlan(
            num_shards=slots.get("shards", 8),
            chunk_bytes=slots.get("chunk_bytes", 100_000_000),
            format=slots.get("format", "jsonl"),
            compression=None if compression == "none" else compression,
            max_samples=slots.get("max_samples"),
            layout="flat" if flat else "folders",
            name=str(name) if name is not None else "train",
            samples_per_shard=slots.get("samples_per_shard"),
            # Shards keep the order of the source unless the sentence asks for another.
            shuffle=slots.get("shuffle", "seed" in slots),
            seed=slots.get("seed", 42),
        )
        lines = [
            f"shard {source} → {target}",
            f"{plan.num_shards} shards of {plan.suffix}, chunks of {plan.chunk_bytes:,} bytes"
            if plan.samples_per_shard is None
            else f"{plan.samples_per_shard:,} samples in each {plan.suffix}",
        ]
        if plan.shuffle:
            lines.append(f"shuffled with seed {plan.seed}")
        if self._planned(lines, slots):
            return 0
        with stopping_cleanly():
            master = create_sharded_dataset(
                source,
                target,
                plan,
                options=SourceOptions(
                    read=ReadOptions(token_dtype=self._settings.value("token_dtype")), **reach
                ),
                output=OutputOptions(workers=slots.get("workers", WORKERS), **reach),
                report=self._reporter(),
            )
        return self._made(target, master)

    def _copy(
        self,
        finished: FinishedDataset,
        places: tuple[str, str],
        slots: Mapping[str, Any],
        output: OutputOptions,
    ) -> int:
        """Copy a dataset that is sharded already, as nothing was said of another shape."""
        source, target = places
        shards, samples = finished.num_shards, finished.num_samples
        lines = [
            f"copy {source} → {target}",
            f"{shards} shards as they are: {samples:,} samples, {finished.num_bytes:,} bytes",
        ]
        if len(finished.sides) > 1:
            names = ", ".join(side.folder.rstrip("/") for side in finished.sides)
            lines.append(f"kept apart: {names}")
        if self._planned(lines, slots):
            return 0
        with stopping_cleanly():
            return self._made(target, copy_dataset(finished, target, output, self._reporter()))

    def _reporter(self) -> ProgressReporter:
        return ProgressReporter(lambda text: self._console.note(text.rstrip()), time.monotonic)

    def _made(self, target: str, master: Mapping[str, Any]) -> int:
        self._console.result(
            [f"{master['total_tasks']:,} samples in {master['num_shards']} shards: {target}"],
            # `schema` is the output's version, as everywhere; the dataset's own is its columns.
            {**master, "schema": SCHEMA, "columns": master.get("schema"), "output": target},
        )
        return 0

    def act(self, action: str, slots: Mapping[str, Any]) -> int:
        """Carry out one of ACTIONS. Raises ClaimError (5): nothing to claim, or not the owner."""
        dataset = self._one_dataset(slots)
        if self._planned([f"{action} in {dataset}"], slots):
            return 0
        spec, _ = self._spec(dataset)
        manager = ShardManager(dataset, slots.get("worker"), store=open_store(spec))
        shard_id = slots.get("shard")
        if action == "shard_status":
            # Ctrl-C is how a person stops looking: nothing is wrong.
            with contextlib.suppress(KeyboardInterrupt):
                follow = slots.get("follow")
                status = (
                    watched_status(manager, self._paint) if follow else manager.get_shard_status()
                )
                self._console.result(status_table(status), {"schema": SCHEMA, **status})
            return 0
        if action == "claim":
            claim = manager.claim_shard(slots.get("prefer"))
            if claim is None:
                raise ClaimError(
                    f"{dataset}: no shard available",
                    hint="`shard status of …` shows who holds them.",
                )
            lines = [f"Claimed shard {claim.shard_id}", *claim.chunks]
            self._console.result(lines, {"schema": SCHEMA, **msgspec.to_builtins(claim)})
            return 0
        return self._change(action, manager, int(str(shard_id)))

    def _paint(self, status: dict[str, Any]) -> None:
        """Show a status that is followed: in place where the terminal can, else as a line."""
        if self._console.can_animate:
            paint_status(status)
        else:
            self._console.note(status_line(status))

    def _change(self, action: str, manager: ShardManager, shard_id: int) -> int:
        if action == "complete":
            manager.mark_completed(shard_id)
        elif action == "fail":
            manager.mark_failed(shard_id)
        else:
            rows = [
                row for row in manager.get_shard_status()["shards"] if row["shard_id"] == shard_id
            ]
            state = f"{rows[0]['status']} {rows[0]['assigned_to'] or ''}".strip() if rows else "?"
            self._console.note(f"shard {shard_id}: {state}")
            if not self._sure(f"reset shard {shard_id}"):
                self._console.note("Nothing done.")
                return UsageError.exit_code
            manager.reset(shard_id)
        words = {"complete": "Completed", "fail": "Gave up", "reset_shard": "Reset"}
        self._console.result(
            [f"{words[action]} shard {shard_id}"], {"schema": SCHEMA, "shard_id": shard_id}
        )
        return 0

    def _sure(self, what: str) -> bool:
        if self._console.about.yes:
            return True
        if not self._console.can_ask:
            raise InputNeededError(f"this would {what}", hint="Add --yes to do it.")
        return self._console.confirm(f"{what.capitalize()}?", default=False)

    def _planned(self, lines: list[str], slots: Mapping[str, Any]) -> bool:
        """Show a plan; True when the command ends with it."""
        if not (self._plan_only or slots.get("plan_only")):
            return False
        self._console.result(lines, {"schema": SCHEMA, "event": "plan", "plan": lines})
        return True

    def _one_dataset(self, slots: Mapping[str, Any]) -> str:
        data = slots.get("data") or []
        if isinstance(data, str):
            data = [data]
        if len(data) != 1:
            raise InputNeededError(
                "which sharded dataset?" if not data else "one sharded dataset at a time",
                hint="Name it: `… in s3://bucket/sharded`.",
            )
        refuse_signed(str(data[0]), "a batch job")  # it goes to its workers as an argument
        return self._place(str(data[0]))

    def _place(self, text: str) -> str:
        """Return a typed path, URI or alias, absolute from where the command was given."""
        written = self._settings.aliases.get(text, text)
        if "://" in written or written.startswith("~"):
            return written
        return str(self._settings.start_dir / written)

    def _spec(self, dataset: str) -> Any:
        return locate_dataset(
            dataset,
            endpoint_url=self._settings.value("endpoint_url"),
            profile=self._settings.value("profile"),
        )
