"""A run's metrics as TensorBoard event files, where TensorBoard is installed (`[tensorboard]`).

Who watches a run writes them while it goes on, from its tenth second: importing TensorBoard takes
longer than a short run should. `show` writes them whole, for a run in the background and one that
nobody watched.
"""

import importlib.util
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Self

from resource_manager.runs import read_events

FOLDER = "tensorboard"
LIVE = ".live"
"""How the files of a run end that is being watched."""
PATIENCE_SECONDS = 10.0
STEP_SCALARS = (
    "loss", "lr", "grad_norm", "tokens_per_second", "step_seconds", "data_wait_share",
    "data_bytes_per_second", "cache_hit_rate", "epoch", "samples", "tokens",
)  # fmt: skip


def write_event_files(run_dir: Path, events: Sequence[dict[str, Any]]) -> Path | None:
    """Write tensorboard/ anew from a run's events and return it; None without TensorBoard or steps."""
    found = list(scalars(events))
    if not found or not is_installed():
        return None
    writer = _new_writer(run_dir)
    _add(writer, found)
    writer.close()
    return run_dir / FOLDER


def is_installed() -> bool:
    """Return whether TensorBoard is there; it is not imported."""
    return importlib.util.find_spec("tensorboard") is not None


def is_written_live(run_dir: Path) -> bool:
    """Return whether the newest files were written while the run went on."""
    return any((run_dir / FOLDER).glob(f"*{LIVE}"))


def _new_writer(run_dir: Path, suffix: str = "") -> Any:
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    # Written whole each time: a resumed run repeats steps, and TensorBoard would show both.
    shutil.rmtree(run_dir / FOLDER, ignore_errors=True)
    return EventFileWriter(str(run_dir / FOLDER), filename_suffix=suffix)


def _add(writer: Any, found: Sequence[tuple[float, int, str, float]]) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    for at, step, name, value in found:
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        writer.add_event(Event(wall_time=at, step=step, summary=summary))
    writer.flush()


class LiveEventFiles:
    """Writes a run's events while it goes on, in a thread: nobody waits for TensorBoard's import."""

    def __init__(
        self,
        run_dir: Path,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._start_at = clock() + patience_seconds
        self._events: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_wanted = is_installed()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Write what is left."""
        if self._thread is not None:
            self._events.put(None)
            self._thread.join()

    def take(self, event: dict[str, Any]) -> None:
        """Take in an event; returns at once."""
        if self._thread is not None:
            self._events.put(event)
        elif self._is_wanted and self._clock() >= self._start_at:
            # All that came before is in the file, this event too.
            self._thread = threading.Thread(target=self._write, daemon=True, name="tensorboard")
            self._thread.start()

    def _write(self) -> None:
        writer = _new_writer(self._run_dir, LIVE)
        events = told_last(read_events(self._run_dir))
        found = list(scalars(events))
        _add(writer, found)
        written = {(step, name) for _, step, name, _ in found}
        while (event := self._events.get()) is not None:
            found = [one for one in scalars([event]) if (one[1], one[2]) not in written]
            _add(writer, found)
        writer.close()


def told_last(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events that count after resumes: what came after the checkpoint is done anew."""
    kept: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "start":
            after = event.get("resumed_from_step") or 0
            kept = [one for one in kept if (one.get("step") or 0) <= after]
        kept.append(event)
    return kept


def scalars(events: Sequence[dict[str, Any]]) -> Iterator[tuple[float, int, str, float]]:
    """Yield (unix time, step, `train/loss`, value), of repeated steps the last, in order."""
    steps = {int(event["step"]): event for event in events if event["event"] == "step"}
    for number in sorted(steps):
        event = steps[number]
        for name in STEP_SCALARS:
            if event.get(name) is not None:
                yield float(event.get("time") or 0), number, f"train/{name}", float(event[name])
    evals = {int(event["step"]): event for event in events if event["event"] == "eval"}
    for number in sorted(evals):
        event = evals[number]
        if event.get("loss") is not None:
            yield float(event.get("time") or 0), number, "validation/loss", float(event["loss"])
