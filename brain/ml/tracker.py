"""The contract of an experiment tracker: Weights & Biases, MLflow … told of a run by their own library.

`brain/ml/trackers/` holds one a file, each ending in `TRACKER`. A tracker works in a process of its own
(`tracking.py`): whatever becomes of it, the run goes on. Where it sends things to, and the credentials,
are the library's own matter (`WANDB_MODE`, `WANDB_API_KEY`, `MLFLOW_TRACKING_URI` …): Quark neither reads
nor writes them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol


class TrackedRun(NamedTuple):
    """What a tracker is told of a run before its first figure."""

    name: str
    folder: Path
    """The run's; a tracker keeps what it must keep below it or beside it."""
    config: Mapping[str, Any]
    """The job, and the versions it is run by; no secret."""
    earlier_id: str | None
    """What `OpenTracker.id` was at the run's earlier start; None: this is the first."""


class Figures(NamedTuple):
    """Figures of one step."""

    at: float
    """Unix seconds."""
    step: int
    values: Mapping[str, float]
    """`train/loss`, `validation/loss` …"""


class OpenTracker(Protocol):
    """A run that a tracker keeps."""

    id: str
    """By which the tracker finds the run again."""

    def log(self, figures: Sequence[Figures]) -> None:
        """Tell of steps, in order; one that is told again after a resume stands for the earlier."""
        ...

    def close(self, exit_code: int) -> None:
        """Say how the run ended, and wait until all is kept."""
        ...


class Tracker(Protocol):
    """One library."""

    name: str
    """As in `track=`; also the extra that installs it."""
    package: str
    """What is imported."""

    def open(self, run: TrackedRun) -> OpenTracker:
        """Begin, or go on with, a run. Whatever it raises is told as a warning."""
        ...
