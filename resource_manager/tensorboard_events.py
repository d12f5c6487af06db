"""A run's metrics as TensorBoard event files, where TensorBoard is installed (`[tensorboard]`)."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FOLDER = "tensorboard"
STEP_SCALARS = (
    "loss", "lr", "grad_norm", "tokens_per_second", "step_seconds", "data_wait_share",
    "data_bytes_per_second", "cache_hit_rate", "epoch", "samples", "tokens",
)  # fmt: skip


def write_event_files(run_dir: Path, events: Sequence[dict[str, Any]]) -> Path | None:
    """Write tensorboard/ anew from a run's events and return it; None without TensorBoard or steps."""
    found = list(scalars(events))
    if not found:
        return None
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError:
        return None
    folder = run_dir / FOLDER
    # Written whole each time: a resumed run repeats steps, and TensorBoard would show both.
    shutil.rmtree(folder, ignore_errors=True)
    writer = EventFileWriter(str(folder))
    for time, step, name, value in found:
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        writer.add_event(Event(wall_time=time, step=step, summary=summary))
    writer.close()
    return folder


def scalars(events: Sequence[dict[str, Any]]) -> Iterator[tuple[float, int, str, float]]:
    """Yield (unix time, step, `train/loss`, value), of repeated steps the last, in order."""
    steps = {int(event["step"]): event for event in events if event["event"] == "step"}
    for number in sorted(steps):
        event = steps[number]
        for name in STEP_SCALARS:
            if event.get(name) is not None:
                yield float(event["time"]), number, f"train/{name}", float(event[name])
    evals = {int(event["step"]): event for event in events if event["event"] == "eval"}
    for number in sorted(evals):
        event = evals[number]
        if event.get("loss") is not None:
            yield float(event["time"]), number, "validation/loss", float(event["loss"])
