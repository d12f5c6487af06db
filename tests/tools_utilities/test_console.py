"""The console on pipes, files and terminals: where things go, what is escaped, when it asks."""

import io
import json
import os
from typing import Any

import msgspec
import pytest

from tools_utilities.console import Console, Surroundings
from tools_utilities.errors import DataNotFoundError, InputNeededError
from tools_utilities.terminal_picker import Choice, choice_lines
from tools_utilities.terminal_reading import Mark, reading_lines
from tools_utilities.terminal_text import Span, plain

PREFIXES = (
    "data/datasets/run[train]/a/",
    "data/datasets/[/x]/b/",
    "data/datasets/[bold]c/",
    "data/datasets/" + "y" * 160 + "/end/",
    "data/datasets/donn\xe9es/",
)
CHOICES = tuple(
    Choice(name=name, facts=("0.90", "8 objects", "8.2 MiB", "jsonl"), why="even sizes")
    for name in PREFIXES
)


class Stream(io.TextIOWrapper):
    """A stream in memory that may say it is a terminal."""

    def __init__(self, text: str = "", *, terminal: bool = False, encoding: str = "utf-8"):
        super().__init__(io.BytesIO(text.encode()), encoding=encoding)
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def written(self) -> str:
        self.flush()
        buffer = self.buffer
        assert isinstance(buffer, io.BytesIO)
        return buffer.getvalue().decode(self.encoding)


def make(*, answers: str = "", terminal: bool = True, encoding: str = "utf-8", **about: Any):
    streams = (
        Stream(answers, terminal=terminal),
        Stream(terminal=terminal, encoding=encoding),
        Stream(terminal=terminal, encoding=encoding),
    )
    console = Console(Surroundings(**about), stdin=streams[0], stdout=streams[1], stderr=streams[2])
    return console, streams[1], streams[2]


def test_results_go_to_stdout_and_the_rest_to_stderr():
    console, out, err = make(terminal=False)
    console.result(["a result"])
    console.note("a note")
    console.warn("careful")
    assert out.written() == "a result\n"
    assert err.written() == "a note\nwarning: careful\n"


def test_at_a_terminal_lines_are_cut_between_words_and_off_one_never():
    words = "note: every word of this line stays whole, whatever the width of the terminal is"
    for terminal in (True, False):
        console, out, err = make(terminal=terminal, columns=30, no_color=True)
        console.note(words)
        console.result([words])
        assert out.written() == err.written()
        assert out.written().split() == words.split()
        longest = max(len(line) for line in out.written().splitlines())
        assert longest <= 30 if terminal else longest == len(words)


def test_json_keeps_stdout_for_json():
    console, out, err = make(terminal=False, json=True)
    console.result(["for people"], {"schema": 1, "text": "\xe9\x1b", "path": None})
    console.result(["for people only"])
    console.event({"event": "step"})
    console.note("still here")
    lines = [json.loads(line) for line in out.written().splitlines()]
    assert lines == [{"schema": 1, "text": "\xe9\x1b", "path": None}, {"event": "step"}]
    assert err.written() == "still here\n"


def test_structs_become_json():
    class Point(msgspec.Struct):
        x: int

    console, out, _ = make(terminal=False, json=True)
    console.result([], {"point": Point(x=1)})
    assert json.loads(out.written()) == {"point": {"x": 1}}


def test_events_need_json():
    console, out, _ = make(terminal=False)
    console.event({"event": "step"})
    assert out.written() == ""


def test_an_error_is_one_line_one_hint_and_its_exit_code():
    console, out, err = make(terminal=False)
    code = console.error(DataNotFoundError("no \x1b[31m data\nthere", hint="Look\telsewhere."))
    assert code == 3
    assert err.written() == "error: no \\x1b[31m data\\nthere\nhint: Look\\telsewhere.\n"
    assert out.written() == ""


def test_an_unexpected_error_has_no_traceback_unless_verbose():
    for verbose in (False, True):
        console, _, err = make(terminal=False, verbose=verbose)
        with pytest.raises(ZeroDivisionError) as caught:
            _ = 1 / 0
        assert console.error(caught.value) == 1
        text = err.written()
        assert text.startswith("error: ZeroDivisionError: division by zero\nhint: ")
        assert ("Traceback" in text) is verbose


def test_errors_under_json_are_an_object_too():
    console, out, _ = make(terminal=False, json=True)
    console.error(DataNotFoundError("nothing", hint="Look.", key="a/b"))
    assert json.loads(out.written()) == {
        "schema": 1, "event": "error", "kind": "DataNotFoundError", "message": "nothing",
        "hint": "Look.", "exit_code": 3, "detail": {"key": "a/b"},
    }  # fmt: skip


@pytest.mark.parametrize(
    "about",
    [
        {"terminal": False},
        {"no_color": True},
        {"term": "dumb"},
        {"ci": True},
        {"no_input": True},
        {"terminal": False, "columns": 40},
    ],
)
def test_no_escape_byte_where_none_belongs(about):
    console, out, err = make(**about)
    console.result([[Span("x", "red"), "y"], "\x1b[2J"])
    console.error(DataNotFoundError("\x1b]0;title\x07"))
    with console.working("looking"):
        pass
    assert "\x1b" not in out.written() + err.written()


def test_a_terminal_gets_colours_but_no_foreign_escape():
    console, out, _ = make()
    console.result([[Span("x", "red"), "\x1b[2J"]])
    assert out.written() == "\x1b[31mx\x1b[0m\\x1b[2J\n"


@pytest.mark.parametrize("columns", [None, 40, 80, 200])
@pytest.mark.parametrize("terminal", [False, True])
def test_b52_prefixes_are_complete_and_unaltered(columns, terminal):
    console, out, _ = make(terminal=terminal, columns=columns, no_color=True)
    console.result(choice_lines(CHOICES, width=console.result_width))
    lines = out.written().splitlines()
    joined = "".join(line.removeprefix(" " * 5) for line in lines)
    for number, prefix in enumerate(PREFIXES, 1):
        assert prefix in joined
        assert any(line.lstrip().startswith(f"{number}  ") for line in lines)
        if not terminal:
            assert sum(prefix in line for line in lines) == 1
    assert "…" not in joined


def test_b52_ascii_output_shows_what_it_cannot_write_as_escapes():
    console, out, _ = make(terminal=False, encoding="ascii")
    console.result(choice_lines(CHOICES, width=None))
    assert "data/datasets/donn\\xe9es/" in out.written()
    assert not console.draws_blocks


def test_b52_a_reader_that_left_ends_the_output_not_the_program():
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "w") as out:
        console = Console(Surroundings(), stdin=Stream(), stdout=out, stderr=Stream())
        for _ in range(3):
            console.result(["x" * 100_000])


def test_closed_streams_are_no_error():
    console = Console(Surroundings(), stdin=Stream(), stdout=Stream(), stderr=Stream())
    console._out = console._err = console._stdin = None
    console.result(["x"])
    console.note("y")
    assert not console.can_ask
    assert console.result_width is None


@pytest.mark.parametrize(
    "about",
    [{"terminal": False}, {"ci": True}, {"no_input": True}, {"terminal": False, "ci": True}],
)
def test_b50_nobody_is_asked_and_nothing_is_read_off_a_terminal(about):
    console, _, _ = make(answers="y\n", **about)
    with pytest.raises(InputNeededError):
        console.confirm("Start?")
    with pytest.raises(InputNeededError):
        console.ask("Which data?")
    with pytest.raises(InputNeededError):
        console.menu("Which?", ["a", "b"])
    with pytest.raises(InputNeededError):
        console.pick("Which?", CHOICES, lambda _i: [])
    assert console._stdin is not None
    assert console._stdin.read() == "y\n"


def test_b50_the_question_is_on_stderr_when_stdout_is_a_file():
    out, err = Stream(), Stream(terminal=True)
    console = Console(Surroundings(), stdin=Stream("y\n", terminal=True), stdout=out, stderr=err)
    assert console.confirm("Start?")
    assert "Start? [Y/n]" in err.written()
    assert out.written() == ""


@pytest.mark.parametrize(
    ("answers", "default", "expected"),
    [
        ("\n", True, True),
        ("\n", False, False),
        ("YES\n", False, True),
        ("n\n", True, False),
        ("maybe\ny\n", False, True),
        ("", True, False),  # the end of input is no
    ],
)
def test_confirm(answers, default, expected):
    console, _, _ = make(answers=answers)
    assert console.confirm("Go?", default=default) is expected


def test_menu_and_ask():
    console, _, err = make(answers="9\n2\n\n  s3://b/x \n", no_color=True)
    assert console.menu("Which?", ["first", "[second]"]) == 1
    assert console.menu("Which?", ["first", "second"]) is None
    assert console.ask("Which data?") == "s3://b/x"
    assert "  2  [second]" in err.written()
    assert "from 1 to 2" in err.written()


def test_pick_by_line_on_a_dumb_terminal():
    console, _, err = make(answers="/bold\n2,3\n", term="dumb")
    assert console.pick("Which groups?", CHOICES, lambda _i: []) == [1, 2]
    assert "\x1b" not in err.written()


def test_live_repaints_without_losing_brackets():
    console, _, err = make(columns=60)
    with console.live() as paint:
        paint([[Span("run[train]", "title"), " step 1"], "loss [bold]2.0"])
        paint(["step 2"])
    text = err.written()
    assert "run[train]" in text
    assert "[bold]2.0" in text
    assert "step 2" in text


def test_reading_is_drawn_under_the_sentence():
    sentence = "train on s3://b/x frobnicate"
    marks = [Mark(0, 5, "train"), Mark(9, 17, "data"), Mark(18, 28, "not understood", "error")]
    lines = [plain(line) for line in reading_lines(sentence, marks, width=None, draw=False)]
    assert lines == [
        "train on s3://b/x frobnicate",
        "+---+    +------+ ^^^^^^^^^^",
        "train    data     not understood",
    ]


def test_a_long_reading_is_cut_into_pieces_that_fit():
    sentence = "train quark with " + "d/" * 30 + " for 3 epochs"
    marks = [Mark(0, 5, "train"), Mark(17, 77, "data"), Mark(82, 90, "epochs")]
    lines = [plain(line) for line in reading_lines(sentence, marks, width=40, draw=True)]
    assert all(len(line) <= 40 for line in lines)
    assert (
        "".join(line for line in lines if "└" not in line and "data" not in line).count("d/") == 30
    )


def test_labels_that_would_touch_go_to_the_next_row():
    marks = [Mark(0, 1, "checkpoint_every"), Mark(2, 3, "b")]
    lines = [plain(line) for line in reading_lines("x y", marks, width=None, draw=False)]
    assert lines == ["x y", "| |", "checkpoint_every", "  b"]
