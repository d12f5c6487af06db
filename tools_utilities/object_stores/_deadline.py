"""Small requests under a limit of their own.

A client's time-outs count from byte to byte: a server that drips would hold its caller for hours.
"""

from collections.abc import Callable
from threading import Event, Thread
from typing import Generic, TypeVar

from tools_utilities.background import BACKGROUND

_Result = TypeVar("_Result")


class _Asked(Generic[_Result]):
    """One request in a thread of its own."""

    def __init__(self, ask: Callable[[], _Result]) -> None:
        self._ask = ask
        self._result: list[_Result] = []
        self._error: BaseException | None = None
        self.done = Event()

    def run(self) -> None:
        try:
            with BACKGROUND.piece():
                self._result.append(self._ask())
        except BaseException as error:  # noqa: BLE001 - raised again by the thread that waits
            self._error = error
        finally:
            self.done.set()

    def result(self) -> _Result:
        if self._error is not None:
            raise self._error
        return self._result[0]


def within(seconds: float, ask: Callable[[], _Result]) -> _Result:
    """Return what `ask` returns, asked in a thread of its own.

    Raises:
        TimeoutError: it did not return in time. Its thread stays behind until the connection ends.
    """
    asked = _Asked(ask)
    Thread(target=asked.run, name="quark-ask", daemon=True).start()
    if not asked.done.wait(seconds):
        raise TimeoutError(f"no whole answer in {seconds:g} s")
    return asked.result()
