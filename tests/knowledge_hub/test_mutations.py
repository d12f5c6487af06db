"""Sentences of the corpus, damaged: hostile characters, shell syntax, look-alikes, random edits.

Damage that nobody can see or that a shell would carry out is refused wherever it stands; any other
damage never makes a traceback, never hides a word and never takes long.
"""

import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from knowledge_hub.hub import KnowledgeHub
from tests.knowledge_hub.test_properties import check_accounting, check_canonical

HERE = Path(__file__).parent
HUB = KnowledgeHub()
FEW = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
LIMIT = 1.0
"""Seconds of CPU that a reading may take."""


def _texts() -> list[str]:
    rows = [
        json.loads(line)
        for name in ("corpus.jsonl", "judge.jsonl", "utterances.jsonl")
        for line in (HERE / name).read_text(encoding="utf-8").split("\n")
        if line
    ]
    return [row["text"] for row in rows if len(row["text"]) < 400]


TEXTS = _texts()
PLAIN = [
    text
    for text in TEXTS
    if not set(text) & set("'\"\u2018\u2019\u201c\u201d\u201e\u00ab\u00bb")
    and HUB.read(text).status == "ok"
]
"""Sentences without any quote, each of which would be carried out."""
UNSEEN = [
    "\x01", "\x08", "\x0b", "\x0c", "\x1c", "\x7f", "\x85", "\x9b", "\u00ad", "\u061c", "\u180e",
    "\u200b", "\u200d", "\u200e", "\u202e", "\u2060", "\u2066", "\u2069", "\ufeff", "\U000e0041",
    "\ud800", "\x00", "\x1b[31m",
]  # fmt: skip
SHELL = [";", "`", "$(", ">", "<", "|", "&&"]
ALIKE = {
    "a": "\u0430", "e": "\u0435", "o": "\u043e", "i": "\u0456", "s": "\u0455", "p": "\u0440",
    "c": "\u0441", "x": "\u0445", "u": "\u03c5",
}  # fmt: skip


def check_damaged(text: str, damage: str, place: float) -> None:
    at = round(place * len(text))
    reading = HUB.read(text[:at] + damage + text[at:])
    assert (reading.status, reading.intent, dict(reading.slots)) == ("refused", None, {})


DAMAGE = (
    st.sampled_from(PLAIN),
    st.sampled_from([*UNSEEN, *SHELL, ' "', " '", " “"]),
    st.floats(0, 1),
)
test_what_is_unseen_open_or_for_a_shell_is_refused = FEW(given(*DAMAGE)(check_damaged))
test_what_is_unseen_open_or_for_a_shell_is_refused_long = pytest.mark.nightly(
    MANY(given(*DAMAGE)(check_damaged))
)


def check_look_alike(text: str, place: float) -> None:
    """A letter of another alphabet is in a literal's bytes, or the word is not understood."""
    places = [at for at, char in enumerate(text) if char in ALIKE]
    if not places:
        return
    at = places[min(int(place * len(places)), len(places) - 1)]
    damaged = text[:at] + ALIKE[text[at]] + text[at + 1 :]
    reading = HUB.read(damaged)
    if reading.status == "ok" and "instead of" not in text:  # what is replaced is in no slot
        assert ALIKE[text[at]] in json.dumps(reading.slots, ensure_ascii=False)
        word = damaged[damaged.rfind(" ", 0, at) + 1 :].split(" ")[0]
        assert any(mark in word for mark in "/\\.=:"), word


LOOK_ALIKE = (st.sampled_from(PLAIN), st.floats(0, 1))
test_a_look_alike_letter_is_never_taken_for_the_letter = FEW(given(*LOOK_ALIKE)(check_look_alike))
test_a_look_alike_letter_is_never_taken_for_the_letter_long = pytest.mark.nightly(
    MANY(given(*LOOK_ALIKE)(check_look_alike))
)


def mutated(text: str, chance: random.Random) -> str:
    """Return the text after one to four random edits of words or characters."""
    for _ in range(chance.randint(1, 4)):
        words = text.split(" ")
        at = chance.randrange(len(words))
        edit = chance.randrange(8)
        if edit == 0:
            words.pop(at)
        elif edit == 1:
            words.insert(at, chance.choice(words))
        elif edit == 2:
            other = chance.randrange(len(words))
            words[at], words[other] = words[other], words[at]
        elif edit == 3:
            words[at:at] = chance.choice(TEXTS).split(" ")[: chance.randint(1, 6)]
        text = " ".join(words)
        place = chance.randrange(len(text) + 1)
        if edit == 4:
            text = text[:place] + text[place + 1 :]
        elif edit == 5:
            text = text[:place] + chance.choice("abc '\"/.,:;=-0123456789%$€½²\t🙂é") + text[place:]
        elif edit == 6:
            text = text[:place] + text[place : place + 2][::-1] + text[place + 2 :]
        elif edit == 7:
            text = text[:place] + chance.choice([" or ", " instead of ", " then ", ", ", " and "]) + text[place:]  # fmt: skip
    return text


def check_mutations(number: int, seed: int) -> float:
    """Read so many damaged sentences; returns the longest time one took."""
    chance = random.Random(seed)
    worst = 0.0
    for _ in range(number):
        text = mutated(chance.choice(TEXTS), chance)
        start = time.process_time()
        HUB.read(text)
        worst = max(worst, time.process_time() - start)
        check_accounting(text)
        check_canonical(text)
    return worst


def test_damaged_sentences_are_accounted_for():
    assert check_mutations(400, seed=7) <= LIMIT


@pytest.mark.nightly
def test_damaged_sentences_are_accounted_for_long():
    assert check_mutations(20_000, seed=11) <= LIMIT
