"""KnowledgeHub: a sentence in, a Reading out. No input or output, and it never raises.

`read` takes well under a millisecond. `handle_command` reads a sentence and carries it out.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from knowledge_hub.canonical import canonical_of
from knowledge_hub.corrections import correct, suggestion
from knowledge_hub.intent import Intent
from knowledge_hub.numbers import NUMBER_WORDS
from knowledge_hub.phrases import PhraseTable, glue_lengths, phrase_table
from knowledge_hub.reader import Draft, questions_of, read_tokens
from knowledge_hub.sentence import RefusedError, Token, split_sentence
from knowledge_hub.vocabulary import CONNECTORS, DATA_CONNECTORS, NEVER_GLUE, NOUNS, POLITE
from knowledge_hub.work import Work
from tools_utilities.plugins import load_plugins

NAMING = frozenset({"named", "it", "as", "worker", "host", "except", "by"})
"""After these a word is a name, whatever dataset has it too."""
CLOSED_WORDS = POLITE | CONNECTORS | NEVER_GLUE | NUMBER_WORDS | NOUNS
SCHEMA = 1
"""Version of a reading's JSON."""


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """Words that a slot owns."""

    text: str
    start: int
    end: int
    slot: str


class Unaccounted(msgspec.Struct, frozen=True, kw_only=True):
    """Words that nobody owns, and what they may be."""

    text: str
    start: int
    end: int
    suggest: str | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What has to be answered first."""

    slot: str
    text: str
    choices: tuple[Any, ...] = ()


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a sentence says. `start` and `end` are code points of the sentence as typed."""

    sentence: str
    status: str
    intent: str | None = None
    confirm: bool = False
    slots: Mapping[str, Any] = {}
    spans: tuple[Span, ...] = ()
    unaccounted: tuple[Unaccounted, ...] = ()
    questions: tuple[Question, ...] = ()
    canonical: str | None = None
    overrides: Mapping[str, Any] = {}
    """What `key=value` gave, slots and settings by key; part of `slots` already."""
    warnings: tuple[str, ...] = ()
    is_explanation: bool = False
    """The sentence began with `explain`: it is to be shown, not carried out."""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of language.md."""
        return {
            "schema": SCHEMA,
            "status": self.status,
            "intent": self.intent,
            "confirm": self.confirm,
            "slots": msgspec.to_builtins(self.slots),
            "spans": msgspec.to_builtins(self.spans),
            "unaccounted": msgspec.to_builtins(self.unaccounted),
            "questions": msgspec.to_builtins(self.questions),
            "canonical": self.canonical,
        }


@cache
def intents() -> dict[str, Intent]:
    """Return every intent by name: one file each in `knowledge_hub/intents/`."""
    return load_plugins("knowledge_hub.intents", "INTENT")


class KnowledgeHub:
    """Reads sentences. Constructs without arguments; its vocabulary is read then, once."""

    def __init__(self) -> None:
        self._table: PhraseTable = phrase_table()
        self._intents = intents()

    def read(self, sentence: str, aliases: Mapping[str, str] | None = None) -> Reading:
        """Return what the sentence says; `aliases` are the dataset names of `quark.yaml`."""
        names = {name.casefold(): name for name in aliases or {}}
        try:
            tokens = split_sentence(sentence, names)
        except RefusedError as error:
            return _refused(sentence, str(error))
        tokens = [_alias(tokens, at, names, self._table) for at in range(len(tokens))]
        explain = _explain_at(tokens)
        shown = [] if explain is None else [tokens.pop(explain)]
        draft = read_tokens(tokens, self._table, self._intents)
        draft, corrected = correct(tokens, draft, self._table, self._intents)
        if draft.refusal:
            return _refused(sentence, draft.refusal)
        return _reading(sentence, draft, corrected, shown)

    def handle_command(self, sentence: str) -> int:
        """Read a sentence and carry it out; returns the exit code. Prints every error itself."""
        from tools_utilities.console import make_console

        console = make_console()
        try:
            return self._carry_out(sentence, console)
        except Exception as error:  # noqa: BLE001 - the border of the program: told, never swallowed
            return console.error(error)

    def _carry_out(self, sentence: str, console: Any) -> int:
        from knowledge_hub.carrying_out import answer_why, carry_out
        from resource_manager.answers import offered_answers
        from resource_manager.manager import ResourceManager
        from tools_utilities.reading_dialogue import drawn, settle
        from tools_utilities.settings import load_settings

        if sentence.split()[:1] == ["why"]:
            return answer_why(sentence, ResourceManager(console=console))
        aliases = load_settings(start_dir=Path.cwd()).aliases

        def read(text: str) -> Any:
            return self.read(text, aliases=aliases)

        reading: Any = read(sentence)
        if reading.is_explanation:
            lines = drawn(reading, width=console.result_width, draw=console.draws_blocks)
            console.result(lines, reading.to_dict())
            return 0

        def offer(slot: str, intent: str | None) -> Any:
            return offered_answers(slot, intent, Path.cwd())

        reading, _ = settle(reading, read, console, offer)
        return carry_out(reading, ResourceManager(console=console))


def _alias(tokens: list[Token], at: int, names: Mapping[str, str], table: PhraseTable) -> Token:
    """A dataset's name is a literal; one that is a word of the language only after a connector."""
    token = tokens[at]
    if token.kind != "alias":
        return token
    before = tokens[at - 1].norm if at else ""
    is_word = token.norm in table.words or token.norm in table.verbs or token.norm in CLOSED_WORDS
    if (is_word and before not in DATA_CONNECTORS) or before in NAMING:
        return token._replace(kind="word")
    return token._replace(kind="path", value=names.get(token.norm, token.text))


def _explain_at(tokens: list[Token]) -> int | None:
    """Return the index of an `explain` that begins the sentence."""
    lengths = glue_lengths(tokens)
    at = 0
    while at < len(tokens) and lengths[at]:
        at += lengths[at]
    return at if at < len(tokens) and tokens[at].norm == "explain" else None


def _refused(sentence: str, why: str) -> Reading:
    return Reading(
        sentence=sentence, status="refused", questions=(Question(slot="sentence", text=why),)
    )


def _reading(
    sentence: str, draft: Draft, corrected: Mapping[int, str], shown: list[Token]
) -> Reading:
    first = draft.parts[0]
    status = draft.status
    if status == "ok" and corrected:
        status = "corrected"
    slots = dict(first.slots)
    members = [{"intent": part.intent, "slots": part.slots} for part in draft.parts[1:]]
    if members:
        slots["then"] = members
    is_two_verbs = first.is_two_verbs
    good = status in ("ok", "corrected") and first.intent is not None
    return Reading(
        sentence=sentence,
        status=status,
        intent=first.intent,
        confirm=not is_two_verbs and any(_asks(part) for part in draft.parts),
        slots={} if is_two_verbs else slots,
        spans=tuple(_spans(sentence, draft, shown)),
        unaccounted=tuple(_unaccounted(sentence, draft)),
        questions=tuple(
            Question(slot=slot, text=text, choices=tuple(choices))
            for part in draft.parts
            for slot, text, choices in questions_of(part)
        ),
        canonical=canonical_of(first.intent, slots) if good and first.intent else None,
        overrides=first.overrides,
        warnings=tuple(text for part in draft.parts for text in part.warnings),
        is_explanation=bool(shown),
    )


def _asks(part: Work) -> bool:
    return part.intent is not None and part.intents[part.intent].confirm


def _spans(sentence: str, draft: Draft, shown: list[Token]) -> list[Span]:
    spans = [_span(sentence, token.start, token.end, "explain") for token in shown]
    for part in draft.parts:
        for number, piece in enumerate(part.pieces):
            places = [at for at in range(piece.start, piece.end) if part.owner[at] == number]
            if places:
                first, last = part.tokens[places[0]], part.tokens[places[-1]]
                spans.append(_span(sentence, first.start, last.end, piece.label))
    return sorted(spans, key=lambda span: span.start)


def _span(sentence: str, start: int, end: int, slot: str) -> Span:
    return Span(text=sentence[start:end], start=start, end=end, slot=slot)


def _unaccounted(sentence: str, draft: Draft) -> list[Unaccounted]:
    found = []
    for part in draft.parts:
        for start, end, hint in part.dropped:
            first, last = part.tokens[start], part.tokens[end - 1]
            suggest = hint or (suggestion(first.norm) if end - start == 1 else None)
            found.append((first.start, last.end, suggest))
    found += [(token.start, token.end, None) for token in draft.lost]
    return [
        Unaccounted(text=sentence[start:end], start=start, end=end, suggest=suggest)
        for start, end, suggest in sorted(found, key=lambda item: item[:2])
    ]
