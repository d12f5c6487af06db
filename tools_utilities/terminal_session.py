"""The interactive session: a line with history, completion and its reading below; prompt-toolkit.

Imports prompt-toolkit, so it is imported where it is used. Knows the language only through the
`read` it is given.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app, run_in_terminal
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completer
from prompt_toolkit.data_structures import Size
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style

from tools_utilities.reading_dialogue import ReadingLike, marks_of
from tools_utilities.redaction import redact
from tools_utilities.terminal_text import fit, shown

PROMPT = "quark> "
GAP = " · "
IDLE_HELP = GAP.join(("? shows examples", "Tab completes", "Ctrl-D leaves", "Ctrl-R searches"))
UTF_8 = "utf-8"
"""What a stream in memory is taken for: it names no encoding."""
SESSION_ROWS = 7
"""The line, five of completions, the reading."""
LEAVE_WORDS = frozenset({"exit", "quit"})
STATUS_WORDS = {
    "unaccounted": "not understood",
    "incomplete": "not complete",
    "ambiguous": "two readings",
    "conflict": "said twice",
    "corrected": "read as",
}
"""A reading's status as people say it."""
STYLE = Style.from_dict({"bottom-toolbar": "noreverse", "unowned": "underline ansired"})


class SessionActions(NamedTuple):
    """What a session does with what is typed."""

    read: Callable[[str], ReadingLike]
    run: Callable[[str], int]
    """Carries a sentence out and returns its exit code."""
    confirm: Callable[[str], bool]
    say: Callable[[Sequence[str]], None]
    """Shows lines, escaped."""
    examples: Callable[[], Sequence[str]] = tuple


_TAB_TRIES = 200
_TAB_SECONDS = 0.01


class Session:
    """Reads sentences at a terminal and carries them out until the person leaves."""

    def __init__(
        self,
        actions: SessionActions,
        *,
        completer: Completer,
        history: History,
        keys: Input,
        output: Output,
    ) -> None:
        self._actions = actions
        self._offered: str | None = None
        """The line whose completions were asked for by Tab; one more goes through them."""
        self._prompt: PromptSession[str] = PromptSession(
            history=history,
            completer=completer,
            complete_while_typing=True,
            # In a thread: a slow disk delays the menu, never a key.
            complete_in_thread=True,
            auto_suggest=AutoSuggestFromHistory(),
            bottom_toolbar=self.toolbar,
            key_bindings=self._bindings(),
            style=STYLE,
            reserve_space_for_menu=5,
            input=keys,
            output=output,
        )

    def loop(self) -> int:
        """Read and carry out until Ctrl-D, `exit` or `quit`; returns 0."""
        while True:
            try:
                text = self._prompt.prompt(PROMPT)
            except EOFError:
                return 0
            except KeyboardInterrupt:  # between two keys: the line is cleared
                continue
            if text.strip() in LEAVE_WORDS:
                return 0
            self._carry_out(text)

    def _carry_out(self, text: str) -> None:
        """Carry out one line, or several that were pasted, if the person wants them all."""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if len(lines) > 1:
            self._actions.say([f"  {number}  {line}" for number, line in enumerate(lines, start=1)])
            if not self._actions.confirm(f"Run these {len(lines)} commands, one after the other?"):
                self._actions.say(["Nothing was run."])
                return
        for number, line in enumerate(lines, start=1):
            if line == "?":
                self._actions.say(self._actions.examples())
                continue
            code = self._actions.run(line)
            if code and number < len(lines):
                self._actions.say([f"stopped: {len(lines) - number} more were not run"])
                return

    def toolbar(self) -> StyleAndTextTuples:
        """Return the line below: the sentence as it is read, unowned words underlined."""
        text = get_app().current_buffer.text
        output = get_app().output
        width = output.get_size().columns - 1
        line = reading_line(self._actions.read, text, width)
        # Before it is laid out: an escape takes more cells than the character it stands for.
        return _cut(
            [(style, fit(part, output.encoding() or UTF_8)) for style, part, *_ in line], width
        )

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        is_empty = Condition(lambda: not get_app().current_buffer.text)

        @bindings.add("c-c")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.reset()

        @bindings.add("tab")
        def _(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            state = buffer.complete_state
            chosen = state is not None and state.complete_index is not None
            if chosen or (state is not None and buffer.text == self._offered):
                buffer.complete_next()
            elif state is not None and len(state.completions) == 1:
                # Taken at once, for what is typed next; what lies below it is offered.
                buffer.apply_completion(state.completions[0])
                buffer.start_completion(select_first=False)
            else:
                event.app.create_background_task(self._take(buffer))

        @bindings.add("?", filter=is_empty)
        def _(_event: KeyPressEvent) -> None:
            run_in_terminal(lambda: self._actions.say(self._actions.examples()))

        return bindings

    async def _take(self, buffer: Buffer) -> None:
        """Take what all completions have in common; where that is nothing, they stand offered.

        prompt_toolkit drops a request while completions of what was typed are still being made, so
        it is made again until one is heard: a Tab right behind a letter must not be lost.
        """
        text = buffer.text
        buffer.cancel_completion()
        for _ in range(_TAB_TRIES):
            buffer.start_completion(insert_common_part=True)
            await asyncio.sleep(_TAB_SECONDS)
            if buffer.text != text:
                return
            if buffer.complete_state is not None:
                break
        self._offered = text

    def redraw(self) -> None:
        """Offer completions anew; may be called from another thread."""
        app = self._prompt.app
        loop = app.loop
        if loop is not None and app.is_running:
            buffer = self._prompt.default_buffer
            loop.call_soon_threadsafe(lambda: app.create_background_task(offer_completions(buffer)))


async def offer_completions(buffer: Buffer) -> None:
    """Offer what may complete the text as it is now, until it is offered or the text is another.

    As in a Tab: a request that comes while letters are being completed is dropped. While they are,
    the buffer has a state already, an empty one that goes away when nothing is found.
    """
    text = buffer.text
    for _ in range(_TAB_TRIES):
        state = buffer.complete_state
        if not text or buffer.text != text or (state is not None and state.completions):
            return
        buffer.start_completion(select_first=False)
        await asyncio.sleep(_TAB_SECONDS)


def reading_line(read: Callable[[str], ReadingLike], text: str, width: int) -> StyleAndTextTuples:
    """Return a sentence's reading in one line: status, then what it says or what is unowned."""
    sentence = " ".join(text.split("\n")).strip()
    if not sentence:
        return [("", _whole(IDLE_HELP, width))]
    reading = read(sentence)
    head = f"{STATUS_WORDS.get(reading.status, reading.status)} {reading.intent or ''}".strip()
    parts: StyleAndTextTuples = [("bold", f"{head}: ")]
    unowned = [mark for mark in marks_of(reading) if mark.style == "error"]
    if unowned:
        at = 0
        for mark in sorted(unowned):
            parts.append(("", shown(sentence[at : mark.start])))
            parts.append(("class:unowned", shown(sentence[mark.start : mark.end])))
            at = mark.end
        parts.append(("", shown(sentence[at:])))
    elif reading.questions and reading.status != "corrected":
        parts.append(("", shown(reading.questions[0].text)))
    else:
        parts.append(("", shown(reading.canonical or "")))
    return _cut(parts, width)


def _whole(text: str, width: int) -> str:
    """Return as many of the facts as fit, none of them cut."""
    facts = text.split(GAP)
    while len(facts) > 1 and len(GAP.join(facts)) > width:
        facts.pop()
    return GAP.join(facts)


def _cut(parts: StyleAndTextTuples, width: int) -> StyleAndTextTuples:
    """Return the parts that fit into one line."""
    kept: StyleAndTextTuples = []
    for style, text, *_ in parts:
        if len(text) > width:
            return [*kept, (style, text[: max(0, width - 1)] + "…" if width else "")]
        kept.append((style, text))
        width -= len(text)
    return kept


def history_in(folder: Path | None) -> History:
    """Return the history kept in a folder, readable by its owner alone; in memory where that fails."""
    if folder is None:
        return InMemoryHistory()
    path = folder / "history"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError:
        return InMemoryHistory()
    return RedactedHistory(str(path))


class RedactedHistory(FileHistory):
    """Keeps lines without the secrets that were typed in them."""

    def store_string(self, string: str) -> None:
        """Append a line."""
        super().store_string(redact(string))


class SessionOutput(Vt100_Output):
    """A terminal that is never asked where its cursor is: some do not answer, and keys would wait.

    Instead the rows below the line are taken for granted; a terminal without them scrolls.
    """

    def write(self, data: str) -> None:
        """Write text; what the terminal's encoding lacks as escapes."""
        super().write(fit(data, self.encoding() or UTF_8))

    def get_rows_below_cursor_position(self) -> int:
        """Return the rows that the line, the menu and the reading take."""
        return min(SESSION_ROWS, self.get_size().rows)


def terminal_of(stdin: TextIO, stderr: TextIO) -> tuple[Input, Output]:
    """Return a terminal for a session; drawn on stderr, since stdout holds results."""

    def size() -> Size:
        try:
            found = os.get_terminal_size(stderr.fileno())
        except OSError:
            return Size(rows=24, columns=80)
        return Size(rows=found.lines or 24, columns=found.columns or 80)

    return create_input(stdin), SessionOutput(stderr, size, enable_cpr=False)
