"""Makes a sharded dataset from JSONL, Parquet, text, tar or a Hugging Face dataset.

    python tools_utilities/scripts/create_sharded_dataset.py --input_file tasks.jsonl \
        --output_dir sharded --num_shards 8 --chunk_size_mb 100 --verbose

Input and output may be local or in any store. It can be killed at any moment and run again: the
result is the same bytes. Exit codes: design of the program (0 ok, 2 usage, 3 data, 4 permission …,
130 interrupted, 143 terminated).
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tools_utilities.dataset_creation import (
    LAYOUTS,
    OutputOptions,
    create_sharded_dataset,
    merge_dataset,
)
from tools_utilities.dataset_metadata import BYTES_PER_MB
from tools_utilities.errors import QuarkError, RunStoppedError, error_lines
from tools_utilities.redaction import guard_process
from tools_utilities.sample_source import SourceOptions
from tools_utilities.shard_format import ReadOptions
from tools_utilities.sharded_dataset import WORKERS, Dealt
from tools_utilities.sharding_plan import ShardingPlan
from tools_utilities.sharding_request import chunk_bytes_of
from tools_utilities.stop_signals import stopping_cleanly
from tools_utilities.terminal_text import human_seconds
from tools_utilities.token_width import NARROW, WIDTHS

__all__ = ["ProgressReporter", "create_sharded_dataset", "main", "stopping_cleanly"]

_REPORT_SECONDS = 0.5


class ProgressReporter:
    """Samples, rate and time left, at most twice a second."""

    def __init__(self, write: Callable[[str], object], clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._begun = self._last = clock()
        self._first: Dealt | None = None

    def __call__(self, dealt: Dealt) -> None:
        """Tell how far it is, unless that was just done."""
        self._first = self._first or dealt
        now = self._clock()
        if now - self._last < _REPORT_SECONDS:
            return
        self._last = now
        seconds = max(now - self._begun, 1e-9)
        done = dealt.samples - self._first.samples
        rate = f", {done / seconds:,.0f}/s" if done else ""  # of one report nothing is known
        self._write(f"{dealt.samples:,} samples{rate}{self._time_left(dealt, seconds)}\n")

    def _time_left(self, dealt: Dealt, seconds: float) -> str:
        first = self._first.done_bytes if self._first else None
        if dealt.done_bytes is None or not dealt.total_bytes or first is None:
            return ""
        done = dealt.done_bytes - first  # a resumed run did the rest earlier
        if done <= 0:
            return ""
        left = (dealt.total_bytes - dealt.done_bytes) * seconds / done
        return f", {100 * dealt.done_bytes / dealt.total_bytes:.0f} %, {human_seconds(left)} left"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make a sharded dataset.")
    add = parser.add_argument
    add("--input_file", nargs="+", help="files, folders, store URIs, hf://NAME")
    add("--output_dir", required=True, help="folder or store URI; a data file's name: one file")
    add("--num_shards", type=int, default=8)
    chunk = "of records as they are written, before compression; fractions allowed"
    add("--chunk_size_mb", type=float, default=100, help=chunk)
    add("--format", default="jsonl", help="jsonl, parquet, webdataset, litdata, mds, tokens, txt")
    add("--compression", choices=("gzip", "zstd", "none"))
    add("--token_dtype", choices=WIDTHS, default=NARROW, help="--format tokens: of its numbers")
    add("--layout", default="folders", choices=LAYOUTS[:2])
    add("--samples_per_shard", type=int, help="flat: this many in each file")
    add("--name", default="train", help="flat: what file names begin with")
    add("--val_fraction", type=float, help="hold out so much, decided by the samples' content")
    add("--val_key", help="decide by this field, so that samples that share it stay together")
    add("--shuffle", action="store_true", help="an exact shuffle, in bounded memory")
    add("--seed", type=int, default=42, help="of the shuffle")
    add("--workers", type=int, default=WORKERS, help="chunks written at a time")
    add("--max_samples", type=int)
    add("--split", help="hf://: which split; default train")
    add("--config", help="hf://: which configuration")
    add(
        "--input_token_dtype", choices=WIDTHS, help="input .bin files without an index that says it"
    )
    add("--endpoint_url", help="S3 endpoint of the input (R2, MinIO, SeaweedFS)")
    add("--profile", help="AWS profile of the input")
    add("--output_endpoint_url", help="S3 endpoint of the output; default: the environment's")
    add("--output_profile", help="AWS profile of the output")
    add("--append", action="store_true", help="add to the finished dataset in --output_dir")
    add("--merge", action="store_true", help="then, or alone: take what was added into the index")
    add("--verbose", action="store_true", help="progress, rate and time left on stderr")
    options = parser.parse_args(arguments)
    if not options.input_file and (options.append or not options.merge):
        parser.error("the following arguments are required: --input_file")
    if options.input_file and options.merge and not options.append:
        parser.error("--merge goes with --append, or alone")
    return options


def _plan_of(options: argparse.Namespace) -> ShardingPlan:
    return ShardingPlan(
        num_shards=options.num_shards,
        chunk_bytes=chunk_bytes_of(options.chunk_size_mb, BYTES_PER_MB),
        format=options.format,
        compression=None if options.compression == "none" else options.compression,
        max_samples=options.max_samples,
        layout=options.layout,
        name=options.name,
        samples_per_shard=options.samples_per_shard,
        val_fraction=options.val_fraction,
        val_key=options.val_key,
        shuffle=options.shuffle,
        seed=options.seed,
        token_dtype=options.token_dtype,
    )


def _ignore(dealt: Dealt) -> None:
    del dealt


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the dataset the arguments ask for; the summary is one line on stdout."""
    guard_process(sys.argv[1:] if arguments is None else arguments)
    options = _parse(arguments)
    source = SourceOptions(
        endpoint_url=options.endpoint_url,
        profile=options.profile,
        split=options.split,
        config=options.config,
        read=ReadOptions(token_dtype=options.input_token_dtype),
    )
    output = OutputOptions(
        endpoint_url=options.output_endpoint_url,
        profile=options.output_profile,
        workers=options.workers,
    )
    try:
        plan = _plan_of(options)
        with stopping_cleanly():
            master: dict[str, Any] = {}
            if options.input_file:
                master = create_sharded_dataset(
                    options.input_file,
                    options.output_dir,
                    plan,
                    options=source,
                    output=output,
                    report=ProgressReporter(sys.stderr.write, time.monotonic)
                    if options.verbose
                    else _ignore,
                    append=options.append,
                )
            if options.merge:
                master = merge_dataset(options.output_dir, output)
    except QuarkError as error:
        sys.stderr.write(error_lines(error))
        return error.exit_code
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\nhint: Run the same command again: it goes on.\n")
        return RunStoppedError.exit_code
    sys.stdout.write(
        f"{master['total_tasks']} samples in {master['num_shards']} shards: {options.output_dir}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
