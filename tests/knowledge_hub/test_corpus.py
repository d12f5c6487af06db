"""Every sentence of both corpora is read exactly; none is misread silently."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from knowledge_hub.hub import KnowledgeHub, intents
from tests.knowledge_hub.scoring import differences

HERE = Path(__file__).parent
HUB = KnowledgeHub()


def _rows(name: str) -> list[dict[str, Any]]:
    text = (HERE / name).read_text(encoding="utf-8")
    return [json.loads(line) for line in text.split("\n") if line.strip()]


ROWS = [*_rows("utterances.jsonl"), *_rows("corpus.jsonl")]


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_sentence_is_read_exactly(row):
    got = HUB.read(row["text"]).to_dict()
    wrong = differences(row["expect"], got)
    assert not wrong, f"{row['text']!r}: {wrong}: {got}"


@pytest.mark.parametrize("row", ROWS, ids=[row["id"] for row in ROWS])
def test_canonical_reads_as_the_same_command(row):
    first = HUB.read(row["text"])
    if first.status not in ("ok", "corrected"):
        assert first.canonical is None
        return
    again = HUB.read(str(first.canonical))
    assert again.status == "ok"
    assert (again.intent, again.slots) == (first.intent, first.slots)


def test_corpus_is_large_and_holds_what_must_be_stopped():
    rows = _rows("corpus.jsonl")
    statuses = Counter(row["expect"]["status"] for row in rows)
    assert len({row["text"] for row in rows}) >= 400
    assert sum(count for status, count in statuses.items() if status != "ok") >= 100
    assert all(count >= 10 for count in statuses.values())
    assert len(statuses) == 7


def _slots(slots: dict[str, Any]) -> list[str]:
    inner = [name for member in slots.get("then", []) for name in _slots(member["slots"])]
    return [*slots, *inner]


def test_every_slot_is_said_at_least_ten_times():
    said = Counter(name for row in ROWS for name in _slots(row["expect"]["slots"]))
    every = frozenset().union(*(intent.slots for intent in intents().values())) | {"set"}
    assert {name: said[name] for name in every if said[name] < 10} == {}
