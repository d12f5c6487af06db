"""The only printer: results on stdout, everything else on stderr, questions where they can be seen.

Every line is escaped here (`terminal_text.render`), so nothing untrusted reaches a terminal as
markup or control bytes, and its secrets are masked (`redaction.redact`). Off a terminal, with `CI`, `NO_COLOR`, `TERM=dumb` or `--no-input` there is
no colour, no animation and no escape byte; off a terminal nothing is ever asked and stdin is never
read. A reader that goes away (`| head -1`) ends the output, not the program.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TextIO

import msgspec

from tools_utilities.errors import InputNeededError, QuarkError, said_by
from tools_utilities.redaction import redact, redact_data
from tools_utilities.terminal_picker import Choice, pick_by_line
from tools_utilities.terminal_text import (
    Line,
    Span,
    can_draw,
    fit,
    fold,
    fold_line,
    plain,
    render,
    spans_of,
    with_commands,
)

SCHEMA = 1
"""Version of the JSON written by `--json`."""
DEFAULT_COLUMNS = 80
UNKNOWN_HINT = "Run it again with --verbose to see where it happened."
DEFAULT_HINTS = {
    2: "`quark --help` shows how it is said.",
    3: "`quark discover` shows what is there.",
}
"""By exit code, for an error that gives none."""


class Surroundings(msgspec.Struct, frozen=True, kw_only=True):
    """What the environment and the command line say of the terminal."""

    term: str = ""
    no_color: bool = False
    ci: bool = False
    columns: int | None = None
    """COLUMNS, which wins over what the terminal says."""
    no_input: bool = False
    json: bool = False
    """stdout holds JSON only: one object, or one a line for the events of a run."""
    yes: bool = False
    verbose: bool = False


class Console:
    """Writes for people and programs, and asks people."""

    def __init__(
        self,
        surroundings: Surroundings | None = None,
        *,
        stdin: TextIO | None = None,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self.about = surroundings or Surroundings()
        # A standard stream is None when its descriptor was closed before the start (`<&-`).
        self._stdin = stdin if stdin is not None else sys.stdin
        self._out = stdout if stdout is not None else sys.stdout
        self._err = stderr if stderr is not None else sys.stderr
        # Where a question is answered by reading and shown on stderr: stdout may be a file.
        seen = _is_terminal(self._stdin) and _is_terminal(self._err)
        self.can_ask = seen and not self.about.ci and not self.about.no_input
        about = self.about
        self._plain = about.no_color or about.ci or about.no_input or about.term == "dumb"
        self.can_animate = _is_terminal(self._err) and not self._plain
        self.draws_blocks = can_draw(_encoding(self._err)) and can_draw(_encoding(self._out))

    def with_flags(self, **changes: bool) -> "Console":
        """Return a console at the same terminal with other flags (no_input, json, yes, verbose)."""
        about = msgspec.structs.replace(self.about, **changes)
        return Console(about, stdin=self._stdin, stdout=self._out, stderr=self._err)

    @property
    def result_width(self) -> int | None:
        """Columns of stdout; None when it is not a terminal (never fold there)."""
        return self._width(self._out)

    @property
    def note_width(self) -> int | None:
        """Columns of stderr; None when it is not a terminal."""
        return self._width(self._err)

    def result(self, lines: Iterable[Line], data: Any = None) -> None:
        """Write the result: `lines` for people or, with `--json`, `data` as one line of JSON."""
        if self.about.json:
            if data is not None:
                self._write(self._out, [_json_text(data)])
            return
        colour = _is_terminal(self._out) and not self._plain
        folded = _folded(lines, self.result_width)
        self._write(self._out, [render(line, colour=colour) for line in folded])

    def event(self, event: dict[str, Any]) -> None:
        """Write one event of a run as a line of JSON; nothing without `--json`."""
        if self.about.json:
            self._write(self._out, [_json_text(event)])

    def note(self, *lines: Line) -> None:
        """Write lines for people on stderr."""
        colour = _is_terminal(self._err) and not self._plain
        folded = _folded(lines, self.note_width)
        self._write(self._err, [render(line, colour=colour) for line in folded])

    def warn(self, message: str) -> None:
        """Write a warning."""
        self.note([Span("warning: ", "yellow"), message])

    def error(self, error: BaseException) -> int:
        """Write an error as one line and a hint, and return the program's exit code.

        With `--verbose` the traceback follows; with `--json` stdout gets an `error` object.
        """
        if isinstance(error, QuarkError):
            message, code, detail = str(error), error.exit_code, error.detail
            hint = error.hint or DEFAULT_HINTS.get(code, UNKNOWN_HINT)
        else:
            message, code, detail = said_by(error), 1, {}
            hint = UNKNOWN_HINT
        self.failure(message, hint)
        if self.about.verbose:
            import traceback

            text = "".join(traceback.format_exception(error))
            self.note(*text.rstrip().split("\n"))
        self.event(
            {"schema": SCHEMA, "event": "error", "kind": type(error).__name__}
            | {"message": message, "hint": hint, "exit_code": code, "detail": detail}
        )
        return code

    def failure(self, message: str, hint: str) -> None:
        """Write one line of error and one of hint."""
        self.note([Span("error: ", "error"), message])
        if hint:
            self.note([Span("hint: ", "cyan"), *with_commands(hint)])

    def confirm(
        self,
        question: str,
        *,
        default: bool = True,
        explain: Callable[[str], Sequence[Line] | None] = lambda _answer: None,
    ) -> bool:
        """Ask yes or no at the terminal; the end of input is no.

        `explain(answer)` returns what another answer is answered with, or None.

        Raises:
            InputNeededError: nobody can be asked.
        """
        answers = {"y": True, "yes": True, "n": False, "no": False, "": default}
        while True:
            answer = self.read_line(f"{question} [{'Y/n' if default else 'y/N'}] ")
            if answer is None:
                return False
            if answer.strip().lower() in answers:
                return answers[answer.strip().lower()]
            self.note(*(explain(answer) or ["Please answer y or n."]))

    def ask(self, question: str) -> str:
        """Ask for one line of text; empty when the input ended.

        Raises:
            InputNeededError: nobody can be asked.
        """
        return (self.read_line(f"{question} ") or "").strip()

    def menu(self, question: str, choices: Sequence[str]) -> int | None:
        """Ask for one of `choices` and return its index; None when nothing was chosen.

        Raises:
            InputNeededError: nobody can be asked.
        """
        self.note(question, *[f"  {i}  {choice}" for i, choice in enumerate(choices, 1)])
        while True:
            answer = self.read_line(f"Which one? [1-{len(choices)}] ")
            if not answer or not answer.strip():
                return None
            if answer.strip().isdecimal() and 1 <= int(answer) <= len(choices):
                return int(answer) - 1
            self.note(f"Please answer a number from 1 to {len(choices)}.")

    def pick(
        self, question: str, choices: Sequence[Choice], preview: Callable[[int], list[str]]
    ) -> list[int]:
        """Let the person pick some of `choices`; returns their indices, empty when none.

        Arrows and space on a capable terminal, else a numbered list and a line of input.
        `preview(index)` returns lines that show what a choice holds.

        Raises:
            InputNeededError: nobody can be asked.
        """
        if not self.can_ask:
            raise InputNeededError(f"{question}: nobody to ask here", hint="Use --groups.")
        if self.can_animate and self._err is not None and self._stdin is not None:
            from tools_utilities.terminal_menu import pick_by_keys

            return pick_by_keys(
                question, choices, preview, stdin=self._stdin, stderr=self._err, fit=self._fit
            )
        return pick_by_line(
            question, choices, preview, width=self.note_width, say=self.note, ask=self.read_line
        )

    @contextlib.contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Show, while the block runs, what is being waited for; gone again after it at a terminal."""
        if not self.can_animate or self._err is None:
            self.note(what)
            yield
            return
        line = fold(redact(what), (self.note_width or DEFAULT_COLUMNS) - 2)[0]
        self._raw(f"\x1b[2m{self._fit(line)}\x1b[0m")
        try:
            yield
        finally:
            self._raw("\r\x1b[K")

    @contextlib.contextmanager
    def live(self) -> Iterator[Callable[[Sequence[Line]], None]]:
        """Yield a function that repaints a block of lines on stderr; only where `can_animate`."""
        from rich.console import Console as RichConsole
        from rich.live import Live
        from rich.text import Text

        painter = RichConsole(
            file=self._err, width=self.note_width, force_terminal=True, markup=False, emoji=False,
            highlight=False, color_system="standard", legacy_windows=False,
        )  # fmt: skip
        with Live(console=painter, auto_refresh=False, redirect_stdout=False, redirect_stderr=False,
                  vertical_overflow="crop") as live:  # fmt: skip

            def paint(lines: Sequence[Line]) -> None:
                text = Text(no_wrap=True, overflow="crop")
                for i, line in enumerate(lines):
                    text.append("\n" if i else "")
                    for span in spans_of(line):
                        text.append(
                            self._fit(redact(plain([span]))), RICH_STYLES.get(span.style, "")
                        )
                live.update(text, refresh=True)

            yield paint

    def read_line(self, prompt: str) -> str | None:
        """Ask for one line as it is typed; None at the end of input.

        Raises:
            InputNeededError: nobody can be asked.
        """
        if not self.can_ask or self._stdin is None:
            raise InputNeededError(
                f"an answer is needed and there is no terminal to ask at: {prompt.strip()}",
                hint="Run it at a terminal, or give the answer as a flag.",
            )
        self._raw(self._fit(redact(plain(prompt))))
        answer = self._stdin.readline()
        if not answer:
            self._raw("\n")
            return None
        return answer.rstrip("\n")

    def terminal(self) -> tuple[TextIO, TextIO]:
        """Return (stdin, stderr), for what draws at the terminal itself; only where `can_animate`."""
        if self._stdin is None or self._err is None:
            raise InputNeededError("there is no terminal here")
        return self._stdin, self._err

    def _fit(self, text: str) -> str:
        return fit(text, _encoding(self._err))

    def _raw(self, text: str) -> None:
        if self._err is not None:
            with contextlib.suppress(OSError):  # the terminal is gone: nobody to tell
                self._err.write(text)
                self._err.flush()

    def _write(self, stream: TextIO | None, lines: Sequence[str]) -> None:
        if stream is None:
            return
        text = "".join(f"{line}\n" for line in lines)
        try:
            stream.write(fit(text, _encoding(stream)))
            stream.flush()
        except OSError as error:
            # A pipe whose reader left, a terminal that was closed. A full disk is an error.
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            self._drop(stream)

    def _drop(self, stream: TextIO) -> None:
        """Send what follows nowhere: the reader left, and Python flushes once more at exit."""
        null = os.open(os.devnull, os.O_WRONLY)
        with contextlib.suppress(OSError, ValueError):
            os.dup2(null, stream.fileno())
        os.close(null)

    def _width(self, stream: TextIO | None) -> int | None:
        if not _is_terminal(stream) or stream is None:
            return None
        if self.about.columns:
            return max(20, self.about.columns)
        try:
            return os.get_terminal_size(stream.fileno()).columns or DEFAULT_COLUMNS
        except OSError:
            return DEFAULT_COLUMNS


def make_console(
    *, no_input: bool = False, json: bool = False, yes: bool = False, verbose: bool = False
) -> Console:
    """Return a console that knows what the environment says of the terminal."""
    from tools_utilities.settings import read_environment

    around = read_environment()
    return Console(
        Surroundings(
            term=around.term,
            no_color=around.no_color,
            ci=around.ci,
            columns=around.columns,
            no_input=no_input,
            json=json,
            yes=yes,
            verbose=verbose,
        )
    )


RICH_STYLES = {
    "bold": "bold",
    "dim": "dim",
    "red": "red",
    "green": "green",
    "yellow": "yellow",
    "cyan": "cyan",
    "error": "bold red",
    "title": "bold cyan",
    "command": "bold",
}


def _folded(lines: Iterable[Line], width: int | None) -> Iterable[Line]:
    """Return lines that fit a terminal, cut between words; off one they stay whole.

    Secrets are masked before: none is told in pieces.
    """
    clean = [redacted(line) for line in lines]
    if width is None:
        return clean
    return [piece for line in clean for piece in fold_line(line, width)]


def redacted(line: Line) -> Line:
    """Return a line without secrets; one that runs over several looks costs the line its looks."""
    spans = [Span(redact(span.text), span.style) for span in spans_of(line)]
    text = "".join(span.text for span in spans)
    return spans if redact(text) == text else redact(text)


def _encoding(stream: TextIO | None) -> str:
    return getattr(stream, "encoding", None) or "utf-8"


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except ValueError:  # closed
        return False


def _json_text(data: Any) -> str:
    # ASCII only: a JSON reader gets the same text back whatever the locale's encoding is.
    import json

    return json.dumps(redact_data(data), ensure_ascii=True, allow_nan=False, default=_json_value)


def _json_value(value: Any) -> Any:
    return redact_data(msgspec.to_builtins(value))
