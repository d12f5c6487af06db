"""StreamLoader: a DataLoader over a StreamDataset whose state is exact with any number of workers.

Workers send whole batches, each with the stream's standing once it has been delivered, so that the
state advances when a batch is handed out and not when it is fetched. An error raised in a worker
arrives as it was raised. Workers start by forkserver and live on between epochs.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import get_context
from typing import Any, NamedTuple

from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info

from brain.ml.dataset_shards.samples_in_step import SampleRef, find_samples
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_iteration import Standing
from brain.ml.dataset_shards.stream_statistics import merge_statistics
from tools_utilities.errors import QuarkError, UsageError

Collate = Callable[[list[Any]], Any]


_STATS_SECONDS = 0.5


class _Message(NamedTuple):
    """One batch on its way from where it was read to where it is delivered."""

    batch: Any
    standing: Standing | None
    """Where the stream stands once it is delivered; None where one process does both."""
    stats: tuple[int, dict[str, Any]] | None
    """A worker's number and statistics, now and then."""
    error: QuarkError | None = None

    def pin_memory(self) -> "_Message":
        """Pin the batch; torch calls this where `pin_memory=True`."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return self._replace(batch=pin_memory(self.batch))  # type: ignore[no-untyped-call] # torch's


class _BatchStream(IterableDataset[_Message]):
    """The stream as workers iterate it: batches, collated."""

    def __init__(
        self, stream: StreamDataset, batch_size: int, collate: Collate, *, drop_last: bool
    ) -> None:
        super().__init__()
        self.stream = stream
        self._batch_size = batch_size
        self._collate = collate
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[_Message]:
        try:
            iteration = self.stream.begin(self._batch_size)
            worker, sent = get_worker_info(), 0.0
            for batch in iteration.batches(drop_last=self._drop_last):
                if worker is None:
                    yield _Message(self._collate(batch), None, None)
                    continue
                stats = None
                if iteration.at_end or time.monotonic() - sent > _STATS_SECONDS:
                    stats, sent = (worker.id, self.stream.get_stats()), time.monotonic()
                yield _Message(self._collate(batch), iteration.standing(), stats)
        except QuarkError as error:
            if get_worker_info() is None:
                raise
            yield _Message(None, None, None, error)


class StreamLoader(DataLoader[Any]):
    """A DataLoader with `state_dict` and `load_state_dict` (torch's Stateful)."""

    def __init__(  # noqa: PLR0913 - DataLoader's own options by their own names
        self,
        dataset: StreamDataset,
        batch_size: int,
        *,
        num_workers: int = 0,
        collate_fn: Collate | None = None,
        drop_last: bool = False,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = True,
        multiprocessing_context: Any = "forkserver",
        timeout: float = 0,
    ) -> None:
        """Make a loader; starts nothing yet.

        Args:
            dataset: The stream.
            batch_size: Samples of one batch of this rank.
            num_workers: Processes that read; 0: this one, with threads that read ahead.
            collate_fn: Makes a batch of a list of samples; None: torch's default. Where it has a
                method `finish(batch)`, that is called as the batch is delivered, in this process.
            drop_last: Leave out a last batch that is shorter.
            pin_memory: As in DataLoader.
            prefetch_factor: Batches ahead a worker.
            persistent_workers: Keep workers between epochs.
            multiprocessing_context: How workers start; `fork` is unsafe once threads run.
            timeout: Seconds to wait for a worker; 0: for ever.

        Raises:
            UsageError: a batch size below 1.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size}: a batch has at least one sample")
        self.stream = dataset
        self._per_rank = batch_size
        self._drop_last = drop_last
        self._worker_stats: dict[int, dict[str, Any]] = {}
        self._past_stats: dict[str, Any] = {}
        """Of workers that have ended."""
        workers: dict[str, Any] = {}
        if num_workers:
            if multiprocessing_context == "forkserver":
                # The server imports torch once; every worker is then a fork of it.
                get_context("forkserver").set_forkserver_preload([__name__])
            workers = {
                "prefetch_factor": prefetch_factor,
                "persistent_workers": persistent_workers,
                "multiprocessing_context": multiprocessing_context,
                "timeout": timeout,
            }
        collate = collate_fn or default_collate
        self._finish: Callable[[Any], Any] = getattr(collate, "finish", _unchanged)
        super().__init__(
            _BatchStream(dataset, batch_size, collate, drop_last=drop_last),
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_unchanged,
            pin_memory=pin_memory,
            **workers,
        )

    def __iter__(self) -> Any:
        """Return an iterator over the batches of the next epoch, or of the rest of a loaded one."""
        if self.num_workers:
            # The epoch is fixed here, and told to the workers, which may have been started long ago.
            if not self.persistent_workers:
                self._keep_stats()
            self.stream.prepare()
            self.stream.bookmark.start_at(self.stream.bookmark.next_start())
            return self._deliver(super().__iter__())
        # torch's own iterator costs more than a batch of text takes to read.
        return self._deliver(super().__iter__() if self.pin_memory else iter(self.dataset))

    def _deliver(self, messages: Iterator[_Message]) -> Iterator[Any]:
        for message in messages:
            if message.error is not None:
                self._stop_workers()
                raise message.error
            if message.stats is not None:
                worker, stats = message.stats
                self._worker_stats[worker] = stats
            if message.standing is not None:
                self.stream.bookmark.stand_at(message.standing)
            yield self._finish(message.batch)
        if self.num_workers:
            self.stream.bookmark.stand_at_end()

    def __len__(self) -> int:
        """Return this rank's batches of an epoch.

        Raises:
            TypeError: the counts are not known (yet).
        """
        samples = len(self.stream)
        return samples // self._per_rank if self._drop_last else -(-samples // self._per_rank)

    def state_dict(self) -> dict[str, Any]:
        """Return where the stream stands: after the last batch that was delivered."""
        return self.stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next iteration go on where `state` was saved.

        Raises:
            UsageError: not a state of this version.
            ChangedError: other data, another seed or other order settings.
        """
        self.stream.load_state_dict(state)
        self._stop_workers()

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`."""
        self.stream.set_epoch(epoch)

    def samples_in_step(self, step: int, *, epoch: int = 0) -> list[SampleRef]:
        """Return which samples step `step` (from 0) of an epoch holds, over all ranks, in order."""
        return find_samples(self.stream, step, epoch, self._per_rank)

    def get_stats(self) -> dict[str, Any]:
        """Return the stream's statistics, those of worker processes added."""
        parts = [self.stream.get_stats(), self._past_stats, *self._worker_stats.values()]
        return merge_statistics(parts)

    def _keep_stats(self) -> None:
        self._past_stats = merge_statistics([self._past_stats, *self._worker_stats.values()])
        self._worker_stats.clear()

    def _stop_workers(self) -> None:
        # Workers hold a copy of where to start: new ones get the new place.
        self._iterator = None
        self._keep_stats()


def _unchanged(message: Any) -> Any:
    return message
