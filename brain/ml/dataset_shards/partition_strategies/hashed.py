"""`hash`: a shard's partition is a hash of its key alone, so that added data moves no other."""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from brain.ml.dataset_shards.partition_strategy import (
    PartitionStrategy,
    Shard,
    World,
    by_key,
    check_options,
)
from tools_utilities.errors import UsageError

NUM_PARTITIONS = 16
HASH_SEED = 42


class Hashed:
    """Options: `num_partitions` (16) and `hash_seed` (42)."""

    name = "hash"
    by_position = False
    whole_files = False

    def num_partitions(self, world: World) -> int:
        """Return the option of that name."""
        check_options(world, self.name, ("num_partitions", "hash_seed"))
        count = world.options.get("num_partitions", NUM_PARTITIONS)
        if not _is_int(count) or count < 1:
            raise _bad("num_partitions", count, "a number from 1 on")
        if not _is_int(world.options.get("hash_seed", HASH_SEED)):
            raise _bad("hash_seed", world.options["hash_seed"], "a whole number")
        return int(count)

    def assign(self, shards: Sequence[Shard], world: World) -> list[list[int]]:
        """Return the shards of each rank's partitions; partition p belongs to rank p mod world size."""
        count, seed = self.num_partitions(world), world.options.get("hash_seed", HASH_SEED)
        assigned: list[list[int]] = [[] for _ in range(world.world_size)]
        for index in by_key(shards):
            partition = _hash(shards[index].key, seed) % count
            assigned[partition % world.world_size].append(index)
        return assigned


def _hash(key: str, seed: int) -> int:
    """Return a number that is the same in every process, unlike Python's own hash."""
    data = f"{seed}\0{key}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad(name: str, value: object, accepted: str) -> UsageError:
    return UsageError(
        f"{name}={value}: not {accepted}", hint=f"{name} takes {accepted}.", key=name, value=value
    )


STRATEGY: PartitionStrategy = Hashed()
