"""Runs a function over every sample of a sharded dataset; any number of machines run the same command.

    python tools_utilities/scripts/process_shards.py --dataset_dir D --function pkg.mod:embed

Each machine claims a shard, works it, completes it, and goes on until nothing is left. A machine
that dies is followed by another one, which repeats at most one chunk. Exit codes: 0 everything is
done, 1 a shard failed, 5 a claim could not be kept, else those of the program.
"""

import argparse
import functools
import hashlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tools_utilities.batch_work import BatchFunction, Work, load_function
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.errors import QuarkError, RunStoppedError, UsageError, error_lines
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store
from tools_utilities.patience import patiently
from tools_utilities.process_progress import StatusLine
from tools_utilities.process_record import ProcessJob
from tools_utilities.redaction import guard_process
from tools_utilities.scripts.process_input import GroupChooser, WorkInput, find_input
from tools_utilities.scripts.process_job import other_job_error, settle_job
from tools_utilities.scripts.process_worker import ProcessSummary, ProcessWorker
from tools_utilities.scripts.shard_actions import worker_name
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.shard_format import shard_formats
from tools_utilities.stop_signals import INTERRUPTED, Stop
from tools_utilities.token_width import WIDTHS

LEASE_SECONDS = 30.0
POLL_SECONDS = 5.0


class ProcessOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works."""

    batch_size: int = 32
    preferred_shard_id: int | None = None
    lease_seconds: float = LEASE_SECONDS
    """Renewed three times within it; a dead worker is followed after 1.25 of it."""
    endpoint_url: str | None = None
    profile: str | None = None
    state_dir: Path | None = None
    output_format: str = "jsonl"
    on_bad: str = "fail"
    """`skip` leaves samples out that the function fails on, up to `bad_budget` a shard."""
    bad_budget: int = 1000
    max_attempts: int = 3
    """Workers that may die in a row at one place of a shard; then it is left alone."""
    max_samples: int | None = None
    """Only the first so many samples, in shard order."""
    token_dtype: str | None = None
    """Of `.bin` files whose dataset has no index that says it."""
    device: str | None = None
    """Given to a class that takes `device=`."""
    choose_groups: GroupChooser | None = None
    """Picks among several groups of files that were never sharded."""
    progress: Callable[[str], None] = lambda _line: None
    """Hears a status line after every batch."""
    stop: Stop | None = None
    """Asks the worker to give its shard back and end."""


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
    A shard on which the function fails is given up and left to others. `report` hears what happened.

    Raises:
        ClaimError: the store does not let this worker renew its claim; nothing was published.
        UsageError: no such function, a store that cannot hold claims, or another job's results are
            where this job's would go.
        RunStoppedError: `options.stop` was asked; the shard in work was given back, its finished chunks
            are kept.
    """
    chosen = options or ProcessOptions()
    _check(chosen)
    if isinstance(function, str):
        name, called = function, load_function(function, chosen.device)
    else:
        name, called = f"{function.__module__}:{function.__qualname__}", function
    spec, prefix = _locate(dataset_dir, chosen)
    single = bool(prefix) and not prefix.endswith("/")
    place = out or (f"{dataset_dir}-out" if single else f"{dataset_dir.rstrip('/')}/out")
    out_spec, out_prefix = _locate(place, chosen)
    store, out_store = open_store(spec), open_store(out_spec)
    found = patiently(
        lambda: find_input(
            store,
            prefix,
            choose=chosen.choose_groups,
            max_samples=chosen.max_samples,
            token_dtype=chosen.token_dtype,
        )
    )
    if out_spec.uri.startswith("file://"):
        Path(out_spec.uri.removeprefix("file://")).mkdir(parents=True, exist_ok=True)
    job = _job(f"{spec.uri}/{prefix}", name, f"{out_spec.uri}/{out_prefix}", found, chosen)
    make = functools.partial(
        ShardManager,
        worker_id=worker_id,
        lease_seconds=chosen.lease_seconds,
        state_dir=chosen.state_dir,
    )
    manager = _claims(
        make,
        (dataset_dir, store, prefix),
        (place, out_store, out_prefix),
        job,
        found,
        default_out=out is None,
    )
    worker = ProcessWorker(
        manager,
        (found, (out_store, out_prefix)),
        Work(
            function=called,
            function_name=name,
            batch_size=chosen.batch_size,
            output_format=chosen.output_format,
            on_bad=chosen.on_bad,
            bad_budget=chosen.bad_budget,
            token_dtype=chosen.token_dtype,
        ),
        (report, chosen.progress),
        chosen.stop or Stop(),
        chosen.max_attempts,
    )
    return worker.run(chosen.preferred_shard_id, min(POLL_SECONDS, chosen.lease_seconds / 3))


def _check(options: ProcessOptions) -> None:
    for name in ("batch_size", "max_attempts"):
        if getattr(options, name) < 1:
            raise UsageError(f"{name}={getattr(options, name)}: at least 1")
    if options.output_format not in shard_formats():
        raise UsageError(
            f"output format {options.output_format}", hint=f"Known: {', '.join(shard_formats())}."
        )
    if options.on_bad not in ("fail", "skip"):
        raise UsageError(f"on_bad={options.on_bad}", hint="Accepted: fail, skip.")


def _job(
    dataset: str, function: str, out: str, found: WorkInput, options: ProcessOptions
) -> ProcessJob:
    chunks = [
        (chunk.key, chunk.num_samples, chunk.num_bytes)
        for shard in found.manifest.shards
        for chunk in shard.chunks
    ]
    return ProcessJob(
        dataset=dataset,
        function=function,
        out=out,
        output_format=options.output_format,
        on_bad=options.on_bad,
        max_samples=options.max_samples,
        token_dtype=options.token_dtype,
        chunks=hashlib.sha256(repr(chunks).encode()).hexdigest()[:16],
        shards=tuple((shard.shard_id, shard.num_samples) for shard in found.manifest.shards),
    )


def _claims(
    make: Callable[..., ShardManager],
    dataset: tuple[str, ObjectStore, str],
    out: tuple[str, ObjectStore, str],
    job: ProcessJob,
    found: WorkInput,
    *,
    default_out: bool,
) -> ShardManager:
    """Return who keeps this job's claims: in the dataset, else (a second job) with its results."""
    if found.sharded:
        manager = make(dataset[0], store=dataset[1])
        manager.use_manifest(found.manifest)
        manager.probe()
        if settle_job(manager, dataset[1], dataset[2], job):
            return manager
        if default_out:
            raise other_job_error(dataset[1], dataset[2], job.function)
    manager = make(out[0], store=out[1])
    manager.use_manifest(found.manifest)
    manager.probe()
    if not settle_job(manager, out[1], out[2], job):
        raise other_job_error(out[1], out[2], job.function)
    return manager


def _locate(place: str, options: ProcessOptions) -> tuple[StoreSpec, str]:
    path = Path(place.removeprefix("file://")).expanduser()
    if ("://" not in place or place.startswith("file://")) and path.is_file():
        return StoreSpec(uri=f"file://{path.resolve().parent}"), path.name
    return locate_dataset(place, endpoint_url=options.endpoint_url, profile=options.profile)


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
    parser.add_argument("--output_format", default="jsonl", help="jsonl, parquet, …")
    parser.add_argument("--on_bad", default="fail", help="fail, or skip samples that fail")
    parser.add_argument("--bad_budget", type=int, default=1000, help="skipped samples a shard")
    parser.add_argument(
        "--max_attempts", type=int, default=3, help="workers that may die in a row on one shard"
    )
    parser.add_argument("--max_samples", type=int, help="only the first so many")
    parser.add_argument(
        "--token_dtype", choices=WIDTHS, help=".bin files without an index that says it"
    )
    parser.add_argument("--device", help="for a class that takes device=")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--json", action="store_true", help="the summary as JSON")
    return parser.parse_args(arguments)


def _options(options: argparse.Namespace) -> ProcessOptions:
    return ProcessOptions(
        batch_size=options.batch_size,
        preferred_shard_id=options.preferred_shard_id,
        lease_seconds=options.lease,
        endpoint_url=options.endpoint_url,
        profile=options.profile,
        output_format=options.output_format,
        on_bad=options.on_bad,
        bad_budget=options.bad_budget,
        max_attempts=options.max_attempts,
        max_samples=options.max_samples,
        device=options.device,
        token_dtype=options.token_dtype,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Work until nothing is left; the summary goes to stdout."""
    guard_process(sys.argv[1:] if arguments is None else arguments)
    options = _parse(arguments)
    line = StatusLine(sys.stderr)
    say = line.say if options.verbose else _silent
    stop = Stop()
    try:
        with stop.on_signals(line.say), line:
            summary = process_shards(
                options.dataset_dir,
                options.function,
                out=options.output_dir,
                worker_id=worker_name(options.worker_id, options.host_id, options.machine_id),
                options=msgspec.structs.replace(_options(options), progress=line.paint, stop=stop),
                report=say,
            )
    except KeyboardInterrupt:
        sys.stderr.write(INTERRUPTED)
        return RunStoppedError.exit_code
    except QuarkError as error:
        sys.stderr.write(error_lines(error))
        return error.exit_code
    shown = msgspec.json.encode(summary).decode() if options.json else summary_line(summary)
    sys.stdout.write(shown + "\n")
    return 1 if summary.failed else 0


def summary_line(summary: ProcessSummary) -> str:
    """Return a worker's summary in one line."""
    failed = f", {len(summary.failed)} failed" if summary.failed else ""
    bad = f", {summary.num_bad} samples left out" if summary.num_bad else ""
    return f"{summary.num_samples:,} samples in {len(summary.shards)} shards{bad}{failed}"


def _silent(_line: str) -> None:
    return None


if __name__ == "__main__":
    sys.exit(main())
