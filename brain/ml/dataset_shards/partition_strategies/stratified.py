"""`stratified`: every partition gets about the same share of each class of a label field."""

from collections.abc import Sequence

from brain.ml.dataset_shards.partition_strategy import (
    PartitionStrategy,
    Shard,
    World,
    by_key,
    check_options,
)
from tools_utilities.errors import UsageError


class Stratified:
    """Option: `key` (or `partition_key`), the field that holds the class; classes are found."""

    name = "stratified"
    by_position = False
    whole_files = False

    def num_partitions(self, world: World) -> int:
        """Return the world size.

        Raises:
            UsageError: no key, or an unknown option.
        """
        label_key(world)
        return world.world_size

    def assign(self, shards: Sequence[Shard], world: World) -> list[list[int]]:
        """Return each partition's shards: each goes where its classes are furthest behind.

        The shards with most samples come first; O(shards * ranks * classes of a shard).
        """
        label_key(world)
        order = by_key(shards)
        place = {index: at for at, index in enumerate(order)}
        largest = sorted(order, key=lambda index: -sum(_classes(shards[index]).values()))
        held: list[dict[str, int]] = [{} for _ in range(world.world_size)]
        total = [0] * world.world_size
        assigned: list[list[int]] = [[] for _ in range(world.world_size)]
        for index in largest:
            classes = _classes(shards[index])

            def cost(rank: int, classes: dict[str, int] = classes) -> tuple[int, int, int, int]:
                # What the sum of squares over all classes would grow by.
                own = held[rank]
                grows = sum(n * (n + 2 * own.get(name, 0)) for name, n in classes.items())
                return grows, total[rank], len(assigned[rank]), rank

            rank = min(range(world.world_size), key=cost)
            assigned[rank].append(index)
            for name, number in classes.items():
                held[rank][name] = held[rank].get(name, 0) + number
                total[rank] += number
        return [sorted(part, key=place.__getitem__) for part in assigned]


def label_key(world: World) -> str:
    """Return the field that holds the class.

    Raises:
        UsageError: none is given, or an unknown option.
    """
    check_options(world, "stratified", ("key", "partition_key"))
    key = world.options.get("key", world.options.get("partition_key"))
    if not isinstance(key, str) or not key:
        raise UsageError(
            "partition=stratified needs key: the field that holds the class",
            hint="Give partition_options={'key': 'label'}, or partition_key=label.",
            key="partition_key",
            value=key,
        )
    return key


def _classes(shard: Shard) -> dict[str, int]:
    """Return the shard's samples by class; all of one where labels are not known."""
    if shard.labels:
        return dict(shard.labels)
    return {"": shard.size_bytes if shard.num_samples is None else shard.num_samples}


STRATEGY: PartitionStrategy = Stratified()
