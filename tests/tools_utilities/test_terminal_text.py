"""Escaping, folding, units and pictures: what a terminal shows is what the text holds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools_utilities.terminal_text import (
    COMMAND,
    Span,
    can_draw,
    fit,
    fold,
    fold_line,
    human_age,
    human_bytes,
    human_count,
    human_seconds,
    pairs,
    plain,
    plot,
    render,
    shown,
    spans_of,
    sparkline,
    table,
    thin,
    width_of,
    with_commands,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data/run[train]/[/x]/[bold]c/ \\x é 東京", "data/run[train]/[/x]/[bold]c/ \\x é 東京"),
        ("a\x1b[31mred\x1b[0m", "a\\x1b[31mred\\x1b[0m"),
        ("two\nlines\tand\r", "two\\nlines\\tand\\r"),
        ("nul\x00", "nul\\x00"),
        ("right\u202eleft", "right\\u202eleft"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("not broken\u00a0space", "not broken\\xa0space"),
        ("raw byte \udce9", "raw byte \\udce9"),
    ],
)
def test_only_what_is_plainly_visible_is_shown_as_it_is(text, expected):
    assert shown(text) == expected


@given(st.text())
def test_shown_text_has_no_control_characters(text):
    assert shown(text).isprintable()


def test_render_escapes_inside_colours_and_adds_none_without_them():
    line: list[str | Span] = [Span("\x1b[2J", "red"), " ok"]
    assert render(line, colour=True) == "\x1b[31m\\x1b[2J\x1b[0m ok"
    assert render(line, colour=False) == "\\x1b[2J ok"
    assert plain(line) == "\\x1b[2J ok"


def test_fit_writes_what_an_encoding_lacks_as_escapes():
    assert fit("donn\xe9es/東", "ascii") == "donn\\xe9es/\\u6771"
    assert fit("donn\xe9es", "latin-1") == "donn\xe9es"


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200), st.integers(8, 60))
def test_folding_loses_nothing_and_fits(text, width):
    lines = fold(text, width)
    assert "".join(lines) == shown(text)
    assert all(width_of(line) <= width for line in lines)


def test_folding_cuts_at_blanks_and_only_then_inside_a_word():
    assert fold("alpha beta gamma", 11, indent="  ") == ["  alpha ", "  beta ", "  gamma"]
    assert fold("x" * 20, 8) == ["x" * 8, "x" * 8, "x" * 4]


def test_units():
    assert [human_bytes(n) for n in (0, 1023, 1024, 8_600_000, 2**40, 3 * 2**50)] == [
        "0 B", "1023 B", "1.0 KiB", "8.2 MiB", "1.0 TiB", "3.0 PiB",
    ]  # fmt: skip
    assert [human_count(n) for n in (0, 1234, 12_345_678, 3e9)] == [
        "0", "1,234", "12.3 M", "3.0 B",
    ]  # fmt: skip
    assert [human_seconds(n) for n in (0.84, 42.2, 59.7, 185, 7800)] == [
        "0.8 s", "42 s", "1 min 0 s", "3 min 5 s", "2 h 10 min",
    ]  # fmt: skip


def test_sparkline_spans_its_own_range_and_leaves_out_what_is_no_number():
    assert sparkline([0, 7], width=8) == "▁█"
    assert sparkline([3, float("nan"), float("inf"), 3], width=8) == "▁▁"
    assert sparkline([1, 2], width=4, draw=False).isascii()
    assert sparkline([], width=8) == ""
    assert len(sparkline(list(range(1000)), width=20)) == 20


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 40))
def test_thinning_keeps_the_count_and_the_range(values, count):
    points = thin(values, count)
    assert len(points) == min(len(values), count)
    assert min(values) - 1e-6 <= min(points) <= max(points) <= max(values) + 1e-6


def test_plot_has_its_range_at_the_left_and_stays_in_its_width():
    lines = plot([5.0, 4.0, 3.0, 2.5], width=30, height=4, label="loss")
    assert len(lines) == 4 + 2
    assert lines[0].startswith("        5 │")
    assert lines[3].startswith("      2.5 │")
    assert lines[-1].endswith("loss")
    assert all(width_of(line) <= 30 for line in plot(list(range(500)), width=30, height=4))
    assert all(line.isascii() for line in plot([1.0, 2.0], width=30, height=3, draw=False))


def test_table_aligns_by_cells_and_says_when_it_does_not_fit():
    lines = table(("#", "name"), [("1", "東京/"), ("12", "b/")], width=None, right="r")
    assert lines == [" #  name", " 1  東京/", "12  b/"]
    assert table(("#", "name"), [("1", "x" * 40)], width=40) is None


def test_pairs_keep_values_whole_at_any_width():
    value = "s3://bucket/" + "deep/" * 30
    for width in (20, 40, 80):
        text = "".join(plain(line).strip() for line in pairs([("data", value)], width=width))
        assert value in text.replace(" ", "")
    [line] = pairs([("data", value)], width=None)
    assert plain(line) == f"  data  {value}"


def test_drawing_needs_an_encoding_that_has_blocks():
    assert can_draw("utf-8")
    assert not can_draw("ascii")
    assert not can_draw("latin-1")
    assert not can_draw("no-such-encoding")


@pytest.mark.parametrize("width", [12, 20, 40, 200])
@pytest.mark.parametrize(
    "line",
    [
        "note: a word that is cut nowhere",
        [Span("hint: ", "cyan"), "  quark resume fox-1 for 1 more epoch \x1b[0m"],
        "    indented words of some length",
        "x" * 50 + " end",
        "\u6f22\u5b57 " * 20,
    ],
)
def test_a_line_is_cut_between_words_and_keeps_its_looks(line, width):
    pieces = fold_line(line, width)
    assert all(width_of(plain(piece)) <= width for piece in pieces)
    joined = "".join(plain(piece) for piece in pieces).replace(" ", "")
    assert joined == plain(line).replace(" ", "")
    words = {word for word in plain(line).split() if width_of(word) < width // 2}
    assert words <= {word for piece in pieces for word in plain(piece).split()}

    looks, looks_before = (
        [(char, span.style) for one in lines for span in spans_of(one) for char in shown(span.text)]
        for lines in (pieces, [line])
    )
    assert [look for look in looks if look[0] != " "] == [
        look for look in looks_before if look[0] != " "
    ]


@pytest.mark.parametrize(
    ("hint", "commands"),
    [
        ("Look elsewhere.", []),
        ("Say which: quark 'show \"a b\"'", ["quark 'show \"a b\"'"]),
        ("Continue with `quark resume fox-1`, or `quark show fox-1`.",
         ["quark resume fox-1", "quark show fox-1"]),
        ("quark list", ["quark list"]),
        ("Only quark can do that", []),
        ("", []),
    ],
)  # fmt: skip
def test_a_line_with_a_command_is_never_cut(hint, commands):
    spans = with_commands(hint)
    assert "".join(span.text for span in spans) == hint
    assert [span.text for span in spans if span.style == COMMAND] == commands
    line = [Span("hint: ", "cyan"), *spans]
    assert (fold_line(line, 10) == [line]) is (bool(commands) or not hint)


@pytest.mark.parametrize("width", range(24, 90, 3))
def test_words_beside_a_command_are_cut_and_the_command_is_not(width):
    hint = "Continue with `quark resume fox-1`, or `quark show fox-1`, whatever it says in the end."
    pieces = fold_line([Span("hint: ", "cyan"), *with_commands(hint)], width)
    told = [plain(piece) for piece in pieces]
    assert all(width_of(piece) <= width for piece in told)
    assert " ".join(piece.strip() for piece in told) == f"hint: {hint}"
    assert len(told) > 1
    for command in ("quark resume fox-1", "quark show fox-1"):
        assert [piece for piece in told if command in piece]


def test_ages():
    told = [human_age(seconds) for seconds in (-3, 0.4, 59, 60, 3599, 3600, 86399, 86400, 1e6)]
    assert told == [
        "0 s ago", "0 s ago", "59 s ago", "1 min ago", "59 min ago", "1 h ago", "23 h ago",
        "1 d ago", "11 d ago",
    ]  # fmt: skip
