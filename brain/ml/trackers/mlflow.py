"""MLflow, through its own library: to `MLFLOW_TRACKING_URI`, else to `mlflow.db` beside the runs."""

import time
from collections.abc import Sequence
from typing import Any

from brain.ml.tracker import Figures, OpenTracker, TrackedRun, Tracker

EXPERIMENT = "quark"
DATABASE = "mlflow.db"
MOST_METRICS = 1000
MOST_PARAMS = 100
LONGEST_PARAM = 6000
"""Limits of one request."""


class _Mlflow:
    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self.id = client, run_id

    def log(self, figures: Sequence[Figures]) -> None:
        from mlflow.entities import Metric

        metrics = [
            Metric(name, value, int(one.at * 1000), one.step)
            for one in figures
            for name, value in one.values.items()
        ]
        for start in range(0, len(metrics), MOST_METRICS):
            self._client.log_batch(self.id, metrics=metrics[start : start + MOST_METRICS])

    def close(self, exit_code: int) -> None:
        status = "FINISHED" if exit_code == 0 else "FAILED"
        self._client.set_terminated(self.id, status, end_time=int(time.time() * 1000))


class _MlflowTracker:
    name = "mlflow"
    package = "mlflow"

    def open(self, run: TrackedRun) -> OpenTracker:
        import mlflow
        from mlflow.entities import Param

        if mlflow.is_tracking_uri_set():
            client = mlflow.MlflowClient()
        else:
            database = run.folder.parent / DATABASE
            client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{database}")
        if run.earlier_id is not None:
            client.update_run(run.earlier_id, status="RUNNING")
            return _Mlflow(client, run.earlier_id)
        experiment = client.get_experiment_by_name(EXPERIMENT)
        made = experiment.experiment_id if experiment else client.create_experiment(EXPERIMENT)
        run_id = client.create_run(made, run_name=run.name).info.run_id
        params = [Param(name, str(value)[:LONGEST_PARAM]) for name, value in run.config.items()]
        for start in range(0, len(params), MOST_PARAMS):
            client.log_batch(run_id, params=params[start : start + MOST_PARAMS])
        return _Mlflow(client, run_id)


TRACKER: Tracker = _MlflowTracker()
