"""Asks a store again while it is in trouble: for small requests that may safely be repeated.

A store never retries by itself, and `fetch.py` retries the bodies of large objects; this is for records,
listings and small puts, whose callers would otherwise end at the first 503.
"""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from tools_utilities.errors import ConditionFailedError, StoreError

PATIENCE_SECONDS = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_Result = TypeVar("_Result")


def patiently(
    ask: Callable[[], _Result],
    *,
    seconds: float = PATIENCE_SECONDS,
    least_tries: int = 1,
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    jitter: Callable[[], float] = random.random,
) -> _Result:
    """Return what `ask` returns; after a passing failure ask again, for so many seconds and tries.

    Raises:
        StoreError: the last failure, when time is up; at once one that will not pass.
    """
    give_up = now() + seconds
    pause, tries = _FIRST_PAUSE, 0
    while True:
        tries += 1
        try:
            return ask()
        except StoreError as error:
            late = now() > give_up and tries >= least_tries
            if not error.detail.get("transient") or late:
                raise
        sleep(pause * (0.5 + jitter()))
        pause = min(2 * pause, _LONGEST_PAUSE)


def told(ask: Callable[[], _Result]) -> _Result:
    """Do a conditional put; an outcome that nobody can tell becomes a failure to be asked again.

    Raises:
        ConditionFailedError: the store said that the condition does not hold, which after an earlier
            try may be that try's own success: read before you judge.
        StoreError: nobody can say.
    """
    try:
        return ask()
    except ConditionFailedError as error:
        if not error.detail.get("unknown"):
            raise
        raise StoreError(str(error), hint=error.hint, transient=True) from error
