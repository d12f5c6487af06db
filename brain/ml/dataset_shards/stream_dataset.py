"""StreamDataset: shards of an object store as a torch IterableDataset, exact and resumable.

The order is a pure function of (data, seed, epoch): the same for any number of loader workers, any
world size, any prefetch, cold or warm, stopped and resumed any number of times. See `share.py` for
who gets what, `shuffle_order.py` for how it is shuffled, `stream_loader.py` for a DataLoader whose
state is exact with worker processes too.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from pathlib import Path
from typing import Any, Self

import msgspec
from torch.utils.data import IterableDataset, get_worker_info

from brain.ml.dataset_shards.counting import agree, count_together
from brain.ml.dataset_shards.data_changes import keep_listing, refuse_change
from brain.ml.dataset_shards.epoch_clock import EpochClock, Turn
from brain.ml.dataset_shards.epoch_plan import EpochPlan, EpochStart, Tolerance
from brain.ml.dataset_shards.lane_walk import LaneHint
from brain.ml.dataset_shards.place import Place, can_exchange, find_place
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.split_source import (
    Deserialize,
    SequenceSource,
    ShardReader,
    SplitSource,
    SplitView,
    StoreSource,
)
from brain.ml.dataset_shards.stream_config import StreamConfig
from brain.ml.dataset_shards.stream_index import (
    IndexRequest,
    StreamIndex,
    index_sequence,
    index_store,
)
from brain.ml.dataset_shards.stream_iteration import Iteration, Standing, StreamTotals
from brain.ml.dataset_shards.stream_state import (
    StreamState,
    check_order,
    check_seed,
    parse_state,
)
from brain.ml.dataset_shards.validation import Validation, validate_stream
from tools_utilities.errors import DataNotFoundError, QuarkError, UsageError
from tools_utilities.shard_format import ReadOptions

logger = logging.getLogger(__name__)


class StreamDataset(IterableDataset[Any]):
    """Samples of every shard below a prefix, each exactly once an epoch.

    The n-th `iter()` is epoch n, unless `set_epoch` or `load_state_dict` said otherwise; leaving an
    epoch early and iterating again starts the next one. In a DataLoader with workers give both the
    same `batch_size`, else the order depends on the number of workers.
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
        on_bad: str = "fail",
        bad_budget: int = 1000,
        on_missing: str = "fail",
        allow_changed: bool = False,
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
            on_bad: `fail` or `skip` where a record cannot be read …
            bad_budget: … at most so many times an epoch.
            on_missing: `fail` or `skip` where an object is gone since it was listed.
            allow_changed: Load states that were saved on other data.
            options: How records are read.
            rank: This process's rank; None: torch.distributed's, or the launcher's.
            world_size: How many ranks there are.
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
            on_bad=on_bad,
            bad_budget=bad_budget,
            on_missing=on_missing,
            allow_changed=allow_changed,
        )
        self._request = IndexRequest(
            prefix=prefix,
            stem=stem,
            format_name=format_name,
            options=options,
            shuffle=shuffle,
            view_identity=None if view is None else view.identity,
            skip_missing=on_missing == "skip",
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
        self.config = config
        self._manager = None
        self._source = SequenceSource(samples)
        self._index = index_sequence(len(samples), shuffle=config.shuffle)

    def _set_up(self, rank: int | None, world_size: int | None) -> None:
        self._place = None if rank is None and world_size is None else find_place(rank, world_size)
        self._agreed = False
        self._clock = EpochClock()
        self._pending: tuple[int, EpochStart] | None = None
        self._standing: tuple[int, Standing] | None = None
        self._iteration: Iteration | None = None
        self._num_iterations = 0
        self._totals = StreamTotals()

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

    def begin(self, batch_size: int | None) -> Iteration:
        """Start the next epoch (or go on from a loaded state) in this process.

        Raises:
            DataNotFoundError: there is no data at the prefix.
        """
        index = self.prepare()
        worker = get_worker_info()
        self._num_iterations += 1
        if worker is None:
            tag = int.from_bytes(os.urandom(7), "little")
        else:
            # Equal in all workers of one iteration: the loader's own seed, and which pass it is.
            base = worker.seed - worker.id
            tag = (base * 1_000_003 + self._num_iterations) % (1 << 62) + 1
        turn = self._clock.begin(
            None if worker is None else worker.id, tag, int(index.change_fingerprint[:15], 16)
        )
        self._check_readers(turn)
        if worker is not None and batch_size is None and worker.num_workers > 1 and worker.id == 0:
            logger.warning(
                "StreamDataset has no batch_size: with %d loader workers the order depends on their "
                "number; give it the DataLoader's batch_size",
                worker.num_workers,
            )
        share = self._share(
            batch_size or 1,
            worker=0 if worker is None else worker.id,
            num_workers=1 if worker is None else worker.num_workers,
        )
        plan = self._plan(index, share, self._start_of(turn))
        self._iteration = Iteration(index, plan, self._clock, turn, self._totals)
        self._standing = None
        return self._iteration

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
            count_together(self._index, self._source, place)
        self._agreed = True
        return self._own_index()

    def _own_index(self) -> StreamIndex:
        index = self.index
        if not index.table.objects:
            raise DataNotFoundError(
                f"{self._store_name()}: no data at prefix {self._request.prefix!r}",
                hint="Check the prefix; a folder ends in `/`.",
                prefix=self._request.prefix,
            )
        return index

    @property
    def index(self) -> StreamIndex:
        """What is known of the data; made by listing it, once."""
        if self._index is None:
            manager = self._manager_or_fail()
            self._index = index_store(
                manager.store, manager.read_range, self._request, self._counts_folder()
            )
        return self._index

    @property
    def place(self) -> Place:
        """This process's rank and the world size."""
        return self._place or find_place(None, None)

    def _share(self, batch_size: int, *, worker: int = 0, num_workers: int = 1) -> Share:
        place = self.place
        return Share(
            rank=place.rank,
            world_size=place.world_size,
            worker=worker,
            num_workers=num_workers,
            batch_size=batch_size,
            equalize=self.config.equalize,
        )

    def _plan(self, index: StreamIndex, share: Share, start: EpochStart) -> EpochPlan:
        config = self.config
        return EpochPlan(
            table=index.table,
            source=self._source,
            shape=index.shape,
            shuffle=config.shuffle,
            seed=config.seed,
            start=start,
            share=share,
            tolerance=Tolerance(
                on_bad=config.on_bad, bad_budget=config.bad_budget, on_missing=config.on_missing
            ),
            prefetch=config.prefetch,
        )

    def _start_of(self, turn: Turn) -> EpochStart:
        """Return where an iteration begins: as loaded, if it is the first since then."""
        if self._pending is not None:
            serial, start = self._pending
            if serial == turn.serial and start.epoch == turn.epoch:
                return start
        return EpochStart(epoch=turn.epoch, position=turn.position)

    def _check_readers(self, turn: Turn) -> None:
        if len(self._clock.orders(turn)) > 1:
            raise UsageError(
                "loader workers have listed different data",
                hint="Something is still writing to the prefix; start again when it is done.",
            )

    # Epochs and state.

    def set_epoch(self, epoch: int) -> None:
        """Make the next `iter()` epoch `epoch`, the one after it `epoch` + 1, and so on."""
        if epoch < 0:
            raise UsageError(f"epoch {epoch}: an epoch is 0 or more")
        self.start_at(EpochStart(epoch=epoch))

    def reset(self) -> None:
        """Go back to the beginning of epoch 0."""
        self.set_epoch(0)

    def start_at(self, start: EpochStart) -> None:
        """Make the next `iter()` begin there, in loader workers too."""
        self._pending = (self._clock.request(start.epoch, start.position), start)
        self._standing = None
        self._iteration = None

    def next_start(self) -> EpochStart:
        """Return where the next `iter()` will begin."""
        epoch, position = self._clock.requested()
        taken = self._clock.taken()
        if taken is not None:
            return EpochStart(epoch=taken + 1)
        if self._pending is not None and self._pending[0] == self._clock.serial:
            return self._pending[1]
        return EpochStart(epoch=epoch, position=position)

    def stand_at(self, standing: Standing) -> None:
        """Note where the stream stands, for a loader that delivers for it."""
        self._standing = (self._clock.serial, standing)

    def stand_at_end(self) -> None:
        """Note that the epoch has been delivered whole."""
        taken = self._clock.taken()
        if taken is not None:
            self.stand_at(Standing(taken + 1, 0))

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
        worker = get_worker_info()
        if worker is not None and self._iteration is not None:
            return self._worker_state(self._iteration, worker.id, worker.num_workers)
        return self.make_state(self._find_standing(batches_delivered))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Make the next `iter()` go on where `state` was saved; any world size or worker count.

        Raises:
            UsageError: not a state of this version.
            ChangedError: other data, another seed or other order settings.
        """
        self.start_at(self.read_state(state))

    def read_state(self, state: Mapping[str, Any]) -> EpochStart:
        """Return where a state says the stream stood, after checking that it fits this stream.

        Raises:
            UsageError: not a state of this version.
            ChangedError: other data, another seed or other order settings.
        """
        saved, index = parse_state(state), self.index
        check_seed(saved, self.config.seed)
        same = saved.order_fingerprint == index.order_fingerprint
        if not self.config.allow_changed:
            refuse_change(saved, index)
            check_order(saved, index.settings, index.order_fingerprint)
        lanes, worker = saved.order.get("lanes"), saved.order.get("worker", {})
        return EpochStart(
            epoch=saved.epoch,
            position=saved.position,
            hint=msgspec.convert(lanes, LaneHint) if lanes and same else None,
            slot=int(worker.get("slot", 0)),
        )

    def make_state(self, standing: Standing) -> dict[str, Any]:
        """Return the state dict of a standing."""
        index = self.index
        keep_listing(index)
        order: dict[str, Any] = {
            "settings": index.settings,
            "objects": len(index.table.objects),
            "bytes": index.table.total_bytes,
        }
        if standing.hint is not None:
            order["lanes"] = msgspec.to_builtins(standing.hint)
        state = StreamState(
            seed=self.config.seed,
            epoch=standing.epoch,
            position=standing.position,
            order_fingerprint=index.order_fingerprint,
            change_fingerprint=index.change_fingerprint,
            order=order,
        )
        found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(state))
        return found

    def _worker_state(self, iteration: Iteration, worker: int, num_workers: int) -> dict[str, Any]:
        """Return a loader worker's own state: what StatefulDataLoader keeps one of for each."""
        start = iteration.start
        state = self.make_state(Standing(start.epoch, start.position, start.hint))
        state["order"]["worker"] = {
            "worker": worker,
            "num_workers": num_workers,
            "slot": iteration.slot,
        }
        return state

    def _find_standing(self, batches_delivered: int | None) -> Standing:
        serial = self._clock.serial
        if batches_delivered is None and self._standing is not None and self._standing[0] == serial:
            return self._standing[1]
        iteration = self._iteration
        if iteration is not None and iteration.turn.serial == serial and batches_delivered is None:
            return iteration.standing()
        taken = self._clock.taken()
        if taken is None:
            start = self.next_start()
            return Standing(start.epoch, start.position, start.hint)
        epoch, position = self._clock.requested()
        start = EpochStart(epoch=epoch, position=position)
        if self._pending is not None and self._pending[0] == serial:
            start = self._pending[1]
        return self._standing_after(batches_delivered, taken, start)

    def _standing_after(self, batches: int | None, epoch: int, start: EpochStart) -> Standing:
        if batches is None:
            raise UsageError(
                "state_dict(): loader workers run ahead of what has been delivered, so a plain "
                "DataLoader must say how many batches it has delivered",
                hint="Call state_dict(batches_delivered=n), or use StreamLoader.",
            )
        if self.config.batch_size is None:
            raise UsageError(
                "state_dict(batches_delivered=…) needs the stream's batch_size",
                hint="Make the StreamDataset with the DataLoader's batch_size.",
            )
        began = start if epoch == start.epoch else EpochStart(epoch=epoch)
        turns = batches * self.config.batch_size
        position = began.position + turns * self.place.world_size
        total = self.index.total
        if total is not None:
            rest = self._share(self.config.batch_size).rank_samples(max(0, total - began.position))
            if turns >= rest and turns:
                return Standing(epoch + 1, 0)
        return Standing(epoch, position, began.hint)

    # What there is.

    def __len__(self) -> int:
        """Return this rank's samples of an epoch.

        Raises:
            TypeError: the counts are not known (yet).
        """
        total = self._own_index().total
        if total is None:
            raise TypeError("the stream's length is not known before it has been read once")
        return self._share(1).rank_samples(total)

    @property
    def is_empty(self) -> bool:
        """Whether there is no data object at the prefix, or no sample as far as is known."""
        index = self.index
        return not index.table.objects or index.total == 0

    def prefetch(self, count: int) -> None:
        """Have the first `count` objects of the next epoch fetched; does not wait for them."""
        from brain.ml.dataset_shards.epoch_reader import first_objects

        index = self._own_index()
        plan = self._plan(index, self._share(1), EpochStart(epoch=self.next_start().epoch))
        self._source.read_ahead(first_objects(plan, count))

    def validate(self) -> Validation:
        """Read and decode every record once, in file order, and report what is wrong."""
        return validate_stream(self._own_index(), self._source)

    def get_stats(self) -> dict[str, Any]:
        """Return the manager's statistics and the stream's, by name."""
        from brain.ml.dataset_shards.stream_statistics import stream_statistics

        manager = {} if self._manager is None else self._manager.get_stats()
        return stream_statistics(manager, self._totals, self._iteration)

    # Crossing to other processes.

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None and self._manager is not None:
            self._own_index()  # so that all workers read the same listing
        return {
            **self.__dict__,
            "_place": self.place,
            "_iteration": None,
            "_standing": None,
            "_num_iterations": 0,
            "_totals": StreamTotals(),
        }

    def _manager_or_fail(self) -> Any:
        if self._manager is None:
            raise UsageError("a stream of samples in memory has no store")
        return self._manager

    def _store_name(self) -> str:
        return str(getattr(getattr(self._manager, "store", None), "endpoint_id", "memory"))

    def _counts_folder(self) -> Path | None:
        folder = getattr(self._manager, "cache_dir", None)
        return None if folder is None else Path(folder) / "counts"
