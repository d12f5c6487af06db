"""The phrase table as a tree: which phrase, the longest, begins at a token.

`phrases.toml` is read once when the hub is made; matching is pure. A phrase never reaches over a
closing mark other than a colon; polite words and articles inside it do not count.
"""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from knowledge_hub.captures import CONVERTERS, NUMERIC, UNSURE
from knowledge_hub.numbers import may_be_number
from knowledge_hub.sentence import Token
from knowledge_hub.vocabulary import NEGATIONS, POLITE, POLITE_PHRASES

TABLE: Final = Path(__file__).with_name("phrases.toml")
MOST_POLITE: Final = 4
"""Polite words that one gap of a phrase may hold: bounds the work on a line of nothing else."""
NEGATING: Final = frozenset({"no", "without"})
_PIECES = re.compile(r"[()\[\]|]|\{[^}]*\}|[^\s()\[\]|{}]+")


class Phrase(NamedTuple):
    """One line of the table."""

    say: str
    sets: dict[str, Any]
    intent: str | None
    example: str
    order: int


class Match(NamedTuple):
    """A phrase found in a sentence."""

    start: int
    end: int
    phrase: Phrase
    captured: tuple[tuple[str, Any], ...]


class _Node:
    """What may follow: words, or values that a converter reads."""

    __slots__ = ("kinds", "phrase", "words")

    def __init__(self) -> None:
        self.words: dict[str, _Node] = {}
        self.kinds: dict[tuple[str, str], _Node] = {}
        self.phrase: Phrase | None = None


class PhraseTable(NamedTuple):
    """Everything the table says."""

    root: _Node
    phrases: tuple[Phrase, ...]
    verbs: dict[str, str]
    """One-word verb → intent."""
    nouns: dict[str, frozenset[str]]
    """Noun → the intents whose verb may carry it."""
    words: frozenset[str]
    """Every word that some phrase holds."""


@cache
def phrase_table() -> PhraseTable:
    """Return the phrase table; read from its file at the first call."""
    data = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    phrases = tuple(
        Phrase(row["say"], row.get("sets", {}), row.get("intent"), row["eg"], order)
        for order, row in enumerate([*data["phrase"], *data["verb"]])
    )
    root = _Node()
    words: set[str] = set()
    for phrase in phrases:
        for sequence in expansions(phrase.say):
            _insert(root, sequence, phrase)
            words.update(part for part in sequence if part[0] != "{")
    verbs = {word: intent for intent, line in data["words"].items() for word in line.split()}
    nouns = {noun: frozenset(line.split()) for noun, line in data["nouns"].items()}
    return PhraseTable(root, phrases, verbs, nouns, frozenset(words))


def _insert(root: _Node, sequence: tuple[str, ...], phrase: Phrase) -> None:
    node = root
    for part in sequence:
        if part[0] == "{":
            slot, _, converter = part[1:-1].partition(":")
            node = node.kinds.setdefault((slot, converter), _Node())
        else:
            node = node.words.setdefault(part, _Node())
    if node.phrase is None:
        node.phrase = phrase


def expansions(say: str) -> list[tuple[str, ...]]:
    """Return every way to say a line of the table, as words and `{slot:converter}`."""
    pieces = _PIECES.findall(say)
    ways, end = _alternatives(pieces, 0)
    if end != len(pieces):
        raise ValueError(f"phrases.toml: brackets of {say!r} do not match")
    return list(dict.fromkeys(ways))


def _alternatives(pieces: list[str], at: int) -> tuple[list[tuple[str, ...]], int]:
    ways: list[tuple[str, ...]] = []
    current: list[tuple[str, ...]] = [()]
    while at < len(pieces) and pieces[at] not in (")", "]"):
        piece = pieces[at]
        at += 1
        if piece == "|":
            ways, current = ways + current, [()]
        elif piece in ("(", "["):
            inner, at = _alternatives(pieces, at)
            if piece == "[":
                inner = [*inner, ()]
            current = [left + right for left in current for right in inner]
            at += 1
        else:
            current = [(*left, piece) for left in current]
    return ways + current, at


class Matcher:
    """Finds phrases in one sentence; remembers what it found at each token."""

    def __init__(self, table: PhraseTable, tokens: list[Token]) -> None:
        self._root = table.root
        self._tokens = tokens
        self.glue = glue_lengths(tokens)
        self._found: dict[int, Match | None] = {}
        self._busy: set[int] = set()
        self._values: dict[tuple[str, int], tuple[Any, int] | None] = {}
        self._may_count = [may_be_number(tokens, at) for at in range(len(tokens))]

    def longest(self, start: int) -> Match | None:
        """Return the longest phrase that begins at token `start`."""
        if start not in self._found:
            self._busy.add(start)
            self._found[start] = self._search(self._root, start, start, ())
            self._busy.discard(start)
        return self._found[start]

    def length(self, start: int) -> int:
        """Return how many tokens the longest phrase at `start` spans; 0 when none does."""
        if start in self._busy or start >= len(self._tokens):
            return 0
        match = self.longest(start)
        return match.end - start if match else 0

    def chosen(self, taken: set[int]) -> Iterator[Match]:
        """Return the phrases of the sentence, longest first, none over another or over `taken`."""
        matches = [match for at in range(len(self._tokens)) if (match := self.longest(at))]
        taken = set(taken)
        for match in sorted(matches, key=self._rank):
            places = range(match.start, match.end)
            if taken.isdisjoint(places):
                taken.update(places)
                yield match

    def _rank(self, match: Match) -> tuple[bool, int, int]:
        """Scoped negation is read before the positive phrase: `no prefetch` before `prefetch 4`."""
        first = self._tokens[match.start].norm
        negates = first in NEGATING or is_negation(self._tokens, match.start) > 0
        return (not negates, match.start - match.end, match.start)

    def _search(
        self, node: _Node, start: int, at: int, captured: tuple[tuple[str, Any], ...]
    ) -> Match | None:
        best = Match(start, at, node.phrase, captured) if node.phrase else None
        if at > start and self._tokens[at - 1].stop not in ("", ":"):
            return best
        position, skipped = at, 0
        while position < len(self._tokens):
            is_after_article = position > at and self._tokens[position - 1].norm in ("a", "an")
            found = self._step(node, start, position, captured, counts=not is_after_article)
            if found is not None:
                return _better(best, found)
            length = self.glue[position]
            skipped += length
            if not length or at == start or skipped > MOST_POLITE or self._tokens[position].stop:
                break
            position += length
        return best

    def _step(
        self,
        node: _Node,
        start: int,
        at: int,
        captured: tuple[tuple[str, Any], ...],
        *,
        counts: bool,
    ) -> Match | None:
        """Follow the word or a value at `at`; the longest way on. No number counts after `a`."""
        best: Match | None = None
        token = self._tokens[at]
        if token.kind == "word":
            child = node.words.get(token.norm)
            if child is not None:
                best = self._search(child, start, at + 1, captured)
        for (slot, converter), child in node.kinds.items():
            value = self._value(converter, at) if counts or converter not in NUMERIC else None
            if value is not None:
                found = self._search(child, start, value[1], (*captured, (slot, value[0])))
                best = _better(best, found)
        return best

    def _value(self, converter: str, at: int) -> tuple[Any, int] | None:
        """Return what a converter reads at `at`; asked once for each, the numbers only of numbers."""
        if converter in NUMERIC and not self._may_count[at]:
            return None
        if (converter, at) not in self._values:
            self._values[converter, at] = CONVERTERS[converter](self._tokens, at, self.length)
        return self._values[converter, at]


def _better(first: Match | None, second: Match | None) -> Match | None:
    """The longer match; of two as long, the one with fewer values, then the earlier line."""
    if first is None or second is None:
        return first or second
    return min(
        first, second, key=lambda match: (-match.end, len(match.captured), match.phrase.order)
    )


@cache
def _polite_starts() -> dict[str, tuple[tuple[str, ...], ...]]:
    starts: dict[str, tuple[tuple[str, ...], ...]] = {}
    for words in POLITE_PHRASES:
        starts[words[0]] = (*starts.get(words[0], ()), words)
    return starts


def glue_lengths(tokens: list[Token]) -> list[int]:
    """Return, for each token, how many words of glue begin there."""
    lengths = []
    starts = _polite_starts()
    for at, token in enumerate(tokens):
        length = 1 if token.kind == "word" and token.norm in POLITE else 0
        if token.norm == "do" and at + 1 < len(tokens) and tokens[at + 1].norm == "not":
            length = 0
        for words in starts.get(token.norm, ()):
            place = tokens[at : at + len(words)]
            if tuple(word.norm for word in place) == words:
                length = max(length, len(words))
        lengths.append(length)
    return lengths


def slots_of(match: Match) -> dict[str, Any]:
    """Return what a match sets, by slot; `intent` is not a slot and left out."""
    slots = {name: value for name, value in match.phrase.sets.items() if name != "intent"}
    for name, value in match.captured:
        if name == "exclude":
            slots["groups"] = {"rule": "all", "exclude": value}
        elif name == "ssh":
            slots["where"] = f"ssh:{value}"
        elif name == "data":
            slots["data"] = [value]
        elif name.endswith("_add"):
            slots[name.removesuffix("_add")] = _change("add", value)
        elif name.endswith("_scale"):
            slots[name.removesuffix("_scale")] = _change("scale", value)
        else:
            slots[name] = value
    return slots


def _change(kind: str, value: Any) -> Any:
    if value == UNSURE:
        return value
    return {kind: float(value) if kind == "scale" else value}


def is_negation(tokens: list[Token], at: int) -> int:
    """Return how many words of a negation stand at `at`: `don't`, `never`, `do not`."""
    if tokens[at].norm in NEGATIONS:
        return 1
    if tokens[at].norm == "do" and at + 1 < len(tokens) and tokens[at + 1].norm == "not":
        return 2
    return 0
