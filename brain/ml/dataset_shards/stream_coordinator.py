"""StreamCoordinator: which worker of a batch job is well, and who works which shard from here on.

For jobs whose workers report to one process (threads, or processes with a queue); workers that share
nothing but a store use claims instead (`ShardManager`), which give the same by leases. Ranks of a
training run make equal steps, so a stream does not use it.

Every shard has one owner at any moment. A worker's first shard is the one it works on and stays with
it while it lives; a failed worker loses all of its shards. What it had begun is begun again by
whoever takes it over, from its last checkpoint if it left one.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from threading import Lock
from typing import Any

import msgspec

from brain.ml.dataset_shards.partition_strategies.adaptive import (
    base_of,
    slow_below,
    work_of,
)
from brain.ml.dataset_shards.partition_strategy import Shard, World
from brain.ml.dataset_shards.shard_moves import Load, median_rate, moves_between, spread
from tools_utilities.errors import ClaimError, UsageError
from tools_utilities.worker_health import LOST_INTERVALS, WorkerHealth, averaged, health_word

HEARTBEAT_SECONDS = 10.0


class ShardMove(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that has a new owner."""

    key: str
    source: int
    target: int


class _Worker(msgspec.Struct, kw_only=True):
    shards: list[Shard]
    since: float
    heartbeat: float | None = None
    samples: int = 0
    throughput: float = 0.0


class StreamCoordinator:
    """Health and shards of the workers of one job, in one process; any thread may call it."""

    def __init__(
        self,
        *,
        base: str = "round_robin",
        rebalance_threshold: float = 0.2,
        heartbeat_seconds: float = HEARTBEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        **base_options: Any,
    ) -> None:
        """Make a coordinator without workers.

        Args:
            base: The strategy that deals the shards at first (see `assign`).
            rebalance_threshold: How far below the median a worker is slow.
            heartbeat_seconds: How often workers report; three intervals of silence are a failure.
            clock: Seconds that only grow.
            base_options: The base strategy's own options.

        Raises:
            UsageError: an option that does not fit.
        """
        if heartbeat_seconds <= 0:
            raise UsageError(f"heartbeat_seconds={heartbeat_seconds}: not more than 0")
        self._options = {
            "base": base, "rebalance_threshold": rebalance_threshold, **base_options,
        }  # fmt: skip
        base_of(World(world_size=1, options=self._options))
        self._threshold = slow_below(self._options)
        self._heartbeat_seconds = heartbeat_seconds
        self._lost_seconds = LOST_INTERVALS * heartbeat_seconds
        self._clock = clock
        self._workers: dict[int, _Worker] = {}
        self._checkpoints: dict[int, Any] = {}
        self._last_saved: int | None = None
        self._lock = Lock()

    # Workers and their shards.

    def assign(self, shards: Sequence[Shard | str], world_size: int) -> None:
        """Register ranks 0 to `world_size` - 1 with what the base strategy gives each.

        Raises:
            UsageError: the strategy cannot deal these shards, or some have an owner already.
        """
        made = [_shard(one) for one in shards]
        base, world = base_of(World(world_size=world_size, options=self._options))
        for rank, part in enumerate(base.assign(made, world)):
            self.register_worker(rank, [made[index] for index in part])

    def register_worker(self, rank: int, shards: Sequence[Shard | str]) -> None:
        """Take in a worker with its shards; of a rank that is known, a new worker in its place.

        Raises:
            UsageError: a shard is another worker's, or named twice.
        """
        own = [_shard(one) for one in shards]
        keys = [shard.key for shard in own]
        with self._lock:
            for other, worker in self._workers.items():
                taken = {shard.key for shard in worker.shards} & set(keys)
                if other != rank and taken:
                    raise UsageError(f"shard {min(taken)}: rank {other} has it, not rank {rank}")
            if len(set(keys)) < len(keys):
                raise UsageError(f"rank {rank}: a shard is named twice")
            self._workers[rank] = _Worker(shards=own, since=self._clock())

    def shards_of(self, rank: int) -> tuple[str, ...]:
        """Return the keys of a worker's shards that are not done, in the order of its work."""
        with self._lock:
            return tuple(shard.key for shard in self._worker(rank).shards)

    def complete_shard(self, rank: int, key: str) -> None:
        """Take note that a worker has finished one of its shards.

        Raises:
            ClaimError: the shard is not its own (any more): what it made of it must not count.
        """
        with self._lock:
            worker = self._worker(rank)
            kept = [shard for shard in worker.shards if shard.key != key]
            if len(kept) == len(worker.shards):
                raise ClaimError(
                    f"{key} is not a shard of rank {rank}",
                    hint="Another worker took it over; drop its result and go on with shards_of().",
                    key=key,
                    rank=rank,
                )
            worker.shards = kept

    # Health.

    def update_worker_health(self, rank: int, samples: int, throughput: float) -> None:
        """Take a worker's heartbeat.

        Args:
            rank: The worker.
            samples: Samples it has processed in all.
            throughput: Samples a second since its last report.

        Raises:
            UsageError: nobody registered that rank, or a number that cannot be.
        """
        with self._lock:
            worker = self._worker(rank)
            if samples < worker.samples or not 0 <= throughput < float("inf"):
                raise UsageError(
                    f"rank {rank}: {samples} samples ({worker.samples} before) at {throughput}/s",
                    hint="Samples count from the worker's start; a new worker registers again.",
                )
            worker.heartbeat, worker.samples = self._clock(), samples
            worker.throughput = averaged(worker.throughput, throughput)

    def get_worker_health(self, rank: int) -> WorkerHealth:
        """Return what is known of a worker now.

        Raises:
            UsageError: nobody registered that rank.
        """
        with self._lock:
            worker = self._worker(rank)
            return WorkerHealth(
                rank=rank,
                status=self._status(worker),
                last_heartbeat=worker.heartbeat,
                samples_processed=worker.samples,
                average_throughput=worker.throughput,
            )

    # Checkpoints.

    def register_checkpoint(self, rank: int, state: Mapping[str, Any]) -> None:
        """Keep where a worker stands (a stream's `state_dict()`, or its own), for who goes on there.

        Raises:
            UsageError: nobody registered that rank.
        """
        with self._lock:
            self._worker(rank)
            self._checkpoints[rank] = deepcopy(dict(state))
            self._last_saved = rank

    def get_checkpoint(self, rank: int | None = None) -> dict[str, Any] | None:
        """Return a rank's last checkpoint (None: the newest of all), or None; it outlives its worker."""
        with self._lock:
            which = self._last_saved if rank is None else rank
            found = None if which is None else self._checkpoints.get(which)
            return None if found is None else deepcopy(found)

    # Rebalancing.

    def rebalance_if_needed(self) -> tuple[ShardMove, ...]:
        """Move shards from failed, slow or overloaded workers to those that will be through first.

        Nothing moves while all workers are active, or when it would not end the job sooner. Nothing
        moves while there is nobody to move to: a later call does it.
        """
        with self._lock:
            states = {rank: self._status(worker) for rank, worker in self._workers.items()}
            usual = median_rate(worker.throughput for worker in self._workers.values())
            loads = {
                rank: Load(
                    rate=worker.throughput or usual,
                    work=[(shard.key, work_of(shard)) for shard in worker.shards],
                )
                for rank, worker in self._workers.items()
                if states[rank] in {"active", "idle", "slow"}
            }
            moves: list[tuple[str, int, int]] = []
            for rank in sorted(rank for rank, status in states.items() if status == "failed"):
                own = [(shard.key, work_of(shard)) for shard in self._workers[rank].shards]
                moves += [(key, rank, target) for key, target in spread(own, loads)]
            if not set(states.values()) <= {"active", "unknown"}:
                moves += moves_between(loads, self._threshold)
            return self._carry_out(moves)

    def _carry_out(self, moves: Sequence[tuple[str, int, int]]) -> tuple[ShardMove, ...]:
        for key, source, target in moves:
            shards = self._workers[source].shards
            at = next(at for at, shard in enumerate(shards) if shard.key == key)
            self._workers[target].shards.append(shards.pop(at))
        return tuple(ShardMove(key=key, source=source, target=to) for key, source, to in moves)

    def _worker(self, rank: int) -> _Worker:
        if rank not in self._workers:
            known = ", ".join(map(str, sorted(self._workers))) or "none"
            raise UsageError(f"rank {rank} is not registered", hint=f"Registered: {known}.")
        return self._workers[rank]

    def _status(self, worker: _Worker) -> str:
        heard = worker.since if worker.heartbeat is None else worker.heartbeat
        return health_word(
            silent_intervals=(self._clock() - heard) / self._heartbeat_seconds,
            heard=worker.heartbeat is not None,
            has_work=bool(worker.shards),
            samples=worker.samples,
            is_slow=worker.throughput < (1 - self._threshold) * self._median(),
        )

    def _median(self) -> float:
        """Return the median throughput of the workers that live and work."""
        now = self._clock()
        return median_rate(
            worker.throughput
            for worker in self._workers.values()
            if worker.heartbeat is not None
            and now - worker.heartbeat <= self._lost_seconds
            and worker.samples
        )


def _shard(one: Shard | str) -> Shard:
    return one if isinstance(one, Shard) else Shard(key=str(one))
