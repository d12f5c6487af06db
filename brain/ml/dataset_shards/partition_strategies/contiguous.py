"""`contiguous`: neighbours stay together, each partition about as many bytes."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

from brain.ml.dataset_shards.partition_strategy import (
    PartitionStrategy,
    Shard,
    World,
    by_key,
    check_options,
)


class Contiguous:
    """The sorted keys are cut into runs; none is empty while there are shards enough."""

    name = "contiguous"
    by_position = False
    whole_files = False

    def num_partitions(self, world: World) -> int:
        """Return the world size."""
        check_options(world, self.name)
        return world.world_size

    def assign(self, shards: Sequence[Shard], world: World) -> list[list[int]]:
        """Return each partition's shards."""
        check_options(world, self.name)
        order = by_key(shards)
        cuts = _cuts([shards[index].size_bytes for index in order], world.world_size)
        return [order[start:end] for start, end in pairwise(cuts)]


def _cuts(sizes: Sequence[int], count: int) -> list[int]:
    """Return where runs begin and end: each cut is where the bytes before it come closest."""
    num_shards = len(sizes)
    if not sum(sizes):
        sizes = [1] * num_shards
    before, cuts = [0, *accumulate(sizes)], [0]
    for part in range(1, count):
        cut = cuts[-1]
        while cut < num_shards and (before[cut] + before[cut + 1]) * count <= 2 * part * before[-1]:
            cut += 1
        least = min(cuts[-1] + 1, num_shards)
        cuts.append(max(least, min(cut, num_shards - (count - part))))
    return [*cuts, num_shards]


STRATEGY: PartitionStrategy = Contiguous()
