"""What passes between a StreamLoader and its worker processes, apart from the batches themselves.

A frame is a pickle of one of these; both ends are this program's own processes.
"""

import pickle
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np

from brain.ml.dataset_shards.epoch_plan import EpochPlan, EpochStart
from brain.ml.dataset_shards.partitioning import Partitioning
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.stream_index import StreamIndex
from brain.ml.dataset_shards.stream_iteration import Standing


@dataclass(frozen=True, kw_only=True)
class WorkerTask:
    """What a worker is started with: the listing, and how to make batches of it."""

    index: StreamIndex
    plan: EpochPlan
    """Of no epoch in particular."""
    collate: Any
    drop_last: bool
    endpoint_id: str | None
    """Of the store whose objects the owner brings into the cache; None: the worker fetches."""
    batches_ahead: int | None
    """At most so many read and not asked for; None: as many as the ring holds."""


@dataclass(frozen=True, kw_only=True)
class Begin:
    """Start a pass, and give up the one before."""

    number: int
    """Of the pass; counts up."""
    start: EpochStart
    share: Share
    counts: Indices
    """Samples of every split as far as the owner knows."""
    partitioning: Partitioning | None
    seed: int


class Release(msgspec.Struct, frozen=True):
    """So much of the ring has been read."""

    number: int
    num_bytes: int
    num_batches: int


class SentBatch(NamedTuple):
    """One batch of a message."""

    step: int
    """Which of its rank's batches it is, counted from the start of the pass."""
    lengths: list[int]
    """Bytes of its segments."""
    standing: Standing
    """Where the stream stands once it is delivered."""


class Sent(NamedTuple):
    """Some batches, in the ring or (too large for it) in the message itself."""

    number: int
    offset: int
    """-1: the segments are in `inline`."""
    num_bytes: int
    batches: list[SentBatch]
    inline: list[bytes]
    num_bad: int
    """Records skipped so far in this pass, by this worker."""
    stats: dict[str, Any] | None


class Ended(NamedTuple):
    """A pass has come to its end."""

    number: int
    epoch: int
    counts: Indices
    stats: dict[str, Any]


class Failed(NamedTuple):
    """A pass has come to a stop."""

    number: int
    error: BaseException
    trace: str


class Wanted(NamedTuple):
    """Objects that come next, by number, soonest first."""

    number: int
    objects: list[int]


class Opened(NamedTuple):
    """An object is in use: it needs no fetching any more."""

    number: int
    object: int


class Stop(NamedTuple):
    """End the process."""


Frame = Begin | Release | Stop | Sent | Ended | Failed | Wanted | Opened


def dump(frame: Frame) -> bytes:
    """Return a frame's bytes."""
    return pickle.dumps(frame, pickle.HIGHEST_PROTOCOL)


def load(data: bytes) -> Any:
    """Return the frame of some bytes."""
    return pickle.loads(data)  # noqa: S301 - from our own process at the other end


def learn_counts(known: Indices, found: Indices) -> bool:
    """Fill in what is not known yet; returns whether anything was."""
    fresh = (known < 0) & (found >= 0)
    known[fresh] = found[fresh]
    return bool(np.any(fresh))
