"""One data source of a job as a stream: manager, stream, loader, and the size of its epoch.

What a sample is, a subclass says: token sequences (`token_source.py`) or records (`record_source.py`).
"""

from typing import Any

from brain.ml.dataset_shards.split_source import SplitView, StoreSource
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from brain.ml.training_job import DataSource, TrainingJob
from tools_utilities.errors import ObjectNotFoundError, RecordError
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.shard_format import ReadOptions
from tools_utilities.shard_formats.tokens import likely_dtype

SIZED_SPLITS = 4
"""Splits opened to estimate the samples of an epoch."""


class StreamedSource:
    """A shard group as samples."""

    about: str
    """How a record becomes samples, in words."""
    view: SplitView | None
    collate: Any
    """Makes a batch of a list of samples; crosses to worker processes."""

    def __init__(self, job: TrainingJob, data: DataSource) -> None:
        self.data = data
        self._job = job
        self.manager = StreamingManager.for_store(
            data.store,
            cache_dir=job.cache_dir,
            cache_bytes=job.cache_bytes,
            cache_policy=job.cache_policy,
            concurrency=job.fetch_concurrency,
            counts_dir=job.counts_dir,
        )
        self.options = ReadOptions(
            allow_nan=job.allow_nan,
            strict=job.strict,
            seq_len=job.seq_len,
            token_dtype=job.token_dtype,
            likely_token_dtype=likely_dtype(job.vocab_size),
        )

    def open_stream(self, *, training: bool) -> None:
        """Make the stream, once `view` and `options` are settled."""
        job, data = self._job, self.data
        prefetch: int | str = "auto" if job.prefetch is None else job.prefetch
        self.stream = StreamDataset(
            self.manager,
            data.prefix,
            stem=data.stem,
            format_name=data.format,
            shuffle=job.shuffle and training,
            seed=job.seed if training else job.seed + 1,
            prefetch=prefetch,
            partition=job.partition if training else "round_robin",
            partition_options=job.partition_options if training else None,
            # Evaluation must see every sample once; ranks whose counts differ by one are no trouble.
            equalize=job.equalize if training else "none",
            max_drop=job.max_drop,
            on_bad=job.on_bad,
            bad_budget=job.bad_budget,
            on_missing=job.on_missing,
            allow_changed=job.allow_changed,
            shuffle_bytes=job.shuffle_bytes,
            tensor_parallel=job.tensor_parallel,
            options=self.options,
            view=self.view,
        )

    def loader(self, batch_size: int) -> StreamLoader:
        """Return the loader of batches of `batch_size` samples a rank."""
        return StreamLoader(
            self.stream, batch_size, num_workers=self._job.workers, collate_fn=self.collate
        )

    def _may_skip(self, error: RecordError | ObjectNotFoundError) -> bool:
        """Tell whether the run goes on without what cannot be read."""
        missing = isinstance(error, ObjectNotFoundError)
        return (self._job.on_missing if missing else self._job.on_bad) == "skip"

    def estimate_samples(self) -> int:
        """Return about how many samples an epoch has; a pure function of the data.

        A few splits spread over the data are opened, the others counted by their bytes. Counts that
        were learned by earlier runs are left alone: the schedule must not depend on them.
        """
        table = self.stream.index.table
        step = max(1, len(table) // SIZED_SPLITS)
        numbers = range(0, len(table), step)[:SIZED_SPLITS]
        source = StoreSource(self.manager, options=self.options, deserialize=None, view=self.view)
        samples = bytes_opened = 0
        for first in numbers:
            for number in range(first, min(first + step, len(table))):
                try:
                    opened = source.open_split(table, number)
                except (RecordError, ObjectNotFoundError) as error:
                    if not self._may_skip(error):
                        raise
                    continue  # its neighbour stands in for it
                samples += opened.num_samples
                bytes_opened += table.split(number).num_bytes
                opened.close()
                break
        if not bytes_opened:
            return samples
        return max(samples, round(int(table.num_bytes.sum()) * samples / bytes_opened))
