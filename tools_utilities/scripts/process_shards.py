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
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tools_utilities.batch_work import BatchFunction, FunctionError, Work, load_function
from tools_utilities.claim_record import ClaimRecord
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.errors import ClaimError, QuarkError, RunStoppedError, UsageError
from tools_utilities.manifest import Shard
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store
from tools_utilities.prepared_types import prepared
from tools_utilities.process_progress import ProcessProgress, ShardCount, StatusLine
from tools_utilities.scripts.process_input import GroupChooser, WorkInput, find_input
from tools_utilities.scripts.process_job import ProcessJob, other_job_error, settle_job
from tools_utilities.scripts.shard_actions import worker_name
from tools_utilities.scripts.shard_manager import ShardClaim, ShardManager
from tools_utilities.shard_format import shard_formats
from tools_utilities.shard_processing import Observer, ShardOutput, ShardProcessor
from tools_utilities.stop_signals import Stop

LEASE_SECONDS = 30.0
POLL_SECONDS = 5.0


@prepared
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
    num_bad: int = 0
    """Samples left out by `on_bad=skip`."""


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
    max_samples: int | None = None
    """Only the first so many samples, in shard order."""
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
    found = find_input(store, prefix, choose=chosen.choose_groups, max_samples=chosen.max_samples)
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
    worker = _Worker(
        manager,
        (found, (out_store, out_prefix)),
        Work(
            function=called,
            function_name=name,
            batch_size=chosen.batch_size,
            output_format=chosen.output_format,
            on_bad=chosen.on_bad,
            bad_budget=chosen.bad_budget,
        ),
        (report, chosen.progress),
        chosen.stop or Stop(),
    )
    return worker.run(chosen.preferred_shard_id, min(POLL_SECONDS, chosen.lease_seconds / 3))


def _check(options: ProcessOptions) -> None:
    if options.batch_size < 1:
        raise UsageError(f"batch_size={options.batch_size}: at least 1")
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
        chunks=hashlib.sha256(repr(chunks).encode()).hexdigest()[:16],
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


class _Worker:
    """The loop of one machine."""

    def __init__(
        self,
        manager: ShardManager,
        places: tuple[WorkInput, tuple[ObjectStore, str]],
        work: Work,
        hear: tuple[Callable[[str], None], Callable[[str], None]],
        stop: Stop,
    ) -> None:
        self._manager = manager
        self._input, self._out = places
        self._work = work
        self._report, self._paint = hear
        self._stop = stop
        self._progress = ProcessProgress(time.monotonic)
        self._outputs: dict[int, ShardOutput] = {}
        self._lost: list[int] = []
        self._failed: dict[int, str] = {}

    def run(self, preferred: int | None, poll_seconds: float) -> ProcessSummary:
        by_id: dict[int, Shard] = {s.shard_id: s for s in self._input.manifest.shards}
        while True:
            self._stop.check()
            # A shard that failed here is left to others: another machine may have what it lacks.
            left_out = {*self._failed, *self._outputs}
            claim = self._manager.claim_shard(preferred, skip=left_out)
            open_shards = self._manager.open_shards(left_out)
            total = sum(shard.num_samples > 0 for shard in by_id.values())
            still_open = len(open_shards) + len(self._failed)
            self._progress.shards(ShardCount(total - still_open, total))
            if claim is not None:
                self._work_shard(by_id[claim.shard_id], claim)
            elif not open_shards:
                return self._summary()
            else:
                self._progress.working(None)
                self._paint(self._progress.line())
                self._stop.wait(poll_seconds)

    def _summary(self) -> ProcessSummary:
        outputs = self._outputs.values()
        return ProcessSummary(
            shards=tuple(self._outputs),
            num_samples=sum(output.num_samples for output in outputs),
            num_chunks_worked=sum(output.num_worked for output in outputs),
            lost=tuple(self._lost),
            failed=self._failed,
            num_bad=sum(output.num_bad for output in outputs),
        )

    def _work_shard(self, shard: Shard, claim: ShardClaim) -> None:
        hold = self._manager.hold(claim)
        record = hold.record
        assert record is not None  # noqa: S101 - a held claim has a record

        def check() -> None:
            self._stop.check()
            hold.check()

        self._heard(claim, 0)
        processor = ShardProcessor(
            self._input.source,
            self._out,
            self._work,
            check=check,
            observer=Observer(
                on_batch=self._batch_done,
                on_chunk=lambda done: self._chunk_done(claim, hold.record, done),
            ),
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
        except (RunStoppedError, KeyboardInterrupt):
            self._manager.show(claim.shard_id, hold.record)
            self._report(f"shard {claim.shard_id}: given back, its finished chunks are kept")
            raise
        else:
            self._outputs[claim.shard_id] = output
            self._manager.show(claim.shard_id, hold.record)
            left_out = f", {output.num_bad} left out" if output.num_bad else ""
            self._report(f"shard {claim.shard_id}: {output.num_samples:,} samples{left_out}")

    def _batch_done(self, samples: int) -> None:
        self._progress.samples(samples)
        self._paint(self._progress.line())

    def _chunk_done(self, claim: ShardClaim, record: ClaimRecord | None, done: int) -> None:
        self._manager.tell_progress(claim, record, done)
        self._heard(claim, done)

    def _heard(self, claim: ShardClaim, done: int) -> None:
        self._progress.working(claim.shard_id, done, len(claim.chunks))
        self._paint(self._progress.line())


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
    parser.add_argument("--max_samples", type=int, help="only the first so many")
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
        max_samples=options.max_samples,
        device=options.device,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Work until nothing is left; the summary goes to stdout."""
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
        sys.stderr.write("interrupted; the same command goes on where this one ended\n")
        return RunStoppedError.exit_code
    except QuarkError as error:
        sys.stderr.write(f"error: {error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
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
