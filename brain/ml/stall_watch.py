"""Tells of a process that gets nowhere: what it waits for, and the stacks of all its threads."""

import contextlib
import faulthandler
import time
from collections.abc import Callable
from typing import TextIO

from tools_utilities.activity import ACTIVITY, Activity

NAMED_WAITS = 3


class StallWatch:
    """Looked at now and then by a thread that is not itself held up."""

    def __init__(
        self,
        limit_seconds: float,
        *,
        out: TextIO,
        tell: Callable[[str], None],
        activity: Activity = ACTIVITY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Watch this process.

        Args:
            limit_seconds: Without movement before it is told; 0: never.
            out: A file with a descriptor that stacks are written to.
            tell: Called with what is waited for, in words.
            activity: What moves.
            clock: Seconds.
        """
        self._limit = limit_seconds
        self._out = out
        self._tell = tell
        self._activity = activity
        self._clock = clock
        self._moves = activity.moves
        self._since = clock()
        self._told = False

    def look(self) -> None:
        """Tell of a stall, once, when nothing has moved for the limit."""
        moves, now = self._activity.moves, self._clock()
        if moves != self._moves:
            self._moves, self._since, self._told = moves, now, False
        elif self._limit and not self._told and now - self._since >= self._limit:
            self._told = True
            self._tell(self._message(now - self._since))
            # A log that is closed or has no descriptor must not end the thread that watches.
            with contextlib.suppress(OSError, ValueError):
                faulthandler.dump_traceback(file=self._out, all_threads=True)

    def _message(self, seconds: float) -> str:
        waits = self._activity.waits()
        shown = ", ".join(f"{what} ({waited:.0f} s)" for what, waited in waits[:NAMED_WAITS])
        more = f" and {len(waits) - NAMED_WAITS} more" if len(waits) > NAMED_WAITS else ""
        what = f"waiting for {shown}{more}" if shown else "no shard is being waited for"
        return f"nothing moved for {seconds:.0f} s: {what}"
