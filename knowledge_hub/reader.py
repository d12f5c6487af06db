"""Reads one sentence: tokens → pieces with one owner each → a draft of the reading.

The order is the language's: literals, phrases (longest first), verbs among what is left; then the
roles of literals, runs and numbers; then every word is accounted for. Pure; a few hundred µs.
"""

from collections.abc import Mapping
from typing import Any, Final

from knowledge_hub.accounting import question_of, settle
from knowledge_hub.intent import Intent
from knowledge_hub.phrases import Matcher, PhraseTable, slots_of
from knowledge_hub.roles import (
    take_functions,
    take_literals,
    take_numbers,
    take_overrides,
    take_runs,
)
from knowledge_hub.sentence import Token
from knowledge_hub.verbs import LABEL, take_help, take_model, take_verbs
from knowledge_hub.work import GLUE, Piece, Work

STATUSES: Final = (
    "refused",
    "conflict",
    "ambiguous",
    "unaccounted",
    "incomplete",
    "corrected",
    "ok",
)
"""Worst first: the status is the first that applies."""


class Draft:
    """What a sentence says, before it is put into words."""

    def __init__(self, parts: list[Work], lost: list[Token]) -> None:
        self.parts = parts
        self.lost = lost
        """`then` that joins nothing."""

    @property
    def status(self) -> str:
        """The first of the statuses over all parts."""
        found = [status_of(part) for part in self.parts]
        if self.lost:
            found.append("unaccounted")
        return min(found, key=STATUSES.index)

    @property
    def refusal(self) -> str | None:
        """Why the sentence is refused."""
        return next((part.refusal for part in self.parts if part.refusal), None)

    def unknown(self) -> set[int]:
        """Return the starts of the tokens that are not understood."""
        return {
            part.tokens[at].start
            for part in self.parts
            for start, end, _ in part.dropped
            for at in range(start, end)
        } | {token.start for token in self.lost}


def status_of(work: Work) -> str:
    """Return the status of one part."""
    checks = (
        ("refused", work.refusal),
        ("conflict", work.conflicts),
        ("ambiguous", work.unsure),
        ("unaccounted", work.dropped),
        ("incomplete", work.missing),
    )
    return next((status for status, found in checks if found), "ok")


def read_tokens(tokens: list[Token], table: PhraseTable, intents: Mapping[str, Intent]) -> Draft:
    """Return the draft of a sentence given as tokens."""
    groups: list[list[Token]] = [[]]
    joints: list[Token] = []
    for token in tokens:
        if token.kind == "word" and token.norm == "then":
            joints.append(token)
            groups.append([])
        else:
            groups[-1].append(token)
    # `and then`: the `and` belongs to the joint.
    joints += [group.pop() for group in groups[:-1] if group and group[-1].norm == "and"]
    filled = [group for group in groups if group]
    lost = joints if len(filled) != len(groups) else []
    if lost and not filled:
        filled = [[]]
    return Draft([_read_part(group, table, intents) for group in filled or [[]]], lost)


def _read_part(tokens: list[Token], table: PhraseTable, intents: Mapping[str, Intent]) -> Work:
    matcher = Matcher(table, tokens)
    work = Work(tokens, table, intents, matcher)
    _mark_glue(work)
    take_help(work)
    take_overrides(work)
    _take_phrases(work)
    take_verbs(work)
    take_model(work)
    take_runs(work)
    take_functions(work)
    take_literals(work)
    take_numbers(work)
    settle(work)
    return work


def _mark_glue(work: Work) -> None:
    at = 0
    while at < len(work.tokens):
        length = work.glue[at]
        for place in range(at, at + length):
            work.owner[place] = GLUE
        at += length or 1


def _take_phrases(work: Work) -> None:
    taken = {at for at in range(len(work.tokens)) if work.owner[at] >= 0}
    for match in work.matcher.chosen(taken):
        slots = slots_of(match)
        intent = match.phrase.intent or match.phrase.sets.get("intent")
        label = next((name for name in slots if name != "intent"), LABEL)
        piece = work.own(Piece(match.start, match.end, _shown(label), slots, intent=intent))
        piece.phrase = match.phrase.say


def _shown(label: str) -> str:
    return "format" if label.endswith("_format") else label


def questions_of(work: Work) -> list[tuple[str, str, list[Any]]]:
    """Return what has to be answered: (slot, text, choices)."""
    asked: list[tuple[str, str, list[Any]]] = [
        (slot, f"{slot} is said twice", list(values)) for slot, values in work.conflicts.items()
    ]
    asked += [(slot, text, list(choices)) for slot, (text, choices) in work.unsure.items()]
    asked += [(slot, question_of(slot), []) for slot in work.missing]
    return asked
