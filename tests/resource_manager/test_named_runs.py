"""Runs that a person named: what is offered about them reads as a command; some names are refused."""

import re
import shlex

import pytest

from knowledge_hub.hub import KnowledgeHub
from tests.projects import Said, make_manager
from tools_utilities.errors import QuarkError, UsageError
from tools_utilities.run_words import is_run_name, said_run

ONE = ["data/datasets/one"]
HUB = KnowledgeHub()
NAMES = ["fox-12", "brave-fox-3", "genomes", "long", "train", "run", "Exp_2", "v1.5", "my run", "-x",
         "it's", "naïve", "a=b", "1"]  # fmt: skip


def at_a_shell(command: str) -> str:
    """Return the sentence that the arguments of a typed command make."""
    words = shlex.split(command)
    return " ".join(f'"{word}"' if re.search(r"\s|'", word) else word for word in words)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("verb", ["show", "stop", "resume", "delete", "logs", "rerun", "attach"])
def test_a_run_of_any_name_can_be_said(verb, name):
    reading = HUB.read(at_a_shell(f"{verb} {said_run(name)}"))
    assert (reading.status, reading.slots) == ("ok", {"run": name})
    again = HUB.read(str(reading.canonical))
    assert (again.status, again.intent, again.slots) == ("ok", reading.intent, reading.slots)


@pytest.mark.parametrize("name", ["", ".", "..", "latest", "all", "a/b", "a\x1b[2J", "a\u202eb"])
def test_names_that_no_sentence_can_say_are_refused_before_anything_is_made(project, name):
    assert not is_run_name(name)
    if not name:
        return  # an empty name is none: the run is given one
    with pytest.raises(UsageError) as caught:
        make_manager(project)[0].train(Said(data=ONE, name=name))
    assert "name=genomes" in caught.value.hint
    assert not (project / "runs").exists()


def test_what_is_offered_after_a_named_run_reads_as_a_command(project):
    manager, _, out, err = make_manager(project)
    manager.train(Said(data=ONE, name="long"))
    with pytest.raises(QuarkError) as caught:
        make_manager(project)[0].train(Said(data=ONE, name="long"))
    said = out.getvalue() + err.getvalue() + caught.value.hint
    commands = re.findall(r"quark ((?:show|resume)[^`\n]*)", said)
    assert len(commands) >= 3
    for command in commands:
        reading = HUB.read(at_a_shell(command))
        assert (reading.status, reading.slots["run"]) == ("ok", "long"), command


def test_a_bare_name_is_answered_by_how_to_say_it():
    for sentence in ("show genomes", "logs of genomes", "delete run genomes"):
        [unknown] = [item for item in HUB.read(sentence).unaccounted if item.text == "genomes"]
        assert unknown.suggest == "run=genomes"
    assert HUB.read("train on x.jsonl with sparkle").unaccounted[-1].suggest is None
