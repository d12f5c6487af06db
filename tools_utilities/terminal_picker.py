"""Picking some of a numbered list: what a typed answer means, the list itself, and the line picker."""

import re
from collections.abc import Callable, Sequence

import msgspec

from tools_utilities.errors import UsageError
from tools_utilities.terminal_text import Line, Span, caseless, fold, table

PICK_HELP = "1,3-5 · all · largest · /filter · p N previews · s size sorts"
SORTS = ("score", "name", "size")
"""What a list may be sorted by; the score is the order in which the choices come."""
PAGE_CHOICES = 50
"""Choices of a plain list shown at a time."""
_ITEM = re.compile(r"(\d{1,9})(?:\s*(?:-|\.\.|–|to)\s*(\d{1,9}))?")  # noqa: RUF001 - people paste en dashes
NO_ROOM = 100
"""Below this many columns a choice is shown on several lines."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a picker: a name shown whole, its facts, and why it stands where it does."""

    name: str
    facts: tuple[str, ...]
    """As many as `FACTS`: score, objects, bytes, format."""
    why: str = ""
    size_bytes: int = 0
    """What `largest` compares."""


FACTS = ("score", "objects", "size", "format")


def order_of(choices: Sequence[Choice], sort: str) -> list[int]:
    """Return the indices of `choices` by one of SORTS: names upwards, sizes downwards."""
    if sort == "name":
        return sorted(range(len(choices)), key=lambda i: caseless(choices[i].name))
    if sort == "size":
        return sorted(range(len(choices)), key=lambda i: -choices[i].size_bytes)
    return list(range(len(choices)))


def parse_picks(text: str, sizes: Sequence[int]) -> list[int]:
    """Return the indices (from 0) that `1,3-5`, `all` or `largest` names in a list of these sizes.

    Raises:
        UsageError: not such an answer, or a number that is not in the list.
    """
    count = len(sizes)
    words = caseless(text)
    if words == "all":
        return list(range(count))
    if words == "largest":
        return [max(range(count), key=lambda i: sizes[i])]
    picked: list[int] = []
    for part in re.split(r"[,\s]+(?=\d|$)|,", words):
        if not part.strip():
            continue
        found = _ITEM.fullmatch(part.strip())
        if not found:
            raise _bad_pick(text, count)
        low = int(found[1])
        high = int(found[2] or low)
        if not 1 <= low <= high <= count:
            raise _bad_pick(text, count)
        picked.extend(i - 1 for i in range(low, high + 1) if i - 1 not in picked)
    if not picked:
        raise _bad_pick(text, count)
    return picked


def _bad_pick(text: str, count: int) -> UsageError:
    return UsageError(
        f"{text!r} does not name groups of this list",
        hint=f"Give numbers from 1 to {count} (1,3-5), all, or largest.",
        value=text,
    )


def choice_lines(choices: Sequence[Choice], *, width: int | None) -> list[Line]:
    """Return the numbered list: names always whole, one choice a line where there is no width."""
    return numbered_lines(list(enumerate(choices, 1)), width=width)


def numbered_lines(numbered: Sequence[tuple[int, Choice]], *, width: int | None) -> list[Line]:
    """Return lines for choices that carry their numbers (as after a filter)."""
    titles = ("#", *FACTS, "group", "why")
    rows = [(str(i), *choice.facts, choice.name, choice.why) for i, choice in numbered]
    if width is None or width >= NO_ROOM:
        lines = table(titles, rows, width=width, right="rrrr")
        if lines:
            return [[Span(lines[0], "dim")], *lines[1:]]
    room = width or NO_ROOM
    cards: list[Line] = []
    for i, choice in numbered:
        head, *rest = fold(choice.name, room, indent="     ")
        cards.append([Span(f"{i:3}  ", "bold"), head.removeprefix("     ")])
        cards.extend(rest)
        score, *facts = choice.facts
        about = f"{' · '.join(facts)} · score {score}" + (f": {choice.why}" if choice.why else "")
        cards.extend([Span(line, "dim")] for line in fold(about, room, indent="     "))
    return cards


def pick_by_line(
    question: str,
    choices: Sequence[Choice],
    preview: Callable[[int], list[str]],
    *,
    width: int | None,
    say: Callable[..., None],
    ask: Callable[[str], str | None],
) -> list[int]:
    """Show a numbered list and read answers until one names choices; empty for an empty answer."""
    listing = _Listing(choices, width=width, say=say)
    sizes = [choice.size_bytes for choice in choices]
    say(question)
    listing.show()
    while True:
        answer = ask(f"Which? [{PICK_HELP}] ")
        if answer is None or not answer.strip():
            return []
        answer = answer.strip()
        if listing.take(answer):
            continue
        try:
            asked_preview = re.fullmatch(r"p(?:review)?\s*(\d+)", answer)
            if asked_preview:
                [index] = parse_picks(asked_preview[1], sizes)
                say(*preview(index))
                continue
            return parse_picks(answer, sizes)
        except UsageError as error:
            say(f"{error}. {error.hint}")


class _Listing:
    """A plain list: filtered, sorted, and shown a page at a time."""

    def __init__(
        self, choices: Sequence[Choice], *, width: int | None, say: Callable[..., None]
    ) -> None:
        self._choices = choices
        self._width = width
        self._say = say
        self._order = order_of(choices, SORTS[0])
        self._filter = ""
        self._at = 0

    def take(self, answer: str) -> bool:
        """Act on `/filter`, `s name` or `n`; False when the answer is something else."""
        sort = re.fullmatch(r"s(?:ort)?\s*(score|name|size)", caseless(answer))
        if answer.startswith("/"):
            self._filter, self._at = caseless(answer[1:]), 0
        elif sort:
            self._order, self._at = order_of(self._choices, sort[1]), 0
        elif caseless(answer) not in ("n", "next"):
            return False
        self.show()
        return True

    def show(self) -> None:
        """Show the next page, from the first one again after the last."""
        found = [i for i in self._order if self._filter in caseless(self._choices[i].name)]
        if not found:
            self._say(f"No group's name holds {self._filter!r}.")
            return
        if self._at >= len(found):
            self._at = 0
        page = found[self._at : self._at + PAGE_CHOICES]
        first, self._at = self._at + 1, self._at + len(page)
        self._say(*numbered_lines([(i + 1, self._choices[i]) for i in page], width=self._width))
        if len(page) < len(found):
            self._say(f"{first}-{self._at} of {len(found):,}; n shows the next ones")
