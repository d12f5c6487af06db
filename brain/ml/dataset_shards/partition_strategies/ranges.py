"""`range`: each partition is a half-open range of the files, numbered in key order."""

from collections.abc import Sequence
from typing import Any

from brain.ml.dataset_shards.partition_strategy import (
    PartitionStrategy,
    Shard,
    World,
    by_key,
    check_options,
)
from tools_utilities.errors import UsageError


class Ranges:
    """Option: `ranges`, such as [(0, 250), (250, 1000)]; together they cover every file once."""

    name = "range"
    by_position = False
    whole_files = True

    def num_partitions(self, world: World) -> int:
        """Return the number of ranges."""
        check_options(world, self.name, ("ranges",))
        return len(_read(world.options.get("ranges")))

    def assign(self, shards: Sequence[Shard], world: World) -> list[list[int]]:
        """Return the shards of each rank's ranges; range i belongs to rank i mod world size.

        Raises:
            UsageError: a file is in no range or in two, or a range goes past the last file.
        """
        self.num_partitions(world)
        ranges = _read(world.options["ranges"])
        if shards:
            _check_cover(ranges, len(shards))
        order = by_key(shards)
        assigned: list[list[int]] = [[] for _ in range(world.world_size)]
        for number, (start, end) in enumerate(ranges):
            assigned[number % world.world_size] += order[start:end]
        return assigned


def _read(ranges: Any) -> list[tuple[int, int]]:
    if not isinstance(ranges, Sequence) or isinstance(ranges, str) or not ranges:
        raise _bad(ranges, "partition=range needs ranges=[(0, 250), (250, 1000), …]")
    ranges = [_pair(one) for one in ranges]
    for one in ranges:
        pair = isinstance(one, Sequence) and len(one) == 2  # noqa: PLR2004 - start and end
        if not pair or any(type(bound) is not int for bound in one) or not 0 <= one[0] <= one[1]:
            raise _bad(ranges, f"ranges: {one!r} is not (start, end) with 0 <= start <= end")
    return [(one[0], one[1]) for one in ranges]


def _pair(one: Any) -> Any:
    """Return a range that is written as `0-250`, as settings have it, as a pair."""
    start, _, end = one.partition("-") if isinstance(one, str) else ("", "", "")
    return (int(start), int(end)) if start.isdecimal() and end.isdecimal() else one


def _check_cover(ranges: Sequence[tuple[int, int]], count: int) -> None:
    at, last = 0, (0, 0)
    for one in sorted(found for found in ranges if found[0] < found[1]):
        if one[0] < at:
            raise _bad(ranges, f"ranges: {last} and {one} overlap")
        if one[0] > at:
            raise _bad(ranges, f"ranges: files {at} to {one[0] - 1} are in no range")
        at, last = one[1], one
    if at < count:
        raise _bad(ranges, f"ranges: files {at} to {count - 1} are in no range")
    if at > count:
        raise _bad(ranges, f"ranges: {last} goes past the last of {count} files")


def _bad(ranges: Any, message: str) -> UsageError:
    return UsageError(
        message,
        hint="Ranges are half-open and count the files in key order from 0, each exactly once.",
        key="ranges",
        value=ranges,
    )


STRATEGY: PartitionStrategy = Ranges()
