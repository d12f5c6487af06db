"""YAML by the 1.2 core rules, and what is refused."""

import math

import pytest

from tools_utilities.errors import UsageError
from tools_utilities.yaml_text import MAX_BYTES, load_yaml, load_yaml_texts


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 0.0001), ("1E3", 1000.0), (".5", 0.5), ("-3", -3), ("+7", 7), ("1.", 1.0),
        ("0", 0), ("no", "no"), ("on", "on"), ("yes", "yes"), ("010", "010"), ("0x10", "0x10"),
        ("1_000", "1_000"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"), ("true", True),
        ("FALSE", False), ("~", None), ("null", None), ("''", ""), ("'~'", "~"), ('"1"', "1"),
        ("!!str 12", "12"), ("=", "="), ("<<", "<<"), (".inf", math.inf),
        ("1" * 5000, "1" * 5000), ("- a\n- 1", ["a", 1]), ("a: {b: [1, x]}", {"a": {"b": [1, "x"]}}),
        ("", None), ("# only a comment", None), ("1: a", {"1": "a"}), ("no: a", {"no": "a"}),
        ("|\n  12\n", "12\n"),
    ],
)  # fmt: skip
def test_scalars_follow_the_core_schema(text: str, value):
    found = load_yaml(text, source="t")

    assert found == value
    assert type(found) is type(value)


def test_texts_stay_as_they_were_written():
    found = load_yaml_texts("a: 1.50\nb: no\nc: ~\nd: '~'\ne: [1e3, 0x1]\nf:\n", source="t")

    assert found == {"a": "1.50", "b": "no", "c": None, "d": "~", "e": ["1e3", "0x1"], "f": None}


def test_aliases_are_followed():
    assert load_yaml("a: &x [1]\nb: *x\n", source="t") == {"a": [1], "b": [1]}


BOMB = "\n".join(
    ["a0: &a0 x", *(f"a{i}: &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))]
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: 'a' is there twice"),
        ("x: 1\na: !!python/object/apply:os.system [ls]\n", "line 2: the tag"),
        ("a: !!int 3\n", "tag"),
        ("a: !custom {}\n", "tag"),
        ("a: &a [*a]\n", "alias of what it stands in"),
        (BOMB, "more than 100,000 values"),
        ("[" * 5000, "nested too deeply"),
        ("a: 1\n---\nb: 2\n", "line 2"),
        ("a: [1\n", "line"),
        ("a:\tb\n\tc", "line"),
        ("? [a]\n: b\n", "line 1: a key must be text"),
        ("a: \x00", "t.yaml"),
        ("a: " + "x" * MAX_BYTES, "larger than"),
    ],
)
def test_what_is_refused_names_file_and_line(text: str, words: str):
    with pytest.raises(UsageError) as caught:
        load_yaml(text, source="t.yaml")

    assert words in str(caught.value)
    assert str(caught.value).startswith("t.yaml: ")
