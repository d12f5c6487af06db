"""What one process of one start of a run has at hand; imports no torch."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from brain.ml.event_text import EventText
from brain.ml.failure import Failure
from brain.ml.metrics import MetricsLog
from brain.ml.process_group import ProcessGroup
from brain.ml.stop_request import StopRequest
from brain.ml.training_job import TrainingJob
from brain.ml.watchdog import Watchdog

logger = logging.getLogger("quark")


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
    event_text: EventText = field(default_factory=EventText)

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self.job.run_dir)

    def tell(self, event: str, **fields: object) -> None:
        """Write an event, and what the log says of it; only rank 0 does."""
        if not self.group.is_main:
            return
        self.metrics.write(event, **fields)
        line = self.event_text.line(event, fields)
        if line is not None:
            logger.log(logging.WARNING if event == "warning" else logging.INFO, "%s", line)
