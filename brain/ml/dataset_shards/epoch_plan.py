"""What one reader needs to read its share of one epoch; plain data and a source."""

from dataclasses import dataclass, field

from brain.ml.dataset_shards.lane_walk import LaneHint
from brain.ml.dataset_shards.partitioning import Partitioning
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.shuffle_order import LaneShape
from brain.ml.dataset_shards.split_source import SplitSource
from brain.ml.dataset_shards.split_table import SplitTable


@dataclass(frozen=True, kw_only=True)
class EpochStart:
    """Where an iteration begins."""

    epoch: int = 0
    position: int = 0
    """Of the global order: the first that is still to come, whichever rank takes it."""
    hint: LaneHint | None = None
    slot: int = 0
    """This reader's own samples after `position` that are delivered already (a worker's state)."""
    partitions: tuple[int, ...] = ()
    """How far each partition is, under a strategy that has them; empty: nothing is read."""


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What is skipped instead of raised."""

    on_bad: str = "fail"
    bad_budget: int = 0
    on_missing: str = "fail"


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """One epoch of one dataset for one reader."""

    table: SplitTable
    source: SplitSource
    shape: LaneShape
    shuffle: bool
    seed: int
    start: EpochStart
    share: Share
    tolerance: Tolerance = field(default_factory=Tolerance)
    prefetch: int | str = "auto"
    """Objects to read ahead; `auto`: as many as the manager finds right; 0: none, and no threads."""
    shared_rows: bool = False
    """Whether samples may be rows of one array; for a collate that makes one batch of them."""
    partitioning: Partitioning | None = None
    """Of a strategy that assigns splits; None: positions are dealt by turns."""


UNREADABLE = "unreadable"
"""In `skipped`: splits that cannot be opened, of which nobody knows how many records they have."""


@dataclass
class EpochCounts:
    """What is counted while reading; grows during an epoch."""

    samples: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Records that are not samples by their format's rules, by reason."""
    last_unreadable: str = ""
    """The error of the last split that could not be opened and is left out."""
    bad: int = 0
    missing: set[str] = field(default_factory=set)
    """Keys of objects that were gone."""
    dropped: int = 0
    padded: int = 0
    open_seconds: float = 0.0
    """Spent waiting for splits to be open."""
    splits_opened: int = 0
    read_bytes: float = 0.0
    """Stored bytes of the samples read: of each its share of its splits'."""
