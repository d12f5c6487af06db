"""Makes a sharded dataset from JSONL, Parquet, text, tar or a Hugging Face dataset.

    python tools_utilities/scripts/create_sharded_dataset.py --input_file tasks.jsonl \
        --output_dir sharded --num_shards 8 --chunk_size_mb 100 --verbose

Input and output may be local or in any store. It can be killed at any moment and run again: the
result is the same bytes. Exit codes: design of the program (0 ok, 2 usage, 3 data, 4 permission …).
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from tools_utilities.dataset_creation import LAYOUTS, create_sharded_dataset
from tools_utilities.dataset_metadata import (
    BYTES_PER_MB,
)
from tools_utilities.errors import QuarkError
from tools_utilities.sample_source import SourceOptions
from tools_utilities.sharded_dataset import ShardingPlan

__all__ = ["create_sharded_dataset", "main"]


class _Reporter:
    """Samples and rate on stderr, at most twice a second."""

    def __init__(self, stream: Any, clock: Callable[[], float]) -> None:
        self._stream = stream
        self._clock = clock
        self._begun = clock()
        self._last = 0.0

    def __call__(self, samples: int) -> None:
        now = self._clock()
        if now - self._last >= 0.5:  # noqa: PLR2004 - twice a second
            self._last = now
            rate = samples / max(now - self._begun, 1e-9)
            self._stream.write(f"{samples:,} samples, {rate:,.0f}/s\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make a sharded dataset.")
    parser.add_argument(
        "--input_file",
        required=True,
        nargs="+",
        help="file, folder, store URI or hf://NAME; several",
    )
    parser.add_argument("--output_dir", required=True, help="folder or store URI")
    parser.add_argument("--num_shards", type=int, default=8)
    parser.add_argument("--chunk_size_mb", type=float, default=100, help="fractions allowed")
    parser.add_argument("--format", default="jsonl", help="jsonl, parquet, webdataset, mds …")
    parser.add_argument("--layout", default="folders", choices=LAYOUTS)
    parser.add_argument("--samples_per_shard", type=int, help="flat: this many in each file")
    parser.add_argument("--name", default="train", help="flat: what file names begin with")
    parser.add_argument("--split", help="hf://: which split; default train")
    parser.add_argument("--config", help="hf://: which configuration")
    parser.add_argument("--endpoint_url", help="S3 endpoint of the input (R2, MinIO, SeaweedFS)")
    parser.add_argument("--profile", help="AWS profile of the input")
    parser.add_argument("--compression", choices=("gzip", "zstd"))
    parser.add_argument("--max_samples", type=int)
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the dataset the arguments ask for; the summary is one line on stdout."""
    options = _parse(arguments)
    plan = ShardingPlan(
        num_shards=options.num_shards,
        chunk_bytes=round(options.chunk_size_mb * BYTES_PER_MB),
        format=options.format,
        compression=options.compression,
        max_samples=options.max_samples,
        layout=options.layout,
        name=options.name,
        samples_per_shard=options.samples_per_shard,
    )
    source = SourceOptions(
        endpoint_url=options.endpoint_url,
        profile=options.profile,
        split=options.split,
        config=options.config,
    )
    report = _Reporter(sys.stderr, time.monotonic) if options.verbose else lambda _samples: None
    try:
        master = create_sharded_dataset(
            options.input_file, options.output_dir, plan, options=source, report=report
        )
    except QuarkError as error:
        sys.stderr.write(f"error: {error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    sys.stdout.write(
        f"{master['total_tasks']} samples in {master['num_shards']} shards: {options.output_dir}\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
