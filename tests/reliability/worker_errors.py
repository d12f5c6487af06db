"""What may go wrong in a worker; imported there, so it imports no torch."""

import errno
import json
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from tools_utilities.errors import RecordError


class NeedsTwoError(Exception):
    """Pickle cannot make it again: its `__init__` takes more than its message."""

    def __init__(self, place: str, number: int) -> None:
        super().__init__(f"{place} went wrong at {number}")


class HoldsLockError(Exception):
    """Pickle cannot take it apart."""

    def __init__(self, words: str) -> None:
        super().__init__(words)
        self.lock = threading.Lock()


class SilentError(Exception):
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class PoisonedError(Exception):
    """Raises when it is pickled."""

    def __reduce__(self) -> Any:
        raise MemoryError("no room to pickle")


class NoError(BaseException):
    """No Exception at all."""


def local_error(words: str) -> Exception:
    """Return an error of a class that has no name to be found by."""

    class InsideError(Exception):
        pass

    return InsideError(words)


def deep_error(words: str) -> Exception:
    """Return an error with a long chain of causes."""
    found: Exception = ValueError(words)
    for number in range(300):
        outer = ValueError(f"{words} {number}")
        outer.__cause__ = found
        found = outer
    return found


def ended_by(number: int) -> Exception:
    """Send this process a signal that ends it."""
    os.kill(os.getpid(), number)
    return ValueError("still there")


WORDS = "planted failure"
KINDS: dict[str, Callable[[], BaseException]] = {
    "ValueError": lambda: ValueError(WORDS),
    "KeyError": lambda: KeyError(WORDS),
    "StopIteration": lambda: StopIteration(WORDS),
    "StopAsyncIteration": lambda: StopAsyncIteration(WORDS),
    "GeneratorExit": lambda: GeneratorExit(WORDS),
    "SystemExit": lambda: SystemExit(WORDS),
    "SystemExit 0": lambda: SystemExit(0),
    "KeyboardInterrupt": lambda: KeyboardInterrupt(WORDS),
    "MemoryError": lambda: MemoryError(WORDS),
    "RecursionError": lambda: RecursionError(WORDS),
    "OSError": lambda: OSError(errno.ENOSPC, WORDS),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, WORDS),
    "EOFError": lambda: EOFError(WORDS),
    "BrokenPipeError": lambda: BrokenPipeError(errno.EPIPE, WORDS),
    "TimeoutError": lambda: TimeoutError(WORDS),
    "RecordError": lambda: RecordError(WORDS, key="k", record=3),
    "a group": lambda: ExceptionGroup(WORDS, [ValueError("one"), HoldsLockError("two")]),
    "needs two": lambda: NeedsTwoError(WORDS, 7),
    "holds a lock": lambda: HoldsLockError(WORDS),
    "without words": SilentError,
    "poisoned": lambda: PoisonedError(WORDS),
    "no Exception": lambda: NoError(WORDS),
    "local class": lambda: local_error(WORDS),
    "deep": lambda: deep_error(WORDS),
    "huge": lambda: ValueError(WORDS + "x" * (8 << 20)),
    "lone surrogate": lambda: ValueError(WORDS + "\ud800"),
    "exit 0": lambda: os._exit(0),
    "exit 3": lambda: os._exit(3),
    "killed": lambda: ended_by(signal.SIGKILL),
}


class RaiseAt:
    """A collate that goes wrong at the batch that holds a sample."""

    def __init__(self, number: int, kind: str) -> None:
        self.number, self.kind = number, kind

    def __call__(self, samples: Any) -> list[int]:
        """Return the ids."""
        found = [sample["id"] for sample in samples]
        if self.number in found:
            error = KINDS[self.kind]()
            raise error
        return found


class DecodeAt:
    """A `deserialize` that goes wrong at a sample."""

    def __init__(self, number: int, kind: str) -> None:
        self.number, self.kind = number, kind

    def __call__(self, data: bytes) -> Any:
        """Return the record."""
        found = json.loads(data)
        if found["id"] == self.number:
            error = KINDS[self.kind]()
            raise error
        return found
