"""What a program of one's own (`command:` in quark.yaml) begins with: its job, and its data as streams.

    from brain.ml.own_script import open_run

    run = open_run()                       # the job file is the program's last argument
    loader = StreamLoader(run.train[0], run.job.batch_size, collate_fn=...)
    for step, batch in enumerate(loader, start=1):
        ...
        run.log(step, loss)

Streams are those of every run: order, seed, cache and partition are the job's, and rank and world size
those of torch's launcher, where the program is started by it. `stream.state_dict()` is to be saved
beside the weights, in `run.checkpoints`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.metrics import MetricsLog
from brain.ml.process_group import read_world
from brain.ml.run_files import CHECKPOINTS_FOLDER
from brain.ml.streamed_source import StreamedSource
from brain.ml.training_job import DataSource, TrainingJob, load_job
from tools_utilities.errors import UsageError


class OwnRun:
    """A run that the program carries out by itself."""

    def __init__(self, job: TrainingJob) -> None:
        self.job = job
        self.train = tuple(_stream(job, data, training=True) for data in job.train)
        """One stream of records for each group of shards."""
        self.val = tuple(_stream(job, data, training=False) for data in job.val)
        self.checkpoints = Path(job.run_dir) / CHECKPOINTS_FOLDER
        """A folder for what the program saves; it may not exist yet."""
        self._metrics = MetricsLog(Path(job.run_dir)) if read_world().rank == 0 else None

    def log(self, step: int, loss: float, **figures: Any) -> None:
        """Tell of a step, for the live view, `show` and `list`; only rank 0 does.

        `figures` may hold what a step of Quark's own says: epoch, lr, grad_norm, samples, tokens …
        """
        if self._metrics is not None:
            self._metrics.write("step", step=step, loss=loss, **figures)


def open_run(arguments: Sequence[str] | None = None) -> OwnRun:
    """Return the run whose job file is the last of `arguments` (those of this program).

    Raises:
        UsageError: there is none.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if not given:
        raise UsageError("the job file is missing", hint="Quark gives it as the last argument.")
    return OwnRun(load_job(Path(given[-1])))


def _stream(job: TrainingJob, data: DataSource, *, training: bool) -> StreamDataset:
    source = StreamedSource(job, data)
    source.view = None
    source.open_stream(training=training)
    return source.stream
