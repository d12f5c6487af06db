"""A matrix: many cells, each tried by itself, and one line of what came of them.

    with matrix("FETCH", request) as cells:
        for size in SIZES:
            with cells.case(f"503 {size} bytes"):
                ...                                     # an exception is a failed cell

prints `FETCH cases=5 failed=0 seed=1`, at the end of pytest's output too. The seed is 1 in the CI
suite and the day's number in nightly runs; `MATRIX_SEED=N` sets it, and `MATRIX_ONLY=REGEX` runs
only the cells whose names hold it: so a failed cell is run again.
"""

import gc
import os
import re
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import FrameType

import pytest

CASE_SECONDS = 130.0
_SHOWN = 25


class HangError(BaseException):
    """A cell did not end in time; no `except Exception` of the product may swallow it."""


@dataclass
class Cells:
    """The cells of one matrix; `case` is used by the main thread, `add` by any."""

    name: str
    seed: int
    only: str = ""
    num_cases: int = 0
    failures: list[str] = field(default_factory=list)
    notes: dict[str, object] = field(default_factory=dict)
    """What else the line tells: seconds, bytes."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wanted(self, case: str) -> bool:
        """Say whether a cell is to be run."""
        return re.search(self.only, case) is not None

    def add(self, case: str, failure: str = "") -> None:
        """Count a cell that was run elsewhere."""
        with self._lock:
            self.num_cases += 1
            if failure:
                self.failures.append(f"{case}: {failure}")

    @contextmanager
    def case(self, case: str, seconds: float = CASE_SECONDS) -> Iterator[None]:
        """Run one cell; whatever it raises is its failure, and so is time running out."""
        failure = ""
        try:
            with _ended_after(seconds):
                yield
        except (Exception, HangError) as error:  # noqa: BLE001 - the other cells go on
            failure = described(error)
        self.add(case, failure)

    @property
    def line(self) -> str:
        """Return the line."""
        more = "".join(f" {name}={value}" for name, value in self.notes.items())
        failed = len(self.failures)
        return f"{self.name} cases={self.num_cases} failed={failed} seed={self.seed}{more}"


def described(error: BaseException) -> str:
    """Return an error with the last place in our own code."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((f"{f.filename.rpartition('/')[2]}:{f.lineno}" for f in reversed(frames)), "")
    return f"{type(error).__name__}: {str(error)[:300]} ({place})"


@contextmanager
def matrix(name: str, request: pytest.FixtureRequest) -> Iterator[Cells]:
    """Collect the cells of a test, print their line, and fail the test for any that failed."""
    nightly = request.node.get_closest_marker("nightly") is not None
    usual = datetime.now(UTC).date().toordinal() if nightly else 1
    seed = int(os.environ.get("MATRIX_SEED", usual))
    cells = Cells(name, seed, os.environ.get("MATRIX_ONLY", ""))
    began = time.process_time()
    yield cells
    # What an interrupted cell left open ends here, where it is expected, and not in a later test.
    gc.collect()
    cells.notes["cpu_s"] = round(time.process_time() - began)
    request.node.user_properties.append(("matrix", cells.line))
    print(cells.line)  # noqa: T201 - the result
    if cells.failures:
        again = f"MATRIX_SEED={seed} MATRIX_ONLY='…' python -m pytest {request.node.nodeid}"
        shown = "\n".join(cells.failures[:_SHOWN])
        pytest.fail(f"{cells.line}\n{shown}\nagain: {again}", pytrace=False)
    assert cells.num_cases or cells.only, "a matrix without cells"


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """Raise HangError in the main thread when time is up; pytest's own limit uses another signal."""

    def end(number: int, frame: FrameType | None) -> None:
        raise HangError(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGUSR2, end)
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGUSR2))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR2, before)
