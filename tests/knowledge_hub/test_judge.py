"""Sentences written rule by rule from the language's contract, before the reader was asked.

`judge.jsonl` holds a rule's name, a sentence, what the contract says it means and, where it may be
asked, why. One test a rule, so that a thousand sentences cost little.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from knowledge_hub.hub import KnowledgeHub
from tests.knowledge_hub.scoring import differences

FILE = Path(__file__).with_name("judge.jsonl")
HUB = KnowledgeHub()
ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in FILE.read_text(encoding="utf-8").split("\n") if line
]
RULES = sorted({row["rule"] for row in ROWS})


@pytest.mark.parametrize("rule", RULES)
def test_sentences_of_a_rule_are_read_exactly(rule):
    wrong = []
    for row in (row for row in ROWS if row["rule"] == rule):
        got = HUB.read(row["text"]).to_dict()
        fields = differences(row["expect"], got)
        if fields:
            wrong.append((row["text"], row.get("why", ""), {name: got[name] for name in fields}))
    assert not wrong


@pytest.mark.parametrize("rule", RULES)
def test_canonical_of_a_rule_reads_as_the_same_command(rule):
    wrong = []
    for row in (row for row in ROWS if row["rule"] == rule):
        first = HUB.read(row["text"])
        if first.status not in ("ok", "corrected"):
            assert first.canonical is None
            continue
        again = HUB.read(str(first.canonical))
        if (again.status, again.intent, again.slots) != ("ok", first.intent, first.slots):
            wrong.append((row["text"], first.canonical, again.slots))
    assert not wrong


def test_sentences_are_many_and_none_is_twice():
    texts = [row["text"] for row in ROWS]
    assert len(texts) == len(set(texts)) >= 1100
