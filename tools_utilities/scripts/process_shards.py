"""Runs a function over every sample of a sharded dataset; any number of machines run the same command.

    python tools_utilities/scripts/process_shards.py --dataset_dir D --function pkg.mod:embed

Each machine claims a shard, works it, completes it, and goes on until nothing is left. A machine
that dies is followed by another one, which repeats at most one chunk. Exit codes: 0 everything is
done, 1 a shard failed, 5 a claim could not be kept, else those of the program.
"""

import argparse
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tools_utilities.dataset_location import locate_dataset
from tools_utilities.errors import ClaimError, QuarkError, UsageError
from tools_utilities.manifest import Shard
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.scripts.shard_actions import worker_name
from tools_utilities.scripts.shard_manager import ShardClaim, ShardManager
from tools_utilities.shard_processing import (
    BatchFunction,
    FunctionError,
    ShardOutput,
    ShardProcessor,
    Work,
)

LEASE_SECONDS = 30.0
POLL_SECONDS = 5.0
MAX_ATTEMPTS = 3
FOREVER = float("inf")


class ProcessSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What this worker did."""

    shards: tuple[int, ...]
    """Shards it completed, in order."""
    num_samples: int
    num_chunks_worked: int
    lost: tuple[int, ...]
    """Shards that another worker took from it; their output here is never seen."""
    failed: dict[int, str]
    """Shard → why the function failed on it."""


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works."""

    batch_size: int = 32
    preferred_shard_id: int | None = None
    lease_seconds: float = LEASE_SECONDS
    """Renewed three times within it; a dead worker is followed after 1.25 of it."""
    endpoint_url: str | None = None
    profile: str | None = None
    state_dir: Path | None = None


def process_shards(
    dataset_dir: str,
    function: str | BatchFunction,
    *,
    out: str | None = None,
    worker_id: str | None = None,
    options: ProcessOptions | None = None,
    report: Callable[[str], None] = lambda _line: None,
) -> ProcessSummary:
    """Claim shards until nothing is left, and write the function's results below `out`.

    `function` (or its name `package.module:function`) gets a list of samples and returns one
    result for each. `out` defaults to `out/` in the dataset. Waits for shards that others hold.
    A shard on which the function fails is given up, and left after three attempts.

    Raises:
        ClaimError: the store does not let this worker renew its claim; nothing was published.
        UsageError: no such function, or a store that cannot hold claims.
    """
    chosen = options or ProcessOptions()
    if chosen.batch_size < 1:
        raise UsageError(f"batch_size={chosen.batch_size}: at least 1")
    if isinstance(function, str):
        name, called = function, load_function(function)
    else:
        name, called = f"{function.__module__}:{function.__qualname__}", function
    spec, prefix = _locate(dataset_dir, chosen)
    out_spec, out_prefix = _locate(out, chosen) if out is not None else (spec, f"{prefix}out/")
    manager = ShardManager(
        dataset_dir,
        worker_id,
        lease_seconds=chosen.lease_seconds,
        store=open_store(spec),
        state_dir=chosen.state_dir,
    )
    worker = _Worker(
        manager,
        (prefix, (open_store(out_spec), out_prefix)),
        Work(function=called, function_name=name, batch_size=chosen.batch_size),
        report,
    )
    return worker.run(chosen.preferred_shard_id, min(POLL_SECONDS, chosen.lease_seconds / 3))


def load_function(name: str) -> BatchFunction:
    """Return the function `package.module:function`; the working folder is searched too.

    Raises:
        UsageError: there is none.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise UsageError(f"{name}: not of the form package.module:function")
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"{name}: {error}", hint="It must be importable from the folder you are in."
        ) from error
    if not callable(found):
        raise UsageError(f"{name} is no function")
    function: BatchFunction = found
    return function


def _locate(place: str, options: ProcessOptions) -> tuple[StoreSpec, str]:
    return locate_dataset(place, endpoint_url=options.endpoint_url, profile=options.profile)


class _Worker:
    """The loop of one machine."""

    def __init__(
        self,
        manager: ShardManager,
        places: tuple[str, tuple[Any, str]],
        work: Work,
        report: Callable[[str], None],
    ) -> None:
        self._manager = manager
        self._prefix, self._out = places
        self._work = work
        self._report = report
        self._outputs: dict[int, ShardOutput] = {}
        self._lost: list[int] = []
        self._failed: dict[int, str] = {}

    def run(self, preferred: int | None, poll_seconds: float) -> ProcessSummary:
        by_id: dict[int, Shard] = {shard.shard_id: shard for shard in self._manager.manifest.shards}
        # A shard that failed here is left to others: another machine may have what it lacks.
        while claim := self._manager.claim_shard(
            preferred, wait_seconds=FOREVER, poll_seconds=poll_seconds, skip=self._failed
        ):
            self._work_shard(by_id[claim.shard_id], claim)
        return ProcessSummary(
            shards=tuple(self._outputs),
            num_samples=sum(output.num_samples for output in self._outputs.values()),
            num_chunks_worked=sum(output.num_worked for output in self._outputs.values()),
            lost=tuple(self._lost),
            failed=self._failed,
        )

    def _work_shard(self, shard: Shard, claim: ShardClaim) -> None:
        hold = self._manager.hold(claim)
        record = hold.record
        assert record is not None  # noqa: S101 - a held claim has a record
        if record.attempts > MAX_ATTEMPTS and record.last_error:
            with hold:
                self._failed[claim.shard_id] = record.last_error
            return
        processor = ShardProcessor(
            (self._manager.store, self._prefix),
            self._out,
            self._work,
            check=hold.check,
            report=lambda done: self._manager.tell_progress(claim, hold.record, done),
        )
        try:
            with hold:
                output = processor.run(shard, record)
                hold.complete(output.folder, output.num_samples, output.checksum)
        except ClaimError:
            if not hold.lost:
                raise
            self._lost.append(claim.shard_id)
            self._report(f"shard {claim.shard_id}: another worker took it")
        except FunctionError as error:
            self._failed[claim.shard_id] = str(error)
            self._manager.show(claim.shard_id, hold.record)
            self._report(f"shard {claim.shard_id}: {error}")
        else:
            self._outputs[claim.shard_id] = output
            self._manager.show(claim.shard_id, hold.record)
            self._report(f"shard {claim.shard_id}: {output.num_samples:,} samples")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run a function over a sharded dataset.")
    parser.add_argument("--dataset_dir", required=True, help="folder or store URI")
    parser.add_argument("--function", required=True, help="package.module:function")
    parser.add_argument("--output_dir", help="folder or store URI; default: out/ in the dataset")
    parser.add_argument("--worker_id", help="shown as assigned_to; default: host name")
    parser.add_argument("--host_id", type=int, help="worker id machineX_hostY, if no --worker_id")
    parser.add_argument("--machine_id", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--preferred_shard_id", type=int)
    parser.add_argument("--lease", type=float, default=LEASE_SECONDS, help="seconds")
    parser.add_argument("--endpoint_url", help="S3 endpoint (R2, MinIO, SeaweedFS)")
    parser.add_argument("--profile", help="AWS profile")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Work until nothing is left; the summary goes to stdout."""
    options = _parse(arguments)
    try:
        summary = process_shards(
            options.dataset_dir,
            options.function,
            out=options.output_dir,
            worker_id=worker_name(options.worker_id, options.host_id, options.machine_id),
            options=ProcessOptions(
                batch_size=options.batch_size,
                preferred_shard_id=options.preferred_shard_id,
                lease_seconds=options.lease,
                endpoint_url=options.endpoint_url,
                profile=options.profile,
            ),
            report=_say if options.verbose else _silent,
        )
    except QuarkError as error:
        sys.stderr.write(f"error: {error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    shown = msgspec.json.encode(summary).decode() if options.json else summary_line(summary)
    sys.stdout.write(shown + "\n")
    return 1 if summary.failed else 0


def summary_line(summary: ProcessSummary) -> str:
    """Return a worker's summary in one line."""
    failed = f", {len(summary.failed)} failed" if summary.failed else ""
    return f"{summary.num_samples:,} samples in {len(summary.shards)} shards{failed}"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _silent(_line: str) -> None:
    return None


if __name__ == "__main__":
    sys.exit(main())
