"""Log records and tracebacks without secrets, whatever handler writes them."""

import logging
import traceback
import warnings
from types import TracebackType
from typing import Any, TextIO

from tools_utilities.redaction import redact

_PYTHONS_OWN = warnings.showwarning


class RedactedRecord(logging.LogRecord):
    """A record whose text is clean for every handler: message, traceback and stack."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exc_info and self.exc_info[1] is not None:
            # Handlers format an exception themselves unless its text is there already.
            self.exc_text = shown_traceback(*self.exc_info).rstrip("\n")

    def getMessage(self) -> str:  # noqa: N802 - logging's name
        """Return the message, its arguments in it, without secrets."""
        return redact(super().getMessage())

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "stack_info" and value:
            value = redact(value)
        super().__setattr__(name, value)


def redact_records() -> None:
    """Make clean records from now on, in all loggers of the process; and warnings too."""
    logging.setLogRecordFactory(RedactedRecord)
    if warnings.showwarning is _PYTHONS_OWN:
        warnings.showwarning = _show_warning


def shown_traceback(
    kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> str:
    """Return an exception as Python prints it, without secrets."""
    return redact("".join(traceback.format_exception(kind, error, trace)))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    import sys

    out = sys.stderr if file is None else file
    if out is not None:
        out.write(redact(warnings.formatwarning(message, category, filename, lineno, line)))
