"""How far a counting pass is, as one line on a terminal; nothing anywhere else."""

import sys
import time
from collections.abc import Callable
from typing import TextIO

_CELLS = 24
_PAINT_SECONDS = 0.25


class CountingBar:
    """At most four pictures a second, wiped when it is done. Plain characters, no colour."""

    def __init__(
        self,
        total: int,
        *,
        shown: bool = True,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a bar of `total` splits; `shown=False`: of a rank that keeps quiet."""
        self._out = sys.stderr if out is None else out
        # A standard stream is None when its descriptor was closed before the start.
        self._shown = shown and total > 0 and self._out is not None and self._out.isatty()
        self._total = total
        self._clock = clock
        self._painted: float | None = None
        self._width = 0

    def show(self, done: int) -> None:
        """Paint, if it is time to."""
        now = self._clock()
        if not self._shown or (self._painted is not None and now - self._painted < _PAINT_SECONDS):
            return
        self._painted = now
        full = _CELLS * done // self._total
        bar = "#" * full + "." * (_CELLS - full)
        text = f"counting samples  {bar} {done / self._total:4.0%}  {done}/{self._total} splits"
        self._write(f"\r{text}")
        self._width = len(text)

    def end(self) -> None:
        """Wipe what was painted."""
        if self._width:
            self._write("\r" + " " * self._width + "\r")
            self._width = 0

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
