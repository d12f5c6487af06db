"""`adaptive`: a faster worker takes more. For batch jobs: ranks of a training run make equal steps."""

from collections.abc import Mapping, Sequence
from typing import Any

from brain.ml.dataset_shards.partition_strategy import (
    ADAPTIVE,
    PartitionStrategy,
    Shard,
    World,
    by_key,
    partition_strategies,
)
from tools_utilities.errors import UsageError

BASE = "round_robin"
REBALANCE_THRESHOLD = 0.2


class Adaptive:
    """Options: `base` (round_robin), `rebalance_threshold` (0.2), and the base strategy's own.

    Without measured rates the base strategy deals the shards. With `World.rates` each rank gets as
    much as it can work in the same time; a rank without a rate gets nothing.
    """

    name = ADAPTIVE
    by_position = False
    whole_files = True

    def num_partitions(self, world: World) -> int:
        """Return what the base strategy makes of the world."""
        base, own = base_of(world)
        return base.num_partitions(own)

    def assign(self, shards: Sequence[Shard], world: World) -> list[list[int]]:
        """Return each rank's shards; the largest are dealt first, ties by key."""
        base, own = base_of(world)
        if not any(rate > 0 for rate in world.rates.values()):
            return base.assign(shards, own)
        order = by_key(shards)
        place = {index: at for at, index in enumerate(order)}
        ranks = [rank for rank in range(world.world_size) if world.rates.get(rank, 0.0) > 0]
        seconds = dict.fromkeys(ranks, 0.0)
        assigned: list[list[int]] = [[] for _ in range(world.world_size)]
        for index in sorted(order, key=lambda index: -work_of(shards[index])):
            work = work_of(shards[index])

            def finish(rank: int, work: float = work) -> tuple[float, int]:
                return seconds[rank] + work / world.rates[rank], rank

            rank = min(ranks, key=finish)
            seconds[rank] = finish(rank)[0]
            assigned[rank].append(index)
        return [sorted(part, key=place.__getitem__) for part in assigned]


def work_of(shard: Shard) -> float:
    """Return how much work a shard is: its samples where known, else its bytes, else one."""
    if shard.num_samples is not None:
        return float(shard.num_samples)
    return float(shard.size_bytes or 1)


def slow_below(options: Mapping[str, Any]) -> float:
    """Return the option of that name.

    Raises:
        UsageError: not a share between 0 and 1.
    """
    value = options.get("rebalance_threshold", REBALANCE_THRESHOLD)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise UsageError(
            f"rebalance_threshold={value}: not a share between 0 and 1",
            hint="0.2 calls a worker slow that is below 0.8 of the median.",
            key="rebalance_threshold",
            value=value,
        )
    return float(value)


def base_of(world: World) -> tuple[PartitionStrategy, World]:
    """Return the base strategy, and the world as it sees it.

    Raises:
        UsageError: there is no such strategy, or an option that does not fit.
    """
    options = dict(world.options)
    slow_below(options)
    options.pop("rebalance_threshold", None)
    name = options.pop("base", BASE)
    known = [other for other in sorted(partition_strategies()) if other != ADAPTIVE]
    if name not in known:
        raise UsageError(
            f"base={name}: not a strategy that adaptive can start from",
            hint=f"Known: {', '.join(known)}.",
            key="base",
            value=name,
        )
    found = partition_strategies()[name]
    own = World(world_size=world.world_size, options=options)
    found.num_partitions(own)
    return found, own


STRATEGY: PartitionStrategy = Adaptive()
