"""metrics.jsonl: one event a line, appended in one write; rank 0 writes, and a rank that fails.

Every event has `event` and `time` (unix seconds). A resumed run appends to the same file and repeats
the steps after its checkpoint: of several lines for a step the last counts. NaN is written as null,
a secret in a text as `***`.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.run_files import METRICS_FILE
from tools_utilities.private_files import open_to_append
from tools_utilities.redaction import redact_data

HEARTBEAT_SECONDS = 5.0


class MetricsLog:
    """Appends events; the file's time is the run's heartbeat."""

    def __init__(
        self,
        run_dir: Path,
        *,
        muted: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`muted`: whether another rank has told of a failure, so that nothing may follow."""
        self._path = run_dir / METRICS_FILE
        self._muted = muted
        self._clock = clock
        self._ended = False
        # Trackers tell of their failures from threads; nothing may come behind the run's end.
        self._lock = threading.RLock()
        self._end_torn_line()

    def write(self, event: str, **fields: Any) -> None:
        """Append an event; nothing is written after an `error` or `end`. May be called by any thread."""
        with self._lock:
            self._write(event, fields)

    def _write(self, event: str, fields: dict[str, Any]) -> None:
        if self._ended or (event != "error" and self._muted()):
            return
        clean = redact_data(fields)
        line = msgspec.json.encode({"event": event, "time": self._clock(), **clean}) + b"\n"
        self._ended = event in {"error", "end"}
        descriptor = open_to_append(self._path)
        try:
            # One write call: lines of several ranks never mix.
            os.write(descriptor, line)
            if self._ended:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def beat(self) -> None:
        """Touch the file, so that a long step does not look like a dead run."""
        if self._path.exists():
            os.utime(self._path)

    def _end_torn_line(self) -> None:
        """Close the line that a killed run left half written."""
        if not self._path.exists() or self._path.stat().st_size == 0:
            return
        with self._path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
