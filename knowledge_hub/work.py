"""The scratch sheet of one sentence: who owns which word, and what the reading will say.

Mutable on purpose: the steps of `reader.py` fill it in one after the other, then it is thrown away.
"""

from collections.abc import Mapping
from typing import Any, Final

from knowledge_hub.intent import Intent
from knowledge_hub.phrases import Matcher, PhraseTable
from knowledge_hub.sentence import Token
from knowledge_hub.vocabulary import CONNECTORS

FREE: Final = -2
GLUE: Final = -1


class Piece:
    """Words that belong together, the slots they set, and the label they are shown with."""

    __slots__ = ("appends", "connector", "end", "intent", "is_noun", "label", "override", "phrase",
                 "slots", "start")  # fmt: skip

    def __init__(
        self, start: int, end: int, label: str, slots: dict[str, Any], *, intent: str | None = None
    ) -> None:
        self.start = start
        self.end = end
        self.label = label
        self.slots = slots
        self.intent = intent
        self.override: tuple[str, str, Any] | None = None
        self.connector = ""
        self.appends = False
        self.is_noun = False
        self.phrase = ""


class Work:
    """One part of a sentence (between two `then`) while it is read."""

    def __init__(
        self,
        tokens: list[Token],
        table: PhraseTable,
        intents: Mapping[str, Intent],
        matcher: Matcher,
    ) -> None:
        self.tokens = tokens
        self.table = table
        self.intents = intents
        self.matcher = matcher
        self.glue = matcher.glue
        self.owner = [FREE] * len(tokens)
        self.pieces: list[Piece] = []
        self.dropped: list[tuple[int, int, str | None]] = []
        """Words that are reported as not understood, each with what may be meant."""
        self.intent: str | None = None
        self.is_two_verbs = False
        self.is_finetune = False
        """Whether it is a finetune sentence, also one that is only estimated."""
        self.refusal: str | None = None
        self.slots: dict[str, Any] = {}
        self.overrides: dict[str, Any] = {}
        self.conflicts: dict[str, list[Any]] = {}
        self.unsure: dict[str, tuple[str, list[str]]] = {}
        self.missing: list[str] = []
        self.warnings: list[str] = []
        self.verb_ends: list[int] = []
        self.model_end = -1

    def own(self, piece: Piece) -> Piece:
        """Give a piece its words; only free ones, and the glue among them."""
        number = len(self.pieces)
        self.pieces.append(piece)
        for at in range(piece.start, piece.end):
            self.owner[at] = number
        return piece

    def disown(self, piece: Piece, suggest: str | None = None) -> None:
        """Report the words of a piece as not understood."""
        number = self.pieces.index(piece)
        piece.slots, piece.override, piece.intent = {}, None, None
        for at in range(piece.start, piece.end):
            if self.owner[at] == number:
                self.owner[at] = FREE
        self.dropped.append((piece.start, piece.end, suggest))

    def piece_at(self, at: int) -> Piece | None:
        """Return the piece that owns token `at`."""
        if 0 <= at < len(self.tokens) and self.owner[at] >= 0:
            return self.pieces[self.owner[at]]
        return None

    def free(self, at: int) -> bool:
        """Whether nobody owns token `at` yet."""
        return self.owner[at] == FREE

    def is_glue(self, at: int) -> bool:
        """Whether token `at` is a polite word that no piece owns."""
        return self.owner[at] == GLUE

    def next_word(self, at: int) -> int:
        """Return the index of the next token from `at` on that is no glue (or the length)."""
        while at < len(self.tokens) and self.owner[at] == GLUE:
            at += 1
        return at

    def word_before(self, at: int) -> int:
        """Return the index of the nearest token before `at` that is no glue (or -1)."""
        at -= 1
        while at >= 0 and self.owner[at] == GLUE:
            at -= 1
        return at

    def straight(self, before: int, after: int) -> bool:
        """Whether only glue and colons lie between token `before` and token `after`."""
        return self.next_word(before + 1) == after and all(
            self.tokens[at].stop in ("", ":") for at in range(before, after)
        )

    def connector_before(self, at: int) -> str:
        """Return the free connector directly before `at`, or an empty string."""
        before = self.word_before(at)
        if before < 0 or not self.free(before) or not self.straight(before, at):
            return ""
        token = self.tokens[before]
        return token.norm if token.kind == "word" and token.norm in CONNECTORS else ""

    def text(self, start: int, end: int) -> str:
        """Return the words from `start` to `end` as typed, joined by blanks."""
        return " ".join(token.text for token in self.tokens[start:end])
