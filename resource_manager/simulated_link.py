"""What a simulated run is given, and what it comes to: links, settings, figures of an epoch."""

from dataclasses import dataclass

PART_BYTES = 16 << 20
PARTED_FROM_BYTES = 48 << 20
PARTS_AT_ONCE = 8


@dataclass(frozen=True, kw_only=True)
class Link:
    """Between a machine and the store."""

    latency_seconds: float
    """To the first byte of an answer."""
    connection_bytes_per_second: float
    node_bytes_per_second: float
    """Of all connections of a machine together."""
    connections: int = 8
    """Of each reader that reads ahead."""

    def requests_for(self, num_bytes: int) -> int:
        """Return how many requests a fetch takes."""
        return -(-num_bytes // PART_BYTES) if num_bytes >= PARTED_FROM_BYTES else 1

    def fetch_seconds(self, num_bytes: int) -> float:
        """Return what a fetch takes that has the machine for itself."""
        rate, latency = self.connection_bytes_per_second, self.latency_seconds
        if num_bytes >= PARTED_FROM_BYTES:
            # The first part goes alone until its first byte.
            rate *= min(PARTS_AT_ONCE, -(-num_bytes // PART_BYTES))
            latency *= 2
        return latency + num_bytes / rate


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run does with its data."""

    link: Link
    step_seconds: float
    epochs: int = 1
    cache_bytes: int = 0
    """Of each machine; 0: no cache."""
    cache_policy: str = "next_use"
    prefetch: int | None = None
    """Objects read ahead; None: as many as the budget holds; 0: none."""


@dataclass(frozen=True, kw_only=True)
class EpochFigures:
    """What an epoch took, over all machines."""

    steps: int
    seconds: float
    stall_seconds: float
    """Of those, spent waiting for data."""
    first_batch_seconds: float
    """From the epoch's begin (of the first one: before the listing) to its first batch."""
    fetched_bytes: int
    again_bytes: int
    """Of those, of objects that the same machine had fetched before …"""
    elsewhere_bytes: int
    """… or that another machine had."""
    requests: int
    open_bytes: int
    """Most that one reader had open at a time, in stored bytes."""
    cached_bytes: int
    """Most that one machine held."""

    @property
    def data_wait_share(self) -> float:
        """Share of the time that was waited for data."""
        return self.stall_seconds / self.seconds if self.seconds else 0.0
