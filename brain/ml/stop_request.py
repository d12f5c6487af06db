"""Being asked to stop: SIGINT and SIGTERM, noticed at once where waiting, else at the step's border.

The first signal asks for a saved stop; SIGINT once more leaves at once, saving nothing. An agent asks
by SIGUSR1 (`ASK_AGAIN`) for a saved stop after which the ranks are started again; a person never
does, so what a person asks always ends the run. Imports no torch: it is installed before anything
slow is imported.

Python runs signal handlers on the main thread, which may be inside one long operation of torch; the
second SIGINT is therefore seen by a thread that reads the interpreter's wake-up pipe.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from tools_utilities.errors import RunStoppedError

ASK_AGAIN = signal.SIGUSR1
PERSONS = (signal.SIGINT, signal.SIGTERM)
REASONS = {signal.SIGINT: "interrupt", signal.SIGTERM: "terminate", ASK_AGAIN: "regroup"}
"""What was asked, by signal; where several were, the first of these counts."""
EXIT_CODES = {"interrupt": 130, "terminate": 143, "regroup": 143}
REGROUPED = 75
"""Exit code of a rank that an agent shall start again, no failure (EX_TEMPFAIL of sysexits.h)."""


class StopRequest:
    """What has been asked of this process."""

    def __init__(self) -> None:
        self.reason: str | None = None
        """`interrupt`, `terminate` or `regroup`, once asked."""
        self._interruptible = False
        self._struck = False
        """A signal has broken off an interruptible stretch."""

    def install(self) -> None:
        """Take over the signals of this process; main thread only."""
        for number in REASONS:
            signal.signal(number, self._asked)
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        threading.Thread(target=_leave_on_second_signal, args=(reading,), daemon=True).start()

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """A stretch that may be left at any point, such as waiting for data.

        Raises:
            RunStoppedError: a stop was asked for before or meanwhile.
        """
        self._interruptible = True
        try:
            self.check()
            yield
        except RunStoppedError:
            raise
        except Exception as error:
            # The signal may strike within something that makes an error of its own of it, such as the
            # start of a thread; only what came before the signal is told.
            if not self._struck:
                raise
            raise RunStoppedError(f"stopped by {self.reason}", reason=self.reason) from error
        finally:
            self._interruptible = False

    def check(self) -> None:
        """Raise RunStoppedError when a stop was asked for."""
        if self.reason is not None:
            raise RunStoppedError(f"stopped by {self.reason}", reason=self.reason)

    def flags(self) -> list[bool]:
        """Return whether each of `REASONS` was asked of this process, to be summed over all ranks."""
        return [self.reason == reason for reason in REASONS.values()]

    def settle(self, counts: Sequence[float]) -> str | None:
        """Take the sums of all ranks' `flags` as asked of this process too; returns the reason."""
        for reason, count in zip(REASONS.values(), counts, strict=True):
            if count:
                self.reason = reason
                return reason
        return None

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if self.reason is None or self.reason == "regroup":
            self.reason = REASONS[signal.Signals(number)]
        if self._interruptible:
            self._interruptible, self._struck = False, True
            self.check()


def _leave_on_second_signal(reading: int) -> None:
    """Leave at once when SIGINT comes after an earlier request; ends with the process."""
    asked = False
    while data := os.read(reading, 1):
        if data[0] in PERSONS:
            if asked and data[0] == signal.SIGINT:
                os._exit(EXIT_CODES["interrupt"])
            asked = True
