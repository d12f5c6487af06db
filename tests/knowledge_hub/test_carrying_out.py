"""`then`: commands one after the other, checked before the first."""

import msgspec
import pytest

from knowledge_hub.carrying_out import carry_out
from knowledge_hub.hub import KnowledgeHub, intents
from tools_utilities.errors import UsageError
from tools_utilities.terminal_text import Line, plain

HUB = KnowledgeHub()


class Notes:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, *lines: Line) -> None:
        self.lines.extend(plain(line) for line in lines)


class Resources:
    """Takes the place of the ResourceManager; each method returns the code it was given."""

    def __init__(self, **codes: int) -> None:
        self.codes = codes
        self.calls: list[tuple[str, dict[str, object]]] = []
        self.console = Notes()
        self.left_running = False
        self.leaves = ""

    def __getattr__(self, name):
        def act(reading):
            self.calls.append((name, dict(reading.slots)))
            self.left_running = name == self.leaves
            return self.codes.get(name, 0)

        return act


def test_one_command():
    resources = Resources(train=3)
    assert carry_out(HUB.read("train quark with ./d for 3 steps"), resources) == 3
    assert resources.calls == [("train", {"model": "quark", "data": ["./d"], "max_steps": 3})]
    assert resources.console.lines == []


def test_commands_in_order_each_with_its_own_slots():
    resources = Resources()
    sentence = "train with ./d then finetune on ./e then show the last run"
    assert carry_out(HUB.read(sentence), resources) == 0
    assert resources.calls == [
        ("train", {"data": ["./d"]}),
        ("finetune", {"data": ["./e"]}),
        ("show_run", {"run": "latest"}),
    ]
    assert "then: quark finetune on ./e" in resources.console.lines


def test_what_follows_is_told_as_a_shell_takes_it():
    resources = Resources(train=1)
    assert carry_out(HUB.read('train with ./d then evaluate on "./a b"'), resources) == 1
    assert resources.console.lines == ["""not done: quark "evaluate on './a b'\""""]


def test_it_stops_at_the_first_failure_and_names_what_is_left():
    resources = Resources(finetune=1)
    sentence = "train with ./d then finetune on ./e then show the last run"
    assert carry_out(HUB.read(sentence), resources) == 1
    assert [name for name, _ in resources.calls] == ["train", "finetune"]
    assert resources.console.lines[-1] == "not done: quark show the last run"


def test_what_follows_does_not_begin_when_the_run_was_left_running():
    resources = Resources()
    resources.leaves = "train"
    assert carry_out(HUB.read("train with ./d then evaluate on ./e"), resources) == 0
    assert [name for name, _ in resources.calls] == ["train"]
    assert resources.console.lines == ["not done: quark evaluate on ./e"]
    # In a session, the next sentence is another matter.
    resources.leaves = ""
    assert carry_out(HUB.read("train with ./d then list runs"), resources) == 0
    assert len(resources.calls) == 3


@pytest.mark.parametrize("sentence", ["train with ./d and just show me the plan then list runs"])
def test_a_plan_stops_before_what_follows(sentence):
    resources = Resources()
    assert carry_out(HUB.read(sentence), resources) == 0
    assert [name for name, _ in resources.calls] == ["train"]
    assert resources.console.lines[-1].startswith("after it: quark ")
    resources = Resources()
    assert carry_out(HUB.read("train with ./d then list runs"), resources, plan_only=True) == 0
    assert [name for name, _ in resources.calls] == ["train"]


def test_what_cannot_be_carried_out_stops_all_before_the_first(monkeypatch):
    later = msgspec.structs.replace(intents()["offers"], run=None)
    monkeypatch.setitem(intents(), "offers", later)
    resources = Resources()
    for sentence in (
        "train with ./d then prices on vast",
        "train with ./d in the background then list runs",
    ):
        with pytest.raises(UsageError):
            carry_out(HUB.read(sentence), resources)
    assert resources.calls == []
