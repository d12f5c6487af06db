"""Which cache entry goes first: the registry of eviction policies.

A policy only orders; who is in use and how much must go is `disk_cache.py`'s concern.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

NEVER = 1 << 62
"""The next use of an entry that nobody has announced."""


class Evictable(msgspec.Struct, frozen=True, kw_only=True):
    """An entry that could go."""

    name: str
    digest: str
    num_bytes: int
    used_ns: int
    """When it was last opened, by the file's access time."""


EvictionPolicy = Callable[[Sequence[Evictable], Mapping[str, int]], list[Evictable]]
"""(entries, digest → number of objects read before it is needed) → entries, first to go first."""


def least_recently_used(
    entries: Sequence[Evictable],
    next_use: Mapping[str, int],  # noqa: ARG001 - the policies' common signature
) -> list[Evictable]:
    """Order by last use alone; every entry may go."""
    return sorted(entries, key=lambda entry: (entry.used_ns, entry.name))


def farthest_next_use(entries: Sequence[Evictable], next_use: Mapping[str, int]) -> list[Evictable]:
    """Order by next use, farthest first (the best there is when the order is known).

    Entries that nobody announced go first, the longest unused among them before the others.
    """

    def rank(entry: Evictable) -> tuple[int, int, str]:
        return -next_use.get(entry.digest, NEVER), entry.used_ns, entry.name

    return sorted(entries, key=rank)


EVICTION_POLICIES: dict[str, EvictionPolicy] = {
    "lru": least_recently_used,
    "next_use": farthest_next_use,
}
