"""The flags around a sentence; everything that is not exactly a flag belongs to the sentence."""

import pytest

from tools_utilities.errors import UsageError
from tools_utilities.terminal_arguments import HELP, SWITCHES, VALUED, Arguments, parse_arguments


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], Arguments()),
        (["train quark with x/y"], Arguments(words=("train quark with x/y",))),
        (["train", "quark", "--yes", "with", "x/y"], Arguments(words=("train", "quark", "with", "x/y"), yes=True)),
        (
            ["s", "--override", "a=1", "b=2", "--override=note=x = y", "c"],
            Arguments(words=("s", "c"), overrides=("a=1", "b=2", "note=x = y")),
        ),
        (["s", "--override", "a=1", "b"], Arguments(words=("s", "b"), overrides=("a=1",))),
        (["s", "--override", "=x"], Arguments(words=("s",), overrides=("=x",))),
        (["s", "--groups", "1,3-5"], Arguments(words=("s",), groups="1,3-5")),
        (["s", "--groups=all", "--plan"], Arguments(words=("s",), groups="all", plan=True)),
        (["s", "--bucket", "b"], Arguments(words=("s",), overrides=("bucket=b",))),
        (["--json", "--no-input", "--verbose", "s"], Arguments(words=("s",), json=True, no_input=True, verbose=True)),
        (["explain", "--yes please", "--json"], Arguments(words=("explain", "--yes please"), json=True)),
        (["explain", "-train on x/y"], Arguments(words=("explain", "-train on x/y"))),
        (["explain", "--override"], Arguments(words=("explain", "--override"))),
        (["explain", "--"], Arguments(words=("explain", "--"))),
        (["--", "--yes", "x"], Arguments(words=("--yes", "x"))),
        (["--help"], Arguments(help=True)),
        (["--version"], Arguments(version=True)),
        ([""], Arguments(words=("",))),
    ],
)  # fmt: skip
def test_arguments(argv, expected):
    assert parse_arguments(argv) == expected


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["s", "--overide", "a=1"], "--override"),
        (["s", "--overide=a=1"], "--override"),
        (["s", "--jsno"], "--json"),
        (["s", "-q"], "--help"),
        (["s", "--override"], "--override"),
        (["s", "--groups", "--yes"], "--groups"),
    ],
)
def test_a_flag_nobody_knows_is_refused_with_the_nearest(argv, hint):
    with pytest.raises(UsageError) as caught:
        parse_arguments(argv)
    assert hint in caught.value.hint


def test_help_names_every_flag():
    for flag in (*SWITCHES, *VALUED):
        if flag != "--help":
            assert flag in HELP
    assert all(len(line) <= 80 for line in HELP.splitlines())
