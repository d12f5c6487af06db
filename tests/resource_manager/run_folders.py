"""Run folders as runs leave them, made without training."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from brain.ml.training_job import DataSource, TrainingJob, save_job
from tools_utilities.object_store import StoreSpec

DATA = [{"order": "aa", "change": "bb"}]
VERSIONS = {"python": "3.11.7", "quark": "0.1.0", "torch": "2.13.0"}


def step(number: int, *, batch: int = 8, per_epoch: int = 1000, **changes: Any) -> dict[str, Any]:
    """Return the event of a step that waits 1 % of its 0.1 seconds."""
    return {
        "event": "step", "time": 1000.0 + number, "step": number, "epoch": number / per_epoch,
        "loss": 5 * math.exp(-number / 40) + 1, "lr": 1e-3, "grad_norm": 0.5,
        "samples": number * batch, "tokens": number * batch * 64, "tokens_per_second": 1000.0,
        "step_seconds": 0.1, "data_wait_share": 0.01, "wait_seconds": {"open": number * 0.001},
        **changes,
    }  # fmt: skip


def write_run(
    out_dir: Path,
    name: str,
    steps: Iterable[dict[str, Any]],
    *,
    start: dict[str, Any] | None = None,
    more: Iterable[dict[str, Any]] = (),
    **job: Any,
) -> Path:
    """Write a finished run with its `steps`, then `more` events, and return its folder."""
    folder = out_dir / name
    folder.mkdir(parents=True)
    train = (DataSource(store=StoreSpec(uri="file:///d"), prefix="one/"),)
    fields: dict[str, Any] = {"name": name, "run_dir": str(folder), "train": train, "batch_size": 8}
    save_job(TrainingJob(**{**fields, **job}), folder / "job.yaml")
    made = list(steps)
    first = {"event": "start", "time": 999.0, "total_steps": len(made), "world_size": 1,
             "data": DATA, "versions": VERSIONS, "counts": "tokens", **(start or {})}  # fmt: skip
    last = made[-1] if made else {}
    end = {"event": "end", "time": 9e9, "reason": "max_steps", "exit_code": 0, "epoch": 1.0,
           "step": last.get("step", 0), "loss": last.get("loss"), "val_loss": None, "seconds": 9.0,
           "samples": last.get("samples", 0), "tokens": last.get("tokens", 0)}  # fmt: skip
    lines = [json.dumps(event) for event in (first, *made, *more, end)]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder
