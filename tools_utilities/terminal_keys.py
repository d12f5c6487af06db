"""Single keys at a terminal, while something else is being watched there: nothing waits for them."""

import contextlib
import os
import select
from collections.abc import Callable, Iterator
from typing import TextIO


@contextlib.contextmanager
def pressed_keys(stdin: TextIO) -> Iterator[Callable[[], str]]:
    """Yield a function that returns what has been typed since it was last called, or "".

    Keys come without Enter and are not echoed; Ctrl-C and Ctrl-Z stay signals. The terminal is put back
    afterwards. Of a terminal that belongs to another process just now, nothing is read; nor of what only
    says that it is one.
    """
    import termios
    import tty

    try:
        descriptor = stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (OSError, ValueError, termios.error):
        yield lambda: ""  # a notebook's, or one that is closed: nothing is typed there
        return

    def read() -> str:
        # In the background, reading would stop this process.
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return ""
        if not select.select([descriptor], [], [], 0)[0]:
            return ""
        return os.read(descriptor, 64).decode("utf-8", "ignore")

    def read_or_nothing() -> str:
        with contextlib.suppress(OSError):  # the terminal is gone
            return read()
        return ""

    tty.setcbreak(descriptor, termios.TCSANOW)
    try:
        yield read_or_nothing
    finally:
        with contextlib.suppress(termios.error, OSError):
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
