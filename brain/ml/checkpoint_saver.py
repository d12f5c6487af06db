"""Saves beside the training: a snapshot is taken between two steps, a thread writes it.

One save at a time. The next one, and the end of the run, wait for the one before; how long the
training stood still for it is told. A save that failed is raised at the next step's border, on the
rank whose part it was by its own error, so that no rank trains on without being saved.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from brain.ml.checkpoint import Parts, TrainerState, take_snapshot, write_snapshot
from brain.ml.checkpoint_place import CheckpointPlace
from brain.ml.process_group import ProcessGroup


class CheckpointSaver:
    """All ranks make the same calls."""

    def __init__(
        self,
        place: CheckpointPlace,
        group: ProcessGroup,
        *,
        keep: int,
        tell: Callable[..., None],
    ) -> None:
        """`tell`: gets step, path, seconds and held_seconds of each checkpoint that is there."""
        self._place, self._group, self._keep, self._tell = place, group, keep, tell
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._writing: Future[str] | None = None
        self._step = 0
        self._started = self._held = 0.0
        self.saved = 0
        """Checkpoints published."""

    def save(self, state: TrainerState, parts: Parts) -> None:
        """Begin to save; returns when training may go on."""
        started = time.monotonic()
        self.wait()
        snapshot = take_snapshot(state, parts)
        self._step, self._started = snapshot.step, started
        self._writing = self._thread.submit(
            write_snapshot, snapshot, self._place, self._group, keep=self._keep
        )
        self._held = time.monotonic() - started

    def look(self) -> None:
        """Tell of a save that has come to its end; raise its error if it failed."""
        if self._writing is not None and self._writing.done():
            self._end()

    def wait(self) -> None:
        """Return when nothing is being written."""
        if self._writing is not None:
            started = time.monotonic()
            self._writing.exception()
            self._held += time.monotonic() - started
            self._end()

    def _end(self) -> None:
        if self._writing is None:
            return
        writing, self._writing = self._writing, None
        path = writing.result()
        self.saved += 1
        seconds = time.monotonic() - self._started
        self._tell(
            "checkpoint", step=self._step, path=path, seconds=seconds, held_seconds=self._held
        )
