"""One failure, told once: whichever rank fails first says so, the others end quietly.

The right to tell is a file created exclusively in the run folder, so it needs no working group.
"""

import os
import time
import traceback
from pathlib import Path
from threading import Lock
from typing import Any

from brain.ml.metrics import MetricsLog
from brain.ml.process_group import World, attempt_of
from tools_utilities.errors import QuarkError, StoreError

SETTLE_SECONDS = 2.0
"""How long a rank whose peers vanished waits for one of them to say why."""

CLAIM_SECONDS = 0.2
"""Between the claim and the event."""
FINAL = b"final"
"""Content of a claim: a new start would fail in the same way."""


class Failure:
    """Tells why a start of a run ended."""

    def __init__(self, run_dir: Path, world: World) -> None:
        self._world = world
        self._run_dir = run_dir
        self._claim = claim_of(run_dir, world.attempt)
        self._writing = Lock()

    def clear_earlier(self) -> None:
        """Remove what earlier starts left; rank 0, before the ranks meet."""
        for path in self._run_dir.glob(".failed-*"):
            if path != self._claim:
                path.unlink(missing_ok=True)

    @property
    def told(self) -> bool:
        """Whether some rank has told."""
        return self._claim.exists()

    def tell(self, metrics: MetricsLog, error: BaseException, *, exit_code: int) -> bool:
        """Write the `error` event, last in the file, unless another rank did; returns whether it did."""
        final = not may_pass(error)
        return self._write(metrics, self._world.rank, describe(error, exit_code), final=final)

    def tell_lost(self, metrics: MetricsLog, rank: int, pid: int) -> bool:
        """Write that a rank vanished, unless a rank says why within `SETTLE_SECONDS`."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while not self.told and time.monotonic() < deadline:
            time.sleep(0.05)
        fields = {
            "kind": "RankLostError",
            "message": f"rank {rank} (process {pid}) was killed or crashed",
            "hint": "The run's log may say more; the system kills processes when memory runs out.",
            "exit_code": 1,
            "detail": {"pid": pid},
        }
        return self._write(metrics, rank, fields)

    def tell_silent(self, metrics: MetricsLog, rank: int, machine: int, seconds: float) -> bool:
        """Write that a whole machine, whose first rank is `rank`, has not been heard of for so long."""
        fields = {
            "kind": "RankLostError",
            "message": f"machine {machine} (rank {rank} and on) has been silent for {seconds:.0f} s",
            "hint": "It may be frozen, or its network gone; the others go on without it.",
            "exit_code": 1,
            "detail": {"machine": machine},
        }
        return self._write(metrics, rank, fields)

    def finish(self) -> None:
        """Wait until what this process tells is written: after the claim nobody else would."""
        self._writing.acquire(timeout=SETTLE_SECONDS)

    def _write(
        self, metrics: MetricsLog, rank: int, fields: dict[str, Any], *, final: bool = False
    ) -> bool:
        with self._writing:
            return self._claim_and_write(metrics, rank, fields, final=final)

    def _claim_and_write(
        self, metrics: MetricsLog, rank: int, fields: dict[str, Any], *, final: bool
    ) -> bool:
        try:
            claim = os.open(self._claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return False
        if final:
            os.write(claim, FINAL)
        os.close(claim)
        if self._world.rank != 0:
            # Rank 0 writes no more once the claim is there; what it had begun comes first.
            time.sleep(CLAIM_SECONDS)
        metrics.write("error", rank=rank, **fields)
        return True


def claim_of(run_dir: Path, attempt: str) -> Path:
    """Return the file by which a start of a run is known to have failed."""
    return run_dir / f".failed-{attempt}"


def failed_for_good(run_dir: Path, start: int) -> bool:
    """Tell whether a numbered start failed in a way that would only come again."""
    try:
        return claim_of(run_dir, attempt_of(start)).read_bytes() == FINAL
    except FileNotFoundError:
        return False


def may_pass(error: BaseException) -> bool:
    """Tell whether another start may fare better: devices, networks and stores recover, data does not."""
    if isinstance(error, QuarkError):
        return isinstance(error, StoreError)
    return isinstance(error, OSError | RuntimeError | MemoryError)


def frame_of(error: BaseException) -> str | None:
    """Return where an error came from: the innermost `folder/file.py:line in function`."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return None
    path = Path(frames[-1].filename)
    return f"{path.parent.name}/{path.name}:{frames[-1].lineno} in {frames[-1].name}"


def describe(error: BaseException, exit_code: int) -> dict[str, Any]:
    """Return the fields of an `error` event: plain data, whatever the error's detail holds."""
    hint = error.hint if isinstance(error, QuarkError) else ""
    detail = error.detail if isinstance(error, QuarkError) else {}
    message = str(error) or type(error).__name__
    if not isinstance(error, QuarkError):
        message = f"{type(error).__name__}: {message}"
    cause = type(error).exit_code if isinstance(error, QuarkError) else 1
    return {
        "kind": type(error).__name__,
        "message": message,
        "hint": hint,
        "frame": frame_of(error),
        "exit_code": exit_code,
        "detail": {**{str(key): _plain(value) for key, value in detail.items()}, "cause": cause},
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return str(value)
