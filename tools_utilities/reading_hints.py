"""The next command after a sentence that was stopped: one that itself is understood, as it is typed.

Candidates are built from what the reading knows and read again; the first that is understood is
shown, else `quark help` of what was asked for.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=:,./-]+(?: [A-Za-z0-9_@%+=:,./-]+)*")
"""A sentence that every shell leaves as it is."""
OPENS_QUOTES: Final = frozenset('"$`\\!')
"""Characters that mean something to a shell inside double quotes."""
TURNS: Final = frozenset(
    ["not", "no", "never", "don't", "dont", "without", "only", "except", "unless", "if", "instead",
     "until", "after", "every", "or", "but"]
)  # fmt: skip
"""Words that turn a meaning: a sentence is not offered without them."""
MOST_CHOICES: Final = 3


class ReadingLike(Protocol):
    """The fields of a reading that are used here."""

    sentence: str
    status: str
    intent: str | None
    confirm: bool
    canonical: str | None

    @property
    def spans(self) -> Sequence[Any]:
        """Owned pieces."""
        ...

    @property
    def unaccounted(self) -> Sequence[Any]:
        """Pieces nobody owns."""
        ...

    @property
    def questions(self) -> Sequence[Any]:
        """What is open."""
        ...


Read = Callable[[str], ReadingLike]


def typed(sentence: str) -> str:
    """Return a sentence as a command that a shell hands over unchanged: quoted where it must be."""
    if PLAIN.fullmatch(sentence):
        return f"quark {sentence}"
    if OPENS_QUOTES.isdisjoint(sentence):
        return f'quark "{sentence}"'
    return f"quark {shlex.quote(sentence)}"


def next_command(reading: ReadingLike, read: Read | None) -> str:
    """Return the hint: what to type next, or the help of what was asked for."""
    for lead, sentence in _candidates(reading) if read is not None else ():
        if sentence.isprintable() and read is not None and _is_meant(reading, read(sentence)):
            return f"{lead}: {typed(sentence)}"
    intent = reading.intent if reading.status != "refused" else None
    return f"See what can be said: quark help{f' {intent}' if intent else ''}"


def _is_meant(reading: ReadingLike, other: ReadingLike) -> bool:
    return other.status == "ok" and reading.intent in (None, other.intent)


def _candidates(reading: ReadingLike) -> Iterator[tuple[str, str]]:
    if reading.canonical:
        yield "Say exactly that", reading.canonical
    elif reading.status == "conflict":
        yield from _with_one_value(reading)
    elif reading.status == "ambiguous":
        for choice in _choices(reading):
            yield "Say it", with_answer(reading, reading.questions[0].slot, choice)
    elif reading.status == "unaccounted":
        yield from _repaired(reading)


def _choices(reading: ReadingLike) -> list[str]:
    if not reading.questions or reading.questions[0].slot == "intent":
        return []
    return [str(choice) for choice in reading.questions[0].choices[:MOST_CHOICES]]


def _with_one_value(reading: ReadingLike) -> Iterator[tuple[str, str]]:
    """What is said twice, said once: with the first value that can be written as a setting."""
    for question in reading.questions[:1]:
        for value in question.choices[:MOST_CHOICES]:
            text = _value(value)
            if text is not None:
                pair = shlex.quote(f"{question.slot}={text}")
                yield "Say which", f"{reading.sentence} --override {pair}"


def _value(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    if isinstance(value, dict) and len(value) == 1:
        [(unit, amount)] = value.items()
        return f"{amount}{unit}"
    return None if isinstance(value, dict) else str(value)


def with_answer(reading: ReadingLike, slot: str, answer: str) -> str:
    """Return the sentence with what is in doubt said as the answer says it."""
    spans = sorted(
        (span for span in reading.spans if span.slot == slot), key=lambda span: span.start
    )
    if not spans:
        return answer
    sentence = reading.sentence
    for span in reversed(spans[1:]):
        sentence = sentence[: span.start] + sentence[span.end :]
    first = spans[0]
    return _tidy(sentence[: first.start] + answer + sentence[first.end :])


def _repaired(reading: ReadingLike) -> Iterator[tuple[str, str]]:
    """With what was nearly said; with a path in quotes; without what nobody understands."""
    items = sorted(reading.unaccounted, key=lambda item: item.start)
    near = [item for item in items if item.suggest and not item.suggest.endswith(".")]
    if near:
        for part in range(2):
            yield "Did you mean", _replaced(reading.sentence, [
                (item.start, item.end, item.suggest.split(" or ")[min(part, item.suggest.count(" or "))])
                for item in near
            ])  # fmt: skip
    turns = any(item.text.casefold() in TURNS for item in items)
    path = None if turns else quoted_path(reading)
    if path:
        yield "A path with blanks needs quotes", path
    if reading.confirm or turns:
        return  # what is left could be more than was asked for
    left = [(item.start, item.end, "") for item in items]
    yield "Without what is not understood", _tidy(_replaced(reading.sentence, left))


def quoted_path(reading: ReadingLike) -> str | None:
    """Return the sentence with a path that blanks cut apart in quotes; None where there is none."""
    data = [span for span in reading.spans if span.slot in ("data", "source")]
    first = min((item.start for item in reading.unaccounted), default=-1)
    if not data or not 0 <= first - data[-1].end <= 1:
        return None
    words = reading.sentence
    is_local = "://" not in words[data[-1].start : data[-1].end]
    if not is_local and not any("/" in item.text for item in reading.unaccounted):
        return None  # a name in a store seldom holds a blank
    path = words[data[-1].start : max(item.end for item in reading.unaccounted)]
    quote = '"' if '"' not in path else "'"
    return words.replace(path, f"{quote}{path}{quote}") if quote not in path else None


def _replaced(sentence: str, parts: Sequence[tuple[int, int, str]]) -> str:
    for start, end, text in sorted(parts, reverse=True):
        sentence = sentence[:start] + text + sentence[end:]
    return sentence


def _tidy(sentence: str) -> str:
    """Take out the blanks, and marks before them, that a word left behind; quotes stay as they are."""
    if any(mark in sentence for mark in "\"'"):
        return sentence.strip()
    return re.sub(r"\s+(?=[,.!?:](?:\s|$))|(?<=\s)\s+", "", sentence).strip(" ,")
