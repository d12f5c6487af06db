"""`round_robin`: ranks take turns. The stream deals positions of the global order this way."""

from collections.abc import Sequence

from brain.ml.dataset_shards.partition_strategy import (
    PartitionStrategy,
    Shard,
    World,
    by_key,
    check_options,
)


class RoundRobin:
    """Shard i of the sorted keys belongs to rank i mod world size."""

    name = "round_robin"
    by_position = True
    whole_files = False

    def num_partitions(self, world: World) -> int:
        """Return the world size."""
        check_options(world, self.name)
        return world.world_size

    def assign(self, shards: Sequence[Shard], world: World) -> list[list[int]]:
        """Return each rank's shards."""
        check_options(world, self.name)
        order = by_key(shards)
        return [order[rank :: world.world_size] for rank in range(world.world_size)]


STRATEGY: PartitionStrategy = RoundRobin()
