"""StreamLoader: a DataLoader over a StreamDataset whose state is exact with any number of workers.

Workers send whole batches, each with the stream's standing once it has been delivered, so that the
state advances when a batch is handed out and not when it is fetched. An error raised in a worker
arrives as it was raised. Workers start by forkserver and live on between epochs; they are Quark's own
(`worker_pool.py`), and share this process's listing, its read-ahead and its cache.
"""

from collections.abc import Callable, Iterator, Mapping
from multiprocessing import forkserver, get_context
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, default_collate

from brain.ml.dataset_shards.brought_objects import BroughtObjects
from brain.ml.dataset_shards.samples_in_step import SampleRef, find_samples
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_index import StreamIndex
from brain.ml.dataset_shards.stream_iteration import Standing
from brain.ml.dataset_shards.stream_statistics import merge_statistics, merge_workers
from brain.ml.dataset_shards.turn import Turn
from brain.ml.dataset_shards.worker_messages import WorkerTask, learn_counts
from brain.ml.dataset_shards.worker_pool import PRELOAD, WorkerPool
from brain.ml.dataset_shards.worker_shards import endpoint_of
from tools_utilities.errors import UsageError

Collate = Callable[[list[Any]], Any]


class _BatchStream(IterableDataset[Any]):
    """The stream as one process iterates it: batches, collated."""

    def __init__(
        self, stream: StreamDataset, batch_size: int, collate: Collate, *, drop_last: bool
    ) -> None:
        super().__init__()
        self.stream = stream
        self._batch_size = batch_size
        self._collate: Any = collate
        self._drop_last = drop_last

    def __iter__(self) -> Iterator[Any]:
        shared = getattr(self._collate, "takes_blocks", False)
        iteration = self.stream.begin(self._batch_size, shared_rows=shared)
        for samples in iteration.batches(drop_last=self._drop_last):
            try:
                batch = self._collate(samples)
            except BaseException:
                iteration.take_back()
                raise
            yield batch


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
                method `finish(batch)`, that is called as the batch is delivered, in this process,
                and one `pack(samples)` is called in its place in a worker.
            drop_last: Leave out a last batch that is shorter.
            pin_memory: As in DataLoader.
            prefetch_factor: At most so many batches ahead a worker; None: 8 MiB of them.
            persistent_workers: Keep workers between epochs.
            multiprocessing_context: How workers start; `fork` is unsafe once threads run.
            timeout: Seconds to wait for a batch of a worker; 0: for ever.

        Raises:
            UsageError: a batch size below 1.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size={batch_size}: a batch has at least one sample")
        self.stream = dataset
        self._per_rank = batch_size
        self._drop_last = drop_last
        self._batches_ahead = prefetch_factor
        self._pool: WorkerPool | None = None
        self._brought: BroughtObjects | None = None
        self._past_stats: dict[str, Any] = {}
        """Of workers that have ended."""
        self._past_wait = 0.0
        workers: dict[str, Any] = {}
        if num_workers:
            workers = {
                "prefetch_factor": prefetch_factor,
                "persistent_workers": persistent_workers,
                "multiprocessing_context": multiprocessing_context,
                "timeout": timeout,
            }
        self._collate: Any = collate_fn or default_collate
        self._finish: Callable[[Any], Any] = getattr(self._collate, "finish", _unchanged)
        super().__init__(
            _BatchStream(dataset, batch_size, self._collate, drop_last=drop_last),
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_unchanged,
            pin_memory=pin_memory,
            **workers,
        )

    def __iter__(self) -> Any:
        """Return an iterator over the batches of the next epoch, or of the rest of a loaded one.

        Raises:
            UsageError: collate_fn or deserialize cannot be sent to a worker process.
        """
        if self.num_workers:
            return self._start_pass()
        # torch's own iterator costs more than a batch of text takes to read.
        return self._deliver(super().__iter__() if self.pin_memory else iter(self.dataset))

    def _deliver(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            yield self._finish(batch)

    # Worker processes.

    def _start_pass(self) -> Iterator[Any]:
        context = self.multiprocessing_context
        if self._pool is None and context.get_start_method() == "forkserver":
            # It imports what all workers need, once, while this process lists the data.
            start_server(self._collate, self.stream)
        bookmark = self.stream.bookmark
        index, plan, turn = self.stream.next_plan(self._per_rank)
        start, pool = plan.start, self._pool
        if self._brought is None:
            self._brought = BroughtObjects(self.stream.manager, index.table.objects)
        self._brought.begin()
        if pool is None:
            endpoint_id = endpoint_of(self.stream.manager, plan)
            expects = endpoint_id is not None and not start.position
            # A forked worker would have what the threads that fetch are only half through importing.
            forks = context.get_start_method() == "fork"
            if expects and not forks:
                self._brought.expect(plan, index.counts)
            task = WorkerTask(
                index=index,
                plan=plan,
                collate=self._collate,
                drop_last=self._drop_last,
                endpoint_id=endpoint_id,
                batches_ahead=self._batches_ahead,
            )
            pool = self._pool = WorkerPool(
                task,
                self.num_workers,
                context,
                timeout=self.timeout,
                on_wanted=self._brought.wanted,
                on_opened=self._brought.opened,
            )
            if expects and forks:
                self._brought.expect(plan, index.counts)
        number = pool.begin(start, plan.share, index.counts, plan.partitioning, plan.seed)
        bookmark.stand_at(Standing(start.epoch, start.position, start.hint, start.partitions))
        return self._receive(pool, number, turn, index)

    def _receive(
        self, pool: WorkerPool, number: int, turn: Turn, index: StreamIndex
    ) -> Iterator[Any]:
        bookmark, epoch = self.stream.bookmark, turn.epoch
        try:
            for batch, standing in pool.batches(number):
                read = standing.epoch - (0 if standing.position else 1)
                if read != epoch:
                    # What was loaded had been used up: the workers read the next epoch.
                    bookmark.clock.shift(turn, read)
                    epoch = read
                finished = self._finish(batch)
                bookmark.stand_at(standing)
                yield self._pin(finished)
        except GeneratorExit:
            raise
        except BaseException:
            self._stop_workers()
            raise
        for said in pool.ended():
            if learn_counts(index.counts, said.counts):
                index.save_counts()
            if said.epoch != epoch:
                bookmark.clock.shift(turn, said.epoch)
                epoch = said.epoch
        bookmark.stand_at_end()
        if not self.persistent_workers:
            self._stop_workers()

    def _pin(self, batch: Any) -> Any:
        if not self.pin_memory:
            return batch
        import torch
        from torch.utils.data._utils.pin_memory import pin_memory

        if not torch.accelerator.is_available():
            return batch
        return pin_memory(batch)  # type: ignore[no-untyped-call] # torch's

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

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch `epoch`."""
        self.stream.set_epoch(epoch)

    def samples_in_step(self, step: int, *, epoch: int = 0) -> list[SampleRef]:
        """Return which samples step `step` (from 0) of an epoch holds, over all ranks, in order.

        Raises:
            UsageError: a step or an epoch below 0.
        """
        return find_samples(self.stream, step, epoch, self._per_rank, drop_last=self._drop_last)

    def get_stats(self) -> dict[str, Any]:
        """Return the stream's statistics, those of worker processes added.

        `wait_seconds["workers"]` is what this process has waited for batches of its workers.
        """
        own = self.stream.get_stats()
        waited = self._past_wait
        parts: list[Mapping[str, Any]] = [self._past_stats]
        if self._pool is not None:
            waited += self._pool.wait_seconds
            parts.append(merge_workers(list(self._pool.stats.values())))
        if self.num_workers:
            own["wait_seconds"] = {**own.get("wait_seconds", {}), "workers": waited}
        return merge_statistics([own, *parts])

    def close(self) -> None:
        """End the worker processes, if there are any; the next iteration starts new ones."""
        self._stop_workers()

    def _stop_workers(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.close()
        self._past_wait += pool.wait_seconds
        workers = merge_workers(list(pool.stats.values()))
        self._past_stats = merge_statistics([self._past_stats, workers])


def start_server(*used: object) -> None:
    """Start multiprocessing's fork server, importing what the workers' tasks are defined in.

    Does nothing where it runs already.
    """
    modules = dict.fromkeys([*PRELOAD, *(_module_of(item) for item in used)])
    get_context("forkserver").set_forkserver_preload([name for name in modules if name])
    forkserver.ensure_running()


def _module_of(value: object) -> str:
    """Return where a function or an object's class is defined, unless it is the stream itself."""
    if isinstance(value, StreamDataset):
        return ""
    module = getattr(value, "__module__", None) or type(value).__module__
    return "" if module in {"builtins", "__main__"} else module


def _unchanged(batch: Any) -> Any:
    return batch
