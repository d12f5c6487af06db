"""What one process of one start of a run has at hand; imports no torch."""

from dataclasses import dataclass
from pathlib import Path

from brain.ml.failure import Failure
from brain.ml.metrics import MetricsLog
from brain.ml.process_group import ProcessGroup
from brain.ml.stop_request import StopRequest
from brain.ml.training_job import TrainingJob
from brain.ml.watchdog import Watchdog


@dataclass(kw_only=True)
class Session:
    """One process's part of a run."""

    job: TrainingJob
    group: ProcessGroup
    stop: StopRequest
    metrics: MetricsLog
    failure: Failure
    watchdog: Watchdog
    steps_made: int = 0
    """Optimizer steps of this start; after the first, every failure is the run's own (exit 1)."""

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self.job.run_dir)

    def tell(self, event: str, **fields: object) -> None:
        """Write an event; only rank 0 does."""
        if self.group.is_main:
            self.metrics.write(event, **fields)
