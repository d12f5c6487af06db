"""A run as a scheduler is given it, for tests of the texts that are made of it."""

from typing import Any

from brain.ml.training_job import DataSource, TrainingJob
from resource_manager.export_format import Export
from tools_utilities.object_store import StoreSpec


def export_of(*, nodes: int = 1, **changes: Any) -> Export:
    """Return an export of a small run."""
    source = DataSource(store=StoreSpec(uri="s3://bucket"), prefix="d/")
    job = TrainingJob(
        name="fox-1", run_dir="/tmp/quark/runs/fox-1", train=(source,), nodes=nodes  # noqa: S108
    )  # fmt: skip
    fields = {"gpus": 0, "folder": job.run_dir, "wheel": "quark.whl", **changes}
    return Export(job=job, **fields)
