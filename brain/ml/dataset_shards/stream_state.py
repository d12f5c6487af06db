"""StreamState: where a stream stands, for all ranks and workers together; small, versioned, JSON-able."""

from typing import Any

import msgspec

STATE_VERSION = 1


class StreamState(msgspec.Struct, frozen=True, kw_only=True):
    """A position in the global order; independent of world size and worker count."""

    version: int = STATE_VERSION
    seed: int
    epoch: int
    position: int
    """Positions of the epoch's global order already delivered, over all ranks."""
    order_fingerprint: str
    """Of the sorted relative keys, sizes, split bounds and order settings: equal on any store."""
    change_fingerprint: str
    """Adds etags or checksums; only decides whether a resume is refused."""
    order: dict[str, Any] = {}
    """What makes the order (lanes, windows, split rule, permutation version) and, for an epoch whose
    counts are not known yet, each lane's window and base."""
