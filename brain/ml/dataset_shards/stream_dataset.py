"""StreamDataset: shards of an object store as a torch IterableDataset, exact and resumable.

The order is a pure function of (data, seed, epoch): the same for any number of loader workers, any
world size, any prefetch, cold or warm, stopped and resumed any number of times. See `share.py` for
who gets what, `shuffle_order.py` for how it is shuffled, `stream_loader.py` for a DataLoader whose
state is exact with worker processes too.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from typing import Any, Self, cast

from torch.utils.data import IterableDataset, get_worker_info

from brain.ml.dataset_shards.bookmark import Bookmark
from brain.ml.dataset_shards.count_file import counts_folder
from brain.ml.dataset_shards.counting import agree, count_together
from brain.ml.dataset_shards.epoch_plan import EpochPlan, EpochStart
from brain.ml.dataset_shards.place import Place, can_exchange, find_place, warn_of_workers
from brain.ml.dataset_shards.saved_state import make_state, make_worker_state, read_state
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.split_source import (
    Deserialize,
    SequenceSource,
    ShardReader,
    SplitSource,
    SplitView,
    StoreSource,
    no_data,
)
from brain.ml.dataset_shards.stream_config import StreamConfig, whole_number
from brain.ml.dataset_shards.stream_index import (
    IndexRequest,
    StreamIndex,
    index_sequence,
    index_store,
)
from brain.ml.dataset_shards.stream_iteration import Iteration, StreamTotals
from brain.ml.dataset_shards.stream_partitions import StreamPartitions, objects_first_needed
from brain.ml.dataset_shards.stream_plan import plan_epoch, share_of
from brain.ml.dataset_shards.turn import Turn
from brain.ml.dataset_shards.validation import Validation, validate_stream
from tools_utilities.errors import QuarkError, UsageError
from tools_utilities.shard_format import ReadOptions


class StreamDataset(IterableDataset[Any]):
    """Samples of every shard below a prefix, each exactly once an epoch.

    The n-th `iter()` is epoch n, unless `set_epoch` or `load_state_dict` said otherwise; leaving an epoch early
    and iterating again starts the next one. With DataLoader workers give both the same `batch_size`.
    """

    def __init__(  # noqa: PLR0913 - the documented signature: every setting of a stream by name
        self,
        manager: ShardReader,
        prefix: str,
        *,
        stem: str | None = None,
        format_name: str | None = None,
        deserialize: Deserialize | None = None,
        shuffle: bool = True,
        seed: int = 42,
        prefetch: int | str = "auto",
        batch_size: int | None = None,
        partition: str = "round_robin",
        partition_options: Mapping[str, Any] | None = None,
        equalize: str = "drop",
        max_drop: float = 0.01,
        on_bad: str = "fail",
        bad_budget: int | None = None,
        on_missing: str = "fail",
        allow_changed: bool = False,
        shuffle_bytes: int | None = None,
        tensor_parallel: int = 1,
        options: ReadOptions | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        view: SplitView | None = None,
    ) -> None:
        """Make a stream; nothing is listed or read yet.

        Args:
            manager: A StreamingManager.
            prefix: A folder when it ends in `/`, else a literal key prefix.
            stem: Only the shards of this series (a ShardGroup's stem).
            format_name: Only objects of this format.
            deserialize: Called with each record's bytes; None: decoded records (dicts).
            shuffle: False: file order.
            seed: Of the order.
            prefetch: Objects to read ahead; `auto`: self-tuning; 0: none.
            batch_size: Samples of a DataLoader batch of one rank.
            partition: Name of the partition strategy.
            partition_options: The strategy's own options.
            equalize: How all ranks come to the same number of samples: `drop`, `pad` or `none`.
            max_drop: Largest share of an epoch that a strategy may drop for equal numbers.
            on_bad: `fail` or `skip` where a record cannot be read …
            bad_budget: … at most so many times an epoch; None: 1,000.
            on_missing: `fail` or `skip` where an object is gone since it was listed.
            allow_changed: Load states that were saved on other data.
            shuffle_bytes: Of open splits to mix over; None: 72 MiB, 1 GiB of what cannot be cut.
            tensor_parallel: So many ranks side by side are one for the data, and get the same.
            options: How records are read.
            rank: This process's (its group's) number; None: torch.distributed's, or the launcher's.
            world_size: How many ranks (groups) there are.
            view: Another way to see each split's samples.

        Raises:
            UsageError: a setting has a value it does not take.
        """
        super().__init__()
        options = options or ReadOptions()
        self.config = StreamConfig(
            shuffle=shuffle,
            seed=seed,
            prefetch=prefetch,
            batch_size=batch_size,
            partition=partition,
            partition_options=dict(partition_options or {}),
            equalize=equalize,
            max_drop=max_drop,
            on_bad=on_bad,
            bad_budget=bad_budget,
            on_missing=on_missing,
            allow_changed=allow_changed,
            shuffle_bytes=shuffle_bytes,
            tensor_parallel=tensor_parallel,
        )
        self._request = IndexRequest(
            prefix=prefix,
            stem=stem,
            format_name=format_name,
            options=options,
            shuffle=shuffle,
            view_identity=None if view is None else view.identity,
            partition=self.config.order_partition,
            skip_missing=on_missing == "skip",
            skip_bad=on_bad == "skip",
            open_bytes=shuffle_bytes,
        )
        self._manager: ShardReader | None = manager
        self._index: StreamIndex | None = None
        self._source: SplitSource = StoreSource(
            manager, options=options, deserialize=deserialize, view=view
        )
        self._set_up(rank, world_size)

    @classmethod
    def from_samples(
        cls,
        samples: Sequence[Any],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        **settings: Any,
    ) -> Self:
        """Make a stream of data in memory, under the same order and strategies.

        `settings` are those of the constructor that do not concern a store.
        """
        stream = cls.__new__(cls)
        IterableDataset.__init__(stream)
        stream._hold(samples, StreamConfig(**settings))  # noqa: SLF001 - its own class
        stream._set_up(rank, world_size)  # noqa: SLF001 - its own class
        return stream

    def _hold(self, samples: Sequence[Any], config: StreamConfig) -> None:
        self.config, self._manager = config, None
        self._source = SequenceSource(samples)
        self._index = index_sequence(
            len(samples), shuffle=config.shuffle, partition=config.order_partition
        )

    def _set_up(self, rank: int | None, world_size: int | None) -> None:
        given = rank is not None or world_size is not None
        self._place = find_place(rank, world_size, self.config.tensor_parallel) if given else None
        self._agreed = False
        self.bookmark = Bookmark()  # where the stream stands; for loaders that deliver for it
        self._totals = StreamTotals()
        self._partitions = StreamPartitions(self.config)

    # Iterating.

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over this reader's share of the next epoch."""
        iteration = self.begin(self.config.batch_size)
        return self._deliver(iteration)

    def _deliver(self, iteration: Iteration) -> Iterator[Any]:
        try:
            yield from iteration.samples()
        except QuarkError as error:
            if get_worker_info() is not None:
                error.pack()
            raise

    def begin(self, batch_size: int | None, *, shared_rows: bool = False) -> Iteration:
        """Start the next epoch (or go on from a loaded state); with `shared_rows` by RowBlocks too.

        Raises:
            DataNotFoundError: there is no data at the prefix.
        """
        worker = get_worker_info()
        if batch_size is None:
            warn_of_workers()
        index, plan, turn = self.next_plan(
            batch_size or 1,
            worker=0 if worker is None else worker.id,
            num_workers=1 if worker is None else worker.num_workers,
        )
        plan = replace(plan, shared_rows=shared_rows)
        iteration = Iteration(index, plan, self.bookmark.clock, turn, self._totals)
        self.bookmark.iteration = iteration
        return iteration

    def next_plan(
        self, batch_size: int, *, worker: int = 0, num_workers: int = 1
    ) -> tuple[StreamIndex, EpochPlan, Turn]:
        """Take the next epoch (or the rest of a loaded one) and return what reads it.

        Raises:
            DataNotFoundError: there is no data at the prefix.
        """
        index = self.prepare()
        turn, start = self.bookmark.begin(int(index.change_fingerprint[:15], 16))
        share = self._share(batch_size, worker=worker, num_workers=num_workers)
        self._partitions.deal(start, share)
        return index, self._plan(index, share, start), turn

    def prepare(self) -> StreamIndex:
        """Return the index, listing the data if that has not been done; agree on it with other ranks.

        Raises:
            DataNotFoundError: there is no data at the prefix.
        """
        place = self.place
        if not self._agreed and can_exchange(place):
            try:
                outcome: StreamIndex | QuarkError = self._own_index()
            except QuarkError as error:
                outcome = error
            self._index = agree(outcome, place)
            count_together(self._index, self._source, place, self._manager)
        self._agreed = True
        index = self._own_index()
        self._partitions.prepare(index, self._source, place)
        return index

    def _own_index(self) -> StreamIndex:
        index = self.index
        if not index.table.objects:
            raise no_data(self._manager, self._request.prefix, self._request.format_name)
        return index

    def _dealt_index(self) -> StreamIndex:
        """Return the index, partitions made under a strategy that has them."""
        index = self._own_index()
        pin = self._partitions.pin(index, self.place.world_size)
        return index if pin is None else self.prepare()

    @property
    def index(self) -> StreamIndex:
        """What is known of the data; made by listing it, once."""
        if self._index is None:
            self._index = self._list(self._request)
        return self._index

    def _list(self, request: IndexRequest) -> StreamIndex:
        manager = cast("Any", self._manager)  # a stream without one has its index already
        counts = counts_folder(manager, request.folder)
        return index_store(manager.store, manager.read_range, request, counts)

    @property
    def place(self) -> Place:
        """This process's rank and the world size."""
        return self._place or find_place(None, None, self.config.tensor_parallel)

    def _share(self, batch_size: int, *, worker: int = 0, num_workers: int = 1) -> Share:
        return share_of(self.place, self.config, batch_size, worker=(worker, num_workers))

    def _plan(self, index: StreamIndex, share: Share, start: EpochStart) -> EpochPlan:
        made = self._partitions.made
        return plan_epoch(index, self._source, self.config, share, start, partitioning=made)

    @property
    def manager(self) -> ShardReader | None:
        """What reads the store; None: the samples are in memory."""
        return self._manager

    # Epochs and state.

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` epoch `epoch`, the one after it `epoch` + 1, and so on."""
        if epoch < 0:
            raise UsageError(f"epoch {epoch}: an epoch is 0 or more")
        self.bookmark.start_at(EpochStart(epoch=whole_number("epoch", epoch)))

    def reset(self) -> None:
        """Go back to the beginning of epoch 0."""
        self.set_epoch(0)

    def plan_for(self, share: Share, start: EpochStart) -> EpochPlan:
        """Return what any reader would need to read its share, from a given start."""
        return self._plan(self.prepare(), share, start)

    def state_dict(self, batches_delivered: int | None = None) -> dict[str, Any]:
        """Return where the stream stands, for all ranks and workers together.

        Args:
            batches_delivered: Batches this rank's plain DataLoader has delivered since its last
                `iter()`; needed there with worker processes, which run ahead of what was delivered.

        Raises:
            UsageError: it is needed and was not given.
        """
        self._totals.checkpoints += 1
        index, seed, iteration = self.index, self.config.seed, self.bookmark.iteration
        pin = self._partitions.pin(index, self.place.world_size)
        if get_worker_info() is not None and iteration is not None:
            return make_worker_state(index, seed, iteration, pin)
        if batches_delivered is None:
            return make_state(index, seed, self.bookmark.standing(), pin)
        if self.config.batch_size is None:
            raise UsageError(
                "state_dict(batches_delivered=…) needs the stream's batch_size",
                hint="Make the StreamDataset with the DataLoader's batch_size.",
            )
        share = self._share(self.config.batch_size)
        total, deal = self._dealt_index().total, self._partitions.deal
        standing = self.bookmark.standing_after(batches_delivered, share, total, deal)
        return make_state(index, seed, standing, pin)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next `iter()` go on where `state` was saved; any world size or worker count.

        Raises:
            UsageError: not a state of this version.
            ChangedError: other data, another seed or other order settings.
        """
        config = self.config
        start, pin = read_state(state, self.index, config.seed, allow_changed=config.allow_changed)
        self._partitions.adopt(pin)
        self.bookmark.start_at(start)

    # What there is.

    def __len__(self) -> int:
        """Return this rank's samples of an epoch.

        Raises:
            TypeError: the counts are not known (yet).
        """
        total, share = self._dealt_index().total, self._share(1)
        deal = self._partitions.deal(EpochStart(), share)
        if deal is not None:
            return deal.turns(share.rank)
        if total is None:
            raise TypeError("the stream's length is not known before it has been read once")
        return share.rank_samples(total)

    def rank_files(self) -> list[str]:
        """Return the keys of the objects that this rank reads from, in key order.

        Raises:
            UsageError: fewer files than ranks, with partition=files.
        """
        return self._partitions.keys(self.prepare(), self.place)

    @property
    def is_empty(self) -> bool:
        """Whether there is no data object at the prefix, or no sample as far as is known."""
        index = self.index
        return not index.table.objects or index.total == 0

    def prefetch(self, count: int) -> None:
        """Have the first `count` objects of the next epoch fetched; does not wait for them."""
        index = self._dealt_index()
        plan = self._plan(index, self._share(1), EpochStart(epoch=self.bookmark.next_start().epoch))
        self._source.read_ahead(objects_first_needed(plan, index.counts, count))

    def validate(self) -> Validation:
        """Read and decode every record once, in file order, and report what is wrong."""
        self._index = self._index or self._list(replace(self._request, skip_bad=True))
        return validate_stream(self._own_index(), self._source)

    def get_stats(self) -> dict[str, Any]:
        """Return the manager's statistics and the stream's, by name."""
        from brain.ml.dataset_shards.stream_statistics import stream_statistics

        manager = {} if self._manager is None else self._manager.get_stats()
        iteration, index = self.bookmark.iteration, self._index
        return stream_statistics(manager, self._totals, iteration, index, self._source)

    # Crossing to other processes.

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None and self._manager is not None:
            self._own_index()  # so that all workers read the same listing
        return {**self.__dict__, "_place": self.place, "_totals": StreamTotals()}
