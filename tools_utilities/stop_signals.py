"""Being asked to stop.

While claims are worked the first signal ends at the next batch, a second at once (`Stop`); a dataset
that is made ends where it stands, after its clean-up (`stopping_cleanly`).
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from tools_utilities.errors import RunStoppedError

INTERRUPTED = "interrupted; the same command goes on where this one ended\n"
"""What a program says that a second Ctrl-C ended at once."""
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class Stop:
    """What has been asked of this worker; may be asked from any thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.exit_code = 130

    def ask(self, exit_code: int = 130) -> None:
        """Ask the worker to give its shard back."""
        if not self._event.is_set():
            self.exit_code = exit_code
            self._event.set()

    @property
    def asked(self) -> bool:
        """Whether somebody asked."""
        return self._event.is_set()

    def wait(self, seconds: float) -> None:
        """Wait so long, or until somebody asks."""
        self._event.wait(seconds)

    def check(self) -> None:
        """Raise RunStoppedError when somebody asked."""
        if self.asked:
            error = RunStoppedError(
                "stopped", hint="The same command goes on where this one ended."
            )
            error.exit_code = self.exit_code  # type: ignore[misc] # 143 when terminated, as documented
            raise error

    @contextmanager
    def on_signals(self, say: Callable[[str], None]) -> Iterator[None]:
        """Listen to SIGINT and SIGTERM while the block runs; main thread only.

        A second SIGINT raises KeyboardInterrupt where the work stands.
        """

        def asked(number: int, _frame: FrameType | None) -> None:
            if self.asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            first = not self.asked
            self.ask(EXIT_CODES[signal.Signals(number)])
            if first:
                say("stopping after this batch; the shard is given back (Ctrl-C again: at once)")

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, asked) for number in EXIT_CODES}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def interrupted(hint: str) -> Iterator[None]:
    """While it lasts, Ctrl-C ends as RunStoppedError (130) with what to do next.

    For what has begun to act: before that, the program says that nothing was started.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise RunStoppedError("interrupted", hint=hint) from error


@contextmanager
def stopping_cleanly() -> Iterator[None]:
    """While it lasts, SIGTERM raises RunStoppedError (143), so that uploads are cleaned up."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        error = RunStoppedError(
            "terminated",
            hint="Run the same command again: it goes on from the last finished chunk.",
        )
        error.exit_code = EXIT_CODES[signal.SIGTERM]  # type: ignore[misc] # of this one error
        raise error

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
