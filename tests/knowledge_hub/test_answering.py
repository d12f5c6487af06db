"""Open questions of a sentence: what is offered, what an answer makes of it, what is said unasked."""

import shlex
from typing import Any

import pytest

from knowledge_hub.helping import NOT_YET, help_lines
from knowledge_hub.hub import KnowledgeHub, intents
from tests.tools_utilities.test_console import make
from tools_utilities.errors import InputNeededError, UsageError
from tools_utilities.reading_dialogue import Offered, drawn, settle
from tools_utilities.terminal_text import fold_line, plain

RUNS = [Offered("fox-2", "finished"), Offered("fox-1", "lost"), Offered("odd\x1b[31m", "lost")]


def offer(slot: str, _intent: str | None) -> list[Offered]:
    return RUNS if slot == "run" else []


def settled(sentence: str, answers: str, *, terminal: bool = True) -> tuple[Any, str]:
    read: Any = KnowledgeHub().read
    console, _, err = make(answers=answers, terminal=terminal, term="dumb")
    try:
        reading, _ = settle(read(sentence), read, console, offer)
    except UsageError as error:
        return error, err.written()
    return reading, err.written()


@pytest.mark.parametrize(("answer", "run"), [("2\n", "fox-1"), ("fox-9\n", "fox-9")])
def test_a_run_is_chosen_by_its_number_or_name(answer, run):
    reading, said = settled("show", answer)
    assert reading.slots == {"run": run}
    assert "  1  fox-2  finished\n  2  fox-1  lost\n" in said
    assert "Which run? [1-2, or its name] " in said
    assert "\x1b" not in said
    assert "odd" not in said  # typed into a line, it would not be what was meant


@pytest.mark.parametrize("answers", ["\n", ""])
def test_no_answer_does_nothing(answers):
    error, _ = settled("show", answers)
    assert "nothing done" in str(error)


def test_what_is_not_known_is_asked_plainly():
    reading, said = settled("train", "data/x\n")
    assert reading.slots["data"] == ["data/x"]
    assert "[1-" not in said


def test_off_a_terminal_the_answer_is_in_the_hint():
    error, _ = settled("stop", "", terminal=False)
    assert isinstance(error, InputNeededError)
    assert error.hint == 'Say it: quark "stop fox-2"; or fox-1'


def test_help_marks_what_cannot_be_carried_out_yet():
    lines = help_lines(None)
    for name, intent in intents().items():
        [line] = [line for line in lines if line.split()[:1] == [name]]
        assert line.endswith(NOT_YET) is (intent.run is None)
        assert help_lines(name)[0].endswith(NOT_YET) is (intent.run is None)


@pytest.mark.parametrize("width", [None, 40, 80])
def test_the_same_command_is_drawn_in_one_line_as_a_shell_takes_it(width):
    reading: Any = KnowledgeHub().read(f'train with "./a b/{"long" * 30}" for 3 epocs please')
    last = drawn(reading, width=width, draw=True)[-1]
    command = plain(last).removeprefix("same as  ")
    assert shlex.split(command) == ["quark", reading.canonical]
    assert fold_line(last, 40) == [last]
