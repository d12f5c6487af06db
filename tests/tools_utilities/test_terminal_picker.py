"""What an answer to the picker means, and that names are shown whole."""

import threading
from typing import Any

import pytest
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from tools_utilities.errors import UsageError
from tools_utilities.terminal_menu import Menu, run_menu
from tools_utilities.terminal_picker import Choice, choice_lines, parse_picks, pick_by_line
from tools_utilities.terminal_text import plain, width_of

LONG = "data/" + "x" * 170 + "/end/"
NAMES = ("data/run[train]/a/", "data/[/x]/b/", "data/[bold]c/", LONG, "data/\xe9/")
SIZES = (10, 500, 30, 40, 50)
CHOICES = tuple(
    Choice(
        name=name,
        facts=(f"0.{90 - i}", f"{8 + i} objects", f"{size} KiB", "jsonl"),
        why="complete numbering",
        size_bytes=size,
    )
    for i, (name, size) in enumerate(zip(NAMES, SIZES, strict=True))
)


@pytest.mark.parametrize(
    ("answer", "picked"),
    [
        ("1", [0]),
        ("1,3-5", [0, 2, 3, 4]),
        (" 2 , 1 ", [1, 0]),
        ("1 3", [0, 2]),
        ("2-2,2", [1]),
        ("3\u20134", [2, 3]),
        ("ALL", [0, 1, 2, 3, 4]),
        ("largest", [1]),
    ],
)
def test_answers_name_choices(answer, picked):
    assert parse_picks(answer, SIZES) == picked


@pytest.mark.parametrize(
    "answer", ["", " ", "0", "6", "1-6", "5-3", "one", "-1", "1.5", "1,x", ","]
)
def test_other_answers_are_refused_with_the_range(answer):
    with pytest.raises(UsageError) as caught:
        parse_picks(answer, SIZES)
    assert "1 to 5" in caught.value.hint


@pytest.mark.parametrize("width", [40, 80, 120, 200])
def test_names_are_complete_at_a_terminal_of_any_width(width):
    lines = [plain(line) for line in choice_lines(CHOICES, width=width)]
    assert all(width_of(line) <= width for line in lines)
    joined = "".join(line.removeprefix(" " * 5) for line in lines)
    for name in NAMES:
        assert name in joined
    assert "…" not in joined


def test_one_choice_a_line_off_a_terminal():
    lines = [plain(line) for line in choice_lines(CHOICES, width=None)]
    assert len(lines) == 1 + len(CHOICES)
    for i, name in enumerate(NAMES, 1):
        assert lines[i].split()[0] == str(i)
        assert name in lines[i]


def answer_lines(*answers: str):
    said: list[str] = []
    queue = iter(answers)
    picked = pick_by_line(
        "Which groups?",
        CHOICES,
        lambda i: [f"record of {NAMES[i]}"],
        width=80,
        say=lambda *lines: said.extend(plain(line) for line in lines),
        ask=lambda _prompt: next(queue, None),
    )
    return picked, said


def test_line_picker_filters_previews_and_asks_again():
    picked, said = answer_lines("/BOLD", "p 3", "9", "1,3")
    assert picked == [0, 2]
    text = "\n".join(said)
    assert text.count("data/[bold]c/") == 3  # the list, the filtered list, the preview
    assert "record of data/[bold]c/" in text
    assert "'9' does not name groups" in text


def test_line_picker_takes_an_empty_answer_or_the_end_of_input_as_none():
    assert answer_lines("")[0] == []
    assert answer_lines()[0] == []


def press(keys: str):
    menu = Menu("Which groups?", CHOICES, lambda i: [f"record of {NAMES[i]}"])
    with create_pipe_input() as pipe:
        pipe.send_text(keys)
        return run_menu(menu, pipe, DummyOutput(), lambda text: text)


DOWN, UP = "\x1b[B", "\x1b[A"


@pytest.mark.parametrize(
    ("keys", "picked"),
    [
        ("\r", [0]),
        (DOWN + "\r", [1]),
        (UP + "\r", [4]),
        (" " + DOWN + DOWN + " \r", [0, 2]),
        ("  " + DOWN + "\r", [1]),  # marked and unmarked
        ("1,3-4\r", [0, 2, 3]),
        ("all\r", [0, 1, 2, 3, 4]),
        ("largest\r", [1]),
        ("99\r2\r", [1]),  # a wrong answer is told, then asked again
        ("12\x7f\r", [0]),  # backspace
        ("/bold\r\r", [2]),
        ("p2\r2\r", [1]),
        ("p\r", [0]),  # a preview is no answer
        ("\x04", []),
    ],
)
def test_keys_pick(keys, picked):
    assert press(keys) == picked


def test_ctrl_c_in_the_menu_interrupts():
    with pytest.raises(KeyboardInterrupt):
        press("\x03")


def test_menu_lines_hold_names_whole_and_the_preview():
    menu = Menu("Which groups?", CHOICES, lambda i: [f"record of {NAMES[i]}"])
    for char in "p4":
        menu.type(char)
    assert menu.enter() is None
    rows, cursor = menu.lines(40)
    joined = "".join(text.removeprefix(" " * 10) for _, text in rows)
    assert LONG in joined
    assert "record of" in joined
    assert rows[cursor][0] == "reverse"
    menu.type("7")
    footer = menu.footer(40)
    assert footer[-1] == ("bold", "> 7")
    assert all(width_of(text) <= 40 for _, text in [*rows, *footer])


def many(count: int) -> tuple[Choice, ...]:
    return tuple(
        Choice(
            name=f"data/set-{n * 7 % count:04}/", facts=("0.90", "8 objects", "1 KiB", "jsonl"),
            why="even sizes", size_bytes=n * 31 % count,
        )
        for n in range(count)
    )  # fmt: skip


@pytest.mark.parametrize("size", [(80, 24), (40, 12), (200, 50)])
@pytest.mark.parametrize("count", [3, 40, 2000])
def test_a_list_of_any_length_keeps_the_cursor_in_sight(count, size):
    width, height = size
    menu = Menu("Which groups?", many(count), lambda i: [f"record of {i} " * 30])
    room = height - len(menu.footer(width)) - 1
    steps: list[Any] = [
        lambda: None,
        *[lambda: menu.turn(1)] * 5,
        lambda: menu.go(10**6),
        lambda: menu.move(1),
    ]
    for step in steps:
        step()
        for key in ("", "p"):
            for char in key:
                menu.type(char)
            rows, cursor = menu.lines(width, max(3, room))
            assert rows[cursor][0] == "reverse"
            assert menu.choices[menu.listed[menu.at]].name in rows[cursor][1]
            assert len(rows) <= max(9, room)
            assert all(width_of(text) <= width for _, text in rows)
    assert menu.at == 0  # one down from the last is the first


def test_paging_shows_every_choice():
    menu = Menu("Which groups?", many(40), lambda _i: [])
    seen: set[str] = set()
    for _ in range(40):
        rows, _cursor = menu.lines(80, 15)
        seen.update(word for _, text in rows for word in text.split() if word.startswith("data/"))
        menu.turn(1)
    assert len(seen) == 40
    assert menu.at == 39  # the end is an end


def test_the_list_is_sorted_and_filtered_as_it_is_typed():
    menu = Menu("Which groups?", CHOICES, lambda _i: [])
    menu.type("s")
    assert [NAMES[i] for i in menu.listed] == sorted(NAMES, key=str.casefold)
    menu.type("s")
    assert [SIZES[i] for i in menu.listed] == sorted(SIZES, reverse=True)
    assert "by size" in menu.lines(80)[0][1][1] + menu.lines(80)[0][2][1]
    menu.type("s")
    assert menu.listed == [0, 1, 2, 3, 4]
    for char in "/BO":
        menu.type(char)
    assert [NAMES[i] for i in menu.listed] == ["data/[bold]c/"]
    menu.erase()
    menu.erase()
    assert len(menu.listed) == 5
    for char in "/nothing":
        menu.type(char)
    assert menu.listed == []
    assert "no group's name holds" in "".join(text for _, text in menu.lines(80, 20)[0])
    assert not menu.leave()  # Esc takes the filter back first
    assert len(menu.listed) == 5
    assert menu.leave()


def test_marks_outlive_a_filter():
    assert press(" /bold\r \r") == [0, 2]


def test_a_preview_that_never_comes_does_not_hold_the_keys():
    gone = threading.Event()

    def hang(_index: int) -> list[str]:
        gone.wait(30)
        return []

    menu = Menu("Which groups?", CHOICES, hang)
    with create_pipe_input() as pipe:
        pipe.send_text("p" + DOWN + " \r")
        assert run_menu(menu, pipe, DummyOutput(), lambda text: text) == [1]
    gone.set()


def test_the_plain_list_is_sorted_and_shown_a_page_at_a_time():
    said: list[str] = []
    queue = iter(["n", "s name", "/set-1999", "1"])
    picked = pick_by_line(
        "Which groups?", many(2000), lambda _i: [], width=80,
        say=lambda *lines: said.append("\n".join(plain(line) for line in lines)),
        ask=lambda _prompt: next(queue, None),
    )  # fmt: skip
    assert picked == [0]
    assert sum(text.count("data/set-") for text in said) == 50 + 50 + 50 + 1
    assert "1-50 of 2,000; n shows the next ones" in said
    assert "51-100 of 2,000; n shows the next ones" in said
    assert "data/set-0000/" in said[5].splitlines()[0]
