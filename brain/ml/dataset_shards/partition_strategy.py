"""The contract of a partition strategy: which shards are whose.

`round_robin` deals positions of the global order and needs no assignment to be exact; the others
assign splits (or whole objects) to a number of partitions that is fixed at the first launch.
`partition_strategies/` holds one strategy a file, each ending in `STRATEGY`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import msgspec

from tools_utilities.errors import UsageError
from tools_utilities.plugins import load_plugins
from tools_utilities.refused_settings import refuse_by_name


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy may know of one shard."""

    key: str
    """Relative to the dataset's folder, so that an assignment holds on any store."""
    size_bytes: int = 0
    num_samples: int | None = None
    labels: Mapping[str, int] = {}
    """Samples of each class, for `stratified`."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Whom shards are assigned to."""

    world_size: int
    options: Mapping[str, Any] = {}
    """The strategy's own settings."""
    rates: Mapping[int, float] = {}
    """Measured samples a second of ranks, for `adaptive`."""


class PartitionStrategy(Protocol):
    """One strategy; pure: the same on every machine, in every process, whatever the listing's order."""

    name: str
    by_position: bool
    """Whether the stream deals positions by turns, which keeps every promise of the order."""
    whole_files: bool
    """Whether a shard is a whole object; else it is a split of one."""

    def num_partitions(self, world: World) -> int:
        """Return how many partitions there are from a first launch in this world on.

        Raises:
            UsageError: an option that the strategy does not have or that does not fit.
        """
        ...

    def assign(self, shards: Sequence[Shard], world: World) -> list[list[int]]:
        """Return, for each rank, the indices of its shards in reading order.

        Every shard goes to exactly one rank. O(shards); needs no communication.

        Raises:
            UsageError: an option that does not fit, or shards that cannot be dealt this way.
        """
        ...


ADAPTIVE = "adaptive"
"""For batch jobs, never for streams."""


@cache
def partition_strategies() -> dict[str, PartitionStrategy]:
    """Return every known strategy by name."""
    return load_plugins("brain.ml.dataset_shards.partition_strategies", "STRATEGY")


def find_strategy(name: str) -> PartitionStrategy:
    """Return a strategy for streams by name.

    Raises:
        UsageError: nobody knows it, or it is not for streams.
    """
    if name == ADAPTIVE:
        raise UsageError(
            "partition=adaptive: faster workers take more, so ranks cannot make equal steps",
            hint="A stream takes round_robin; adaptive is for batch jobs: "
            'quark "process …", or a StreamCoordinator.',
            key="partition",
            value=name,
        )
    found = partition_strategies().get(name)
    if found is None:
        known = ", ".join(sorted(other for other in partition_strategies() if other != ADAPTIVE))
        raise UsageError(
            f"partition={name}: unknown strategy",
            hint=f"Known: {known}.",
            key="partition",
            value=name,
        )
    return found


def by_key(shards: Sequence[Shard]) -> list[int]:
    """Return the shards' indices in byte order of their keys: what every strategy starts from."""
    return sorted(
        range(len(shards)), key=lambda index: shards[index].key.encode("utf-8", "replace")
    )


def check_options(world: World, strategy: str, known: Sequence[str] = ()) -> None:
    """Refuse options that a strategy does not have.

    Raises:
        UsageError: naming the first unknown one.
    """
    for name in world.options:
        refuse_by_name(name)
        if name not in known:
            accepted = ", ".join(known) or "none"
            raise UsageError(
                f"{name}: not an option of partition={strategy}",
                hint=f"Its options: {accepted}.",
                key=name,
            )
