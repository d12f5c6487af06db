"""Every stopped sentence is answered by one line and a next command that is itself understood."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from knowledge_hub.hub import KnowledgeHub, Reading
from knowledge_hub.sentence import join_arguments
from tools_utilities.console import Console, Surroundings
from tools_utilities.errors import QuarkError
from tools_utilities.reading_dialogue import settle
from tools_utilities.reading_hints import typed

HUB: Any = KnowledgeHub()
ROWS: list[dict[str, Any]] = [
    json.loads(line)
    for name in ("corpus", "judge", "utterances")
    for line in Path(__file__).with_name(f"{name}.jsonl").read_text("utf-8").split("\n")
    if line.strip()
]


def answered(sentence: str) -> tuple[str, str]:
    """Return the line of a stopped sentence and the one below it."""
    console = Console(Surroundings(no_input=True), stdin=None, stdout=None, stderr=None)
    with pytest.raises(QuarkError) as caught:
        settle(HUB.read(sentence), HUB.read, console)
    assert caught.value.exit_code == 2
    return str(caught.value), caught.value.hint


def command_in(hint: str) -> str:
    """Return the sentence that a shell makes of the command in a hint."""
    found = re.search(r"quark ([^`]+)", hint)
    assert found is not None, hint
    return join_arguments(shlex.split(found[1]))


def is_help(reading: Reading) -> bool:
    return reading.intent == "help"


@pytest.mark.parametrize("status", ["unaccounted", "refused", "incomplete", "rest"])
def test_every_stopped_sentence_has_a_next_command(status):
    named = {"unaccounted", "refused", "incomplete"}
    stopped = [row for row in ROWS if row["expect"]["status"] != "ok"]
    wrong, helped = [], 0
    chosen = [
        row
        for row in stopped
        if row["expect"]["status"] == status
        or (status == "rest" and row["expect"]["status"] not in named)
    ]
    for row in chosen:
        line, hint = answered(row["text"])
        following = HUB.read(command_in(hint))
        helped += is_help(following)
        meant = row["expect"]["intent"] in (None, following.intent) or is_help(following)
        if "\n" in line + hint or following.status != "ok" or not meant:
            wrong.append((row["text"], line, hint, following.status))
    assert len(chosen) >= 40
    assert not wrong
    if status == "rest":
        # A word that is misspelt, a value in doubt: the very sentence is offered, not the help.
        assert helped < len(chosen) / 2


@pytest.mark.parametrize(
    ("sentence", "offered"),
    [
        ("trian quark on s3://b/x", "train quark with s3://b/x"),
        ("train on s3://b/x with 8", "train on s3://b/x with 8 gpus"),
        ("train on s3://b/x for 10", "train on s3://b/x for 10 epochs"),
        ("train on ./my data", 'train on "./my data"'),
        ("train on wikipedia", "train on ./wikipedia"),
        ("show genomes", "show run=genomes"),
        ("train on s3://b/x with sparkle for 3 epochs", "train on s3://b/x for 3 epochs"),
        ("train on s3://b/x for 3 epochs for 5 epochs",
         "train on s3://b/x for 3 epochs for 5 epochs --override epochs=3"),
        ("train on s3://b/x not shuffled", "help train"),
        ("stop fox-12 sparkle", "help stop"),
        ("don't train on s3://b/x", "help"),
        ("train", "help train"),
    ],
)  # fmt: skip
def test_what_is_offered(sentence, offered):
    assert command_in(answered(sentence)[1]) == offered


@pytest.mark.parametrize(
    "sentence",
    ["train quark with ~/x", "train with 'a b'", 'train with "a $HOME"', "train with 's3://b/it`s'",
     "train with a*.json", "show fox-12", "train with s3://b/x --override name='a b'"],
)  # fmt: skip
def test_a_command_is_typed_so_that_a_shell_hands_it_over_whole(sentence):
    command = typed(sentence)
    arguments = shlex.split(command)[1:]
    first, second = HUB.read(sentence), HUB.read(join_arguments(arguments))
    assert (first.status, first.slots) == (second.status, second.slots)
    if command.startswith('quark "'):
        assert not set("$`\\!") & set(command)
