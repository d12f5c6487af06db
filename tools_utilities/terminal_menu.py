"""The picker of capable terminals: arrows and space, or a typed answer; prompt-toolkit draws it.

Imports prompt-toolkit, so it is imported where it is used.
"""

import contextlib
import os
import re
import threading
from collections.abc import Callable, Sequence
from typing import TextIO

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Point, Size
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import FormattedTextControl, HSplit, Layout, Window
from prompt_toolkit.output import Output
from prompt_toolkit.output.vt100 import Vt100_Output

from tools_utilities.background import BACKGROUND
from tools_utilities.errors import UsageError
from tools_utilities.terminal_picker import FACTS, SORTS, Choice, order_of, parse_picks
from tools_utilities.terminal_text import caseless, fold, pad, shown, width_of

KEYS_HELP = (
    "arrows, PgUp, PgDn move · space marks · Enter takes · p previews · s sorts · /text filters ·"
    " 1,3-5, all, largest take · Esc leaves"
)
SHORT_HELP = "space marks · Enter takes · p previews · s sorts · /text · Esc"
LOW_ROWS = 16
"""A terminal with fewer rows gets the short help, so that a preview has room."""
LEAST_ROWS = 3
"""Rows of the list that a preview leaves in sight."""
INDENT = " " * 10


class Menu:
    """What the picker shows and knows; its methods change it. Draws nothing itself."""

    def __init__(
        self, question: str, choices: Sequence[Choice], preview: Callable[[int], list[str]]
    ) -> None:
        self.question = question
        self.choices = choices
        self.listed = list(range(len(choices)))
        self.at = 0
        self.marked: set[int] = set()
        self.typed = ""
        self.below: list[str] = []
        """A preview, or what was wrong with the last answer."""
        self.fetch: Callable[[int], None] = lambda index: self.take_preview(index, preview(index))
        """Gets a preview and gives it to `take_preview`, now or later."""
        self._previews: dict[int, list[str]] = {}
        self._wanted: int | None = None
        self._sizes = [choice.size_bytes for choice in choices]
        self._filter = ""
        self._sorted_by = SORTS[0]
        self._top = 0
        self._page = 1
        self._names = [caseless(choice.name) for choice in choices]
        columns = zip(FACTS, *(choice.facts for choice in choices), strict=True)
        self._widths = [max(width_of(fact) for fact in column) for column in columns]
        longest = max((width_of(choice.name) for choice in choices), default=0)
        self._row_width = len(INDENT) + 1 + sum(self._widths) + 2 * len(FACTS) + longest

    def move(self, step: int) -> None:
        """Move the cursor, around the ends."""
        if self.listed:
            self.at = (self.at + step) % len(self.listed)

    def turn(self, pages: int) -> None:
        """Move the cursor by what was in sight, up to the ends."""
        self.go(self.at + pages * self._page)

    def go(self, place: int) -> None:
        """Move the cursor to a place in the list, or to the end next to it."""
        self.at = max(0, min(place, len(self.listed) - 1))

    def type(self, char: str) -> None:
        """Take one typed character; with nothing typed a space, `p` and `s` act at once."""
        if self.typed == "p" and not char.isdecimal():
            self.typed = ""  # `p` alone has shown its preview already
        if not self.typed and char in " ps":
            self._act(char)
        elif char.isprintable():
            self.typed += char
            if self.typed.startswith("/"):
                self.below, self._wanted = [], None
                self._list(self.typed[1:], self._sorted_by)

    def _act(self, char: str) -> None:
        if char == " " and self.listed:
            self.marked ^= {self.listed[self.at]}
        elif char == "p" and self.listed:
            self.typed = "p"  # digits may follow: p12
            self._preview(self.listed[self.at])
        elif char == "s":
            self._list(self._filter, SORTS[(SORTS.index(self._sorted_by) + 1) % len(SORTS)])

    def erase(self) -> None:
        """Take the last typed character back."""
        is_filter = self.typed.startswith("/")
        self.typed = self.typed[:-1]
        if is_filter:
            self._list(self.typed[1:], self._sorted_by)

    def leave(self) -> bool:
        """Take back what was typed, shown or filtered; True when there was nothing: leave."""
        busy = bool(self.typed or self.below or self._filter)
        self.typed, self.below, self._wanted = "", [], None
        if self._filter:
            self._list("", self._sorted_by)
        return not busy

    def enter(self) -> list[int] | None:
        """Act on Enter: return the picked indices, or None to go on."""
        typed, self.typed = self.typed.strip(), ""
        self.below, self._wanted = [], None
        if typed == "p":
            typed = ""
        if typed.startswith("/"):
            if not self.listed:
                self.below = [f"No group's name holds {self._filter!r}."]
                self._list("", self._sorted_by)
            return None
        try:
            asked_preview = re.fullmatch(r"p(?:review)?\s*(\d+)", typed) if typed else None
            if asked_preview:
                [index] = parse_picks(asked_preview[1], self._sizes)
                self._preview(index)
                return None
            if typed:
                return parse_picks(typed, self._sizes)
        except UsageError as error:
            self.below = [f"{error}. {error.hint}"]
            return None
        return sorted(self.marked) or ([self.listed[self.at]] if self.listed else None)

    def _preview(self, index: int) -> None:
        self._wanted = index
        if index in self._previews:
            self.below = self._previews[index]
            return
        self.below = [f"{self.choices[index].name}: reading records …"]
        self.fetch(index)

    def take_preview(self, index: int, lines: list[str]) -> None:
        """Take the records of a choice; shown if they are still wanted."""
        self._previews[index] = lines
        if self._wanted == index:
            self.below = lines

    def _list(self, text: str, sort: str) -> None:
        """List the choices whose names hold `text`, the cursor staying on its choice."""
        here = self.listed[self.at] if self.listed else None
        self._filter, self._sorted_by = text, sort
        wanted = caseless(text)
        found = [i for i in order_of(self.choices, sort) if wanted in self._names[i]]
        self.listed = found
        self.at = found.index(here) if here in found else 0

    def lines(self, width: int, height: int | None = None) -> tuple[list[tuple[str, str]], int]:
        """Return styled lines that fit `width` (and `height`), and the index of the cursor's line."""
        rows: list[tuple[str, str]] = [("bold", line) for line in fold(self.question, width)]
        below = [("", line) for text in self.below for line in fold(text, width, indent="  ")]
        table = self._row_width <= width
        if table:
            rows.append(("dim", "    #      " + _row(FACTS, "group", self._widths)))
        room = None
        if height is not None:
            room = max(LEAST_ROWS, height - len(rows) - 1 - min(len(below), height // 2))
        listed, cursor_row = self._window(width, room)
        # Made after the window, which it tells of.
        rows = (
            [*rows[:-1], ("dim", fold(self._state(), width)[0]), *rows[-1:]]
            if table
            else [*rows, ("dim", fold(self._state(), width)[0])]
        )
        cursor_row += len(rows)
        rows += listed
        if height is not None and len(rows) + len(below) > height:
            below = below[: max(0, height - len(rows))]
        return [*rows, *below], cursor_row

    def _state(self) -> str:
        first = min(self._top + 1, len(self.listed))
        last = min(self._top + self._page, len(self.listed))
        facts = [f"{first}-{last} of {len(self.listed):,}", f"by {self._sorted_by}"]
        if len(self.listed) < len(self.choices):
            facts.append(f"holding {shown(self._filter)!r}")
        if self.marked:
            facts.insert(0, f"{len(self.marked)} marked")  # the end is what a narrow screen loses
        return " · ".join(facts)

    def _window(self, width: int, room: int | None) -> tuple[list[tuple[str, str]], int]:
        """Return the rows in sight and where the cursor's are among them."""
        if room is None:
            self._top = 0
        self._top = min(self._top, self.at)
        # From the top to the cursor must fit; the top moves down until it does.
        blocks = {self.at: self._block(self.at, width)}
        used, top = len(blocks[self.at]), self.at
        while top > self._top:
            block = self._block(top - 1, width)
            if room is not None and used + len(block) > room:
                break
            top -= 1
            used += len(block)
            blocks[top] = block
        self._top = top
        place = self.at + 1
        while place < len(self.listed):
            block = self._block(place, width)
            if room is not None and used + len(block) > room:
                break
            used += len(block)
            blocks[place] = block
            place += 1
        self._page = max(1, place - self._top)
        rows: list[tuple[str, str]] = []
        cursor_row = 0
        for at in range(self._top, place):
            cursor_row = len(rows) if at == self.at else cursor_row
            rows += blocks[at]
        return rows, cursor_row

    def _block(self, place: int, width: int) -> list[tuple[str, str]]:
        """Return the rows of one choice: one where all fit, else its name and then its facts."""
        if not self.listed:
            return [("", f"  no group's name holds {self._filter!r}")]
        index = self.listed[place]
        choice, here = self.choices[index], place == self.at
        mark = "x" if index in self.marked else " "
        style = "reverse" if here else ""
        lead = f"{'>' if here else ' '}{index + 1:4} [{mark}] "
        why = [
            ("", line)
            for line in (fold(choice.why, width, indent=INDENT) if choice.why and here else [])
        ]
        if self._row_width <= width:
            return [(style, lead + _row(choice.facts, choice.name, self._widths)), *why]
        head, *rest = fold(choice.name, width, indent=INDENT)
        score, *facts = choice.facts
        about = f"{' · '.join(facts)} · score {score}"
        return [
            (style, lead + head.removeprefix(INDENT)),
            *((style, line) for line in rest),
            *(("", line) for line in fold(about, width, indent=INDENT)),
            *why,
        ]

    def footer(self, width: int, rows_there: int = LOW_ROWS) -> list[tuple[str, str]]:
        """Return the lines that stay at the bottom: what the keys do, and what was typed."""
        text = KEYS_HELP if rows_there >= LOW_ROWS else SHORT_HELP
        rows = [("", line) for line in fold(text, width)]
        return [*rows, ("bold", f"> {shown(self.typed)}")]


def _row(facts: Sequence[str], name: str, widths: Sequence[int]) -> str:
    score, objects, size, kind = (
        pad(fact, cells, right=place < len(widths) - 1)
        for place, (fact, cells) in enumerate(zip(facts, widths, strict=True))
    )
    return f"{score}  {objects}  {size}  {kind}  {shown(name)}"


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

    def text_of(rows: list[tuple[str, str]]) -> StyleAndTextTuples:
        return [(style, fit(text) + "\n") for style, text in rows]

    def drawn() -> tuple[list[tuple[str, str]], int]:
        size = output.get_size()
        width = size.columns - 1
        return menu.lines(width, max(LEAST_ROWS, size.rows - len(footer()) - 1))

    def footer() -> list[tuple[str, str]]:
        size = output.get_size()
        return menu.footer(size.columns - 1, size.rows)

    above = FormattedTextControl(
        lambda: text_of(drawn()[0]),
        get_cursor_position=lambda: Point(x=0, y=drawn()[1]),
        show_cursor=False,
    )
    below = FormattedTextControl(lambda: text_of(footer()), show_cursor=False)
    upper = Window(above, always_hide_cursor=True, dont_extend_height=True)
    lower = Window(below, height=lambda: len(footer()), dont_extend_height=True)
    app: Application[list[int]] = Application(
        layout=Layout(HSplit([upper, lower])),
        key_bindings=_bindings(menu),
        input=keys,
        output=output,
        erase_when_done=True,
    )
    fetch_now = menu.fetch

    def fetch(index: int) -> None:
        with BACKGROUND.piece():
            fetch_now(index)
        with contextlib.suppress(RuntimeError):  # the menu has ended meanwhile, and its loop
            app.invalidate()

    # A store that does not answer must not hold the keys.
    menu.fetch = lambda index: threading.Thread(
        target=fetch, args=(index,), daemon=True, name="preview"
    ).start()
    return app.run()


def _bindings(menu: Menu) -> KeyBindings:
    bindings = KeyBindings()
    _bind_moves(menu, bindings)
    _bind_ends(menu, bindings)

    @bindings.add(Keys.Backspace)
    def _(_event: KeyPressEvent) -> None:
        menu.erase()

    @bindings.add(Keys.Any)
    @bindings.add(Keys.BracketedPaste)
    def _(event: KeyPressEvent) -> None:
        for char in event.data:
            menu.type(char)

    return bindings


def _bind_ends(menu: Menu, bindings: KeyBindings) -> None:
    @bindings.add(Keys.Enter)
    def _(event: KeyPressEvent) -> None:
        picked = menu.enter()
        if picked is not None:
            event.app.exit(result=picked)

    @bindings.add(Keys.Escape)
    def _(event: KeyPressEvent) -> None:
        if menu.leave():
            event.app.exit(result=[])

    @bindings.add(Keys.ControlD)
    def _(event: KeyPressEvent) -> None:
        event.app.exit(result=[])

    @bindings.add(Keys.ControlC)
    @bindings.add(Keys.SIGINT)
    def _(event: KeyPressEvent) -> None:
        event.app.exit(exception=KeyboardInterrupt())


def _bind_moves(menu: Menu, bindings: KeyBindings) -> None:
    moves: dict[Keys, Callable[[], None]] = {
        Keys.Up: lambda: menu.move(-1),
        Keys.Down: lambda: menu.move(1),
        Keys.PageUp: lambda: menu.turn(-1),
        Keys.PageDown: lambda: menu.turn(1),
        Keys.Home: lambda: menu.go(0),
        Keys.End: lambda: menu.go(len(menu.listed)),
    }
    moves |= {Keys.ControlP: moves[Keys.Up], Keys.ControlN: moves[Keys.Down]}

    for key, act in moves.items():

        def handle(_event: KeyPressEvent, act: Callable[[], None] = act) -> None:
            act()

        bindings.add(key)(handle)
