"""Every intent: its examples are read as it, by no other intent, and name slots that exist."""

import pytest

from knowledge_hub.hub import KnowledgeHub, intents
from knowledge_hub.phrases import expansions, phrase_table, slots_of
from knowledge_hub.slots import CONFIRM_INTENTS

HUB = KnowledgeHub()
INTENTS = intents()
EXAMPLES = [(name, say) for name, intent in INTENTS.items() for say in intent.examples]
NAMES = frozenset(
    [
        "train", "finetune", "evaluate", "resume", "again", "discover", "inspect", "shard",
        "claim", "complete", "fail", "reset_shard", "shard_status", "list", "show", "logs", "stop",
        "delete_run", "clean_cache", "estimate", "simulate", "offers", "process", "compare",
        "attach", "export", "doctor", "demo", "help",
    ]
)  # fmt: skip
CARRIED_OUT = frozenset(
    [
        "train", "finetune", "evaluate", "estimate", "simulate", "again", "resume", "discover", "inspect", "list", "show", "logs",
        "stop", "compare", "attach", "export", "delete_run", "clean_cache", "doctor", "demo", "help",
        "process", "shard", "claim", "complete", "fail", "reset_shard", "shard_status", "offers",
    ]
)  # fmt: skip


def test_every_intent_of_the_language_is_there():
    assert set(INTENTS) == NAMES


@pytest.mark.parametrize(("name", "sentence"), EXAMPLES)
def test_example_is_answered_by_its_intent_alone(name, sentence):
    reading = HUB.read(sentence)
    assert (reading.status, reading.intent) == ("ok", name)
    assert set(reading.slots) <= INTENTS[name].slots | {"plan_only", "set", "then"}


@pytest.mark.parametrize("name", sorted(INTENTS))
def test_needs_can_be_said(name):
    assert set(INTENTS[name].needs) <= INTENTS[name].slots
    assert INTENTS[name].examples


def test_four_intents_ask_first():
    assert {name for name, intent in INTENTS.items() if intent.confirm} == CONFIRM_INTENTS


class Recorder:
    """Takes the place of the ResourceManager and writes down what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def __getattr__(self, name):
        def record(reading):
            self.calls.append((name, reading.intent))
            return 7

        return record


@pytest.mark.parametrize("name", sorted(CARRIED_OUT - {"help"}))
def test_intent_asks_the_resource_manager_once_and_passes_its_code_on(name):
    intent, resources = INTENTS[name], Recorder()
    reading = HUB.read(intent.examples[0])
    assert intent.run is not None
    assert intent.run(reading, resources) == 7
    assert [called for _, called in resources.calls] == [name]


def test_every_intent_is_carried_out():
    assert (
        {name for name, intent in INTENTS.items() if intent.run is not None} == CARRIED_OUT == NAMES
    )


# The phrase table
PHRASES = phrase_table().phrases


@pytest.mark.parametrize("phrase", PHRASES, ids=[phrase.say for phrase in PHRASES])
def test_example_of_a_phrase_is_read_by_that_phrase(phrase):
    reading = HUB.read(phrase.example)
    assert not [
        item.text for item in reading.unaccounted if not item.text.startswith(("from", "of"))
    ]
    from knowledge_hub.phrases import Matcher
    from knowledge_hub.sentence import split_sentence

    matcher = Matcher(phrase_table(), split_sentence(phrase.example))
    assert phrase.say in {match.phrase.say for match in matcher.chosen(set())}


def test_no_phrase_is_said_twice():
    said = [way for phrase in PHRASES for way in expansions(phrase.say)]
    twice = {way for way in said if said.count(way) > 1}
    assert not twice


def test_every_slot_that_a_phrase_sets_belongs_to_an_intent():
    slots = frozenset().union(*(intent.slots for intent in INTENTS.values())) | {"plan_only"}
    slots |= {"shard_format", "export_format"}
    for phrase in PHRASES:
        for way in expansions(phrase.say):
            names = [part[1:-1].partition(":")[0] for part in way if part[0] == "{"]
            from knowledge_hub.phrases import Match

            match = Match(0, 0, phrase, tuple((name, 1) for name in names))
            assert set(slots_of(match)) <= slots
