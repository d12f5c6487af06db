"""`files`: whole files by turns; a rank reads its own files alone, in another order each epoch."""

from collections.abc import Sequence

from brain.ml.dataset_shards.partition_strategy import (
    PartitionStrategy,
    Shard,
    World,
    by_key,
    check_options,
)
from tools_utilities.errors import UsageError


class Files:
    """File i of the sorted keys belongs to rank i mod world size."""

    name = "files"
    by_position = False
    whole_files = True

    def num_partitions(self, world: World) -> int:
        """Return the world size."""
        check_options(world, self.name)
        return world.world_size

    def assign(self, shards: Sequence[Shard], world: World) -> list[list[int]]:
        """Return each rank's files.

        Raises:
            UsageError: fewer files than ranks.
        """
        check_options(world, self.name)
        if len(shards) < world.world_size:
            raise UsageError(
                f"insufficient files: {len(shards)} files for {world.world_size} workers "
                "(partition=files gives each at least one)",
                hint="Use partition=round_robin, which splits finer, or fewer workers.",
                num_files=len(shards),
                num_workers=world.world_size,
            )
        order = by_key(shards)
        return [order[rank :: world.world_size] for rank in range(world.world_size)]


STRATEGY: PartitionStrategy = Files()
