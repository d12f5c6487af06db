"""The picker of capable terminals: arrows and space, or a typed answer; prompt-toolkit draws it.

Imports prompt-toolkit, so it is imported where it is used.
"""

import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TextIO

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point, Size
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.output import Output
from prompt_toolkit.output.vt100 import Vt100_Output

from tools_utilities.errors import UsageError
from tools_utilities.terminal_picker import PICK_HELP, Choice, parse_picks
from tools_utilities.terminal_text import caseless, fold, shown

KEYS_HELP = "arrows move · space marks · Enter takes · Esc leaves"


class Menu:
    """What the picker shows and knows; `press` changes it. Draws nothing itself."""

    def __init__(
        self, question: str, choices: Sequence[Choice], preview: Callable[[int], list[str]]
    ) -> None:
        self.question = question
        self.choices = choices
        self.preview = preview
        self.listed = list(range(len(choices)))
        self.at = 0
        self.marked: set[int] = set()
        self.typed = ""
        self.below: list[str] = []
        """A preview, or what was wrong with the last answer."""

    def move(self, step: int) -> None:
        """Move the cursor, around the ends."""
        if self.listed:
            self.at = (self.at + step) % len(self.listed)

    def type(self, char: str) -> None:
        """Take one typed character; a space with nothing typed marks the line instead."""
        if char == " " and not self.typed:
            if self.listed:
                self.marked ^= {self.listed[self.at]}
        elif char.isprintable():
            self.typed += char

    def enter(self) -> list[int] | None:
        """Act on Enter: return the picked indices, or None to go on."""
        typed, self.typed, self.below = self.typed.strip(), "", []
        sizes = [choice.size_bytes for choice in self.choices]
        if typed.startswith("/"):
            self._filter(typed[1:])
            return None
        try:
            asked_preview = re.fullmatch(r"p(?:review)?\s*(\d*)", typed) if typed else None
            if asked_preview:
                number = asked_preview[1] or str(self.listed[self.at] + 1)
                [index] = parse_picks(number, sizes)
                self.below = self.preview(index)
                return None
            if typed:
                return parse_picks(typed, sizes)
        except UsageError as error:
            self.below = [f"{error}. {error.hint}"]
            return None
        return sorted(self.marked) or ([self.listed[self.at]] if self.listed else None)

    def _filter(self, text: str) -> None:
        wanted = caseless(text)
        found = [i for i, choice in enumerate(self.choices) if wanted in caseless(choice.name)]
        self.below = [] if found else [f"No group's name holds {text!r}."]
        self.listed = found or list(range(len(self.choices)))
        self.at = 0

    def lines(self, width: int) -> tuple[list[tuple[str, str]], int]:
        """Return styled lines that fit `width`, and the index of the cursor's line."""
        rows: list[tuple[str, str]] = [("bold", line) for line in fold(self.question, width)]
        cursor_row = 0
        for place, index in enumerate(self.listed):
            choice = self.choices[index]
            here = place == self.at
            cursor_row = len(rows) if here else cursor_row
            mark = "x" if index in self.marked else " "
            head, *rest = fold(choice.name, width, indent=" " * 10)
            style = "reverse" if here else ""
            rows.append(
                (
                    style,
                    f"{'>' if here else ' '}{index + 1:3} [{mark}] {head.removeprefix(' ' * 10)}",
                )
            )
            rows.extend((style, line) for line in rest)
            score, *facts = choice.facts
            why = f": {choice.why}" if choice.why and here else ""
            about = f"{' · '.join(facts)} · score {score}{why}"
            rows.extend(("", line) for line in fold(about, width, indent=" " * 10))
        rows.extend(("", line) for text in self.below for line in fold(text, width, indent="  "))
        return rows, cursor_row

    def footer(self, width: int) -> list[tuple[str, str]]:
        """Return the lines that stay at the bottom: what the keys do, and what was typed."""
        rows = [("", line) for line in fold(f"{KEYS_HELP} · {PICK_HELP}", width)]
        return [*rows, ("bold", f"> {shown(self.typed)}")]


def pick_by_keys(
    question: str,
    choices: Sequence[Choice],
    preview: Callable[[int], list[str]],
    *,
    stdin: TextIO,
    stderr: TextIO,
    fit: Callable[[str], str],
) -> list[int]:
    """Run the menu on a terminal; returns picked indices, empty when the person left.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    # Asking the terminal for its cursor position stalls on terminals that do not answer.
    output = Vt100_Output(stderr, lambda: _size_of(stderr), enable_cpr=False)
    return run_menu(Menu(question, choices, preview), create_input(stdin), output, fit)


def _size_of(stream: TextIO) -> Size:
    try:
        size = os.get_terminal_size(stream.fileno())
    except OSError:
        return Size(rows=24, columns=80)
    return Size(rows=size.lines or 24, columns=size.columns or 80)


def run_menu(menu: Menu, keys: Input, output: Output, fit: Callable[[str], str]) -> list[int]:
    """Show `menu` on any prompt-toolkit input and output until it ends."""

    def width() -> int:
        return output.get_size().columns - 1

    def text_of(rows: list[tuple[str, str]]) -> StyleAndTextTuples:
        return [(style, fit(text) + "\n") for style, text in rows]

    above = FormattedTextControl(
        lambda: text_of(menu.lines(width())[0]),
        get_cursor_position=lambda: Point(x=0, y=menu.lines(width())[1]),
        show_cursor=False,
    )
    below = FormattedTextControl(lambda: text_of(menu.footer(width())), show_cursor=False)
    layout = HSplit(
        [
            Window(above, always_hide_cursor=True, dont_extend_height=True),
            # The list scrolls when there is no room; this stays in sight.
            Window(below, height=lambda: len(menu.footer(width())), dont_extend_height=True),
        ]
    )
    app: Application[list[int]] = Application(
        layout=Layout(layout),
        key_bindings=_bindings(menu),
        input=keys,
        output=output,
        erase_when_done=True,
    )
    return app.run()


def _bindings(menu: Menu) -> KeyBindings:
    bindings = KeyBindings()

    def bind(*keys: Any) -> Callable[[Callable[[KeyPressEvent], None]], None]:
        def add(handler: Callable[[KeyPressEvent], None]) -> None:
            for key in keys:
                bindings.add(key)(handler)

        return add

    bind(Keys.Up, Keys.ControlP)(lambda _event: menu.move(-1))
    bind(Keys.Down, Keys.ControlN)(lambda _event: menu.move(1))
    bind(Keys.Escape, Keys.ControlD)(lambda event: event.app.exit(result=[]))
    bind(Keys.ControlC, Keys.SIGINT)(lambda event: event.app.exit(exception=KeyboardInterrupt()))

    @bind(Keys.Backspace)
    def _(_event: KeyPressEvent) -> None:
        menu.typed = menu.typed[:-1]

    @bind(Keys.Enter)
    def _(event: KeyPressEvent) -> None:
        picked = menu.enter()
        if picked is not None:
            event.app.exit(result=picked)

    @bind(Keys.Any, Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        for char in event.data:
            menu.type(char)

    return bindings
