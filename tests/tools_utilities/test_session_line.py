"""Flags typed inside the session, and what is left for the language."""

import pytest

from tools_utilities.errors import UsageError
from tools_utilities.session_line import line_arguments, split_line
from tools_utilities.terminal_arguments import Arguments

PLAIN = Arguments()


@pytest.mark.parametrize(
    ("line", "words", "flags"),
    [
        ("train with ./d", "train with ./d", {}),
        ("train with ./d --plan", "train with ./d", {"plan": True}),
        ("--yes train with ./d", "train with ./d", {"yes": True}),
        ("train with ./d --groups 1,3 --yes", "train with ./d", {"groups": "1,3", "yes": True}),
        ("train with ./d --groups=1,3", "train with ./d", {"groups": "1,3"}),
        ("train with ./d --plan --out 'my plan'", "train with ./d", {"out": "my plan"}),
        ("--from-plan plan.json", "", {"from_plan": "plan.json"}),
        ('train with "./d --plan"', 'train with "./d --plan"', {"plan": False}),
        ("train with ./d --override lr=1", "train with ./d --override lr=1", {}),
        ("train with ./d --frob", "train with ./d --frob", {}),
        ("explain train --plan", "explain train --plan", {"plan": False}),
        ("quark show fox-12", "show fox-12", {}),
        ('quark "train with ./d" --yes', "train with ./d", {"yes": True}),
        ("what's running? --json", "what's running?", {"json": True}),
        ("train with bob's --plan", "train with bob's", {"plan": True}),
    ],
)
def test_flags_are_taken_out_of_the_line(line, words, flags):
    found = line_arguments(line, PLAIN)
    assert " ".join(found.words) == words
    assert {name: getattr(found, name) for name in flags} == flags


def test_what_is_left_keeps_its_places():
    line = "train --plan with ./d frobnicate"
    kept, flags = split_line(line)
    assert flags == ["--plan"]
    assert len(kept) == len(line)
    assert kept.index("frobnicate") == line.index("frobnicate")


def test_the_flags_of_the_session_hold_for_every_line():
    base = Arguments(verbose=True, overrides=("bucket=b",))
    found = line_arguments("list runs --bucket other", base)
    assert found.verbose
    assert found.overrides == ("bucket=b", "bucket=other")


def test_a_flag_without_its_value_is_an_error():
    with pytest.raises(UsageError, match="--groups"):
        line_arguments("train with ./d --groups", PLAIN)
