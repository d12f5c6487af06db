"""Several curves in one picture of a terminal."""

import math

import pytest

from tools_utilities.terminal_curves import Curve, averaged, curve_lines
from tools_utilities.terminal_text import plain, width_of

FALLING = [(float(n), 10.0 - n) for n in range(10)]
RISING = [(float(n), float(n) + 1) for n in range(10)]


def drawn(*curves: Curve, width: int = 41, height: int = 10, draw: bool = True) -> list[str]:
    lines = curve_lines(curves, width=width, height=height, x_label="steps", draw=draw)
    return [plain(line) for line in lines]


def test_curves_share_their_axes_and_have_marks_of_their_own():
    *rows, axis, numbers, legend = drawn(Curve("a", FALLING), Curve("b", RISING))
    assert len(rows) == 10
    assert rows[0].startswith("       10 │●")
    assert rows[0].endswith("○")
    assert rows[-1].startswith("        1 │○")
    assert rows[-1].endswith("●")
    assert axis.strip().startswith("└─")
    assert numbers.split() == ["0", "9", "steps"]
    assert legend.strip() == "● a   ○ b"


def test_a_shorter_curve_ends_where_it_ends():
    rows = drawn(Curve("a", FALLING), Curve("b", RISING[:2]))
    assert max(row.find("○") for row in rows[:10]) < max(row.rfind("●") for row in rows[:10]) / 2


def test_curves_that_fall_together_are_shown_in_turn():
    rows = drawn(Curve("a", FALLING), Curve("b", FALLING))
    cells = "".join(row.split("│", 1)[1] for row in rows[:10])
    assert cells.count("●") == pytest.approx(cells.count("○"), abs=1)


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("draw", [True, False])
def test_it_fits_and_is_ascii_where_it_must_be(width, draw):
    curves = [Curve(f"heron-{n}", FALLING) for n in range(5)]
    lines = drawn(*curves, width=width, draw=draw)
    assert all(width_of(line) <= max(width, 20) for line in lines)
    assert all(line.isascii() for line in lines) is not draw
    assert all(f"heron-{n}" in " ".join(lines) for n in range(5))


def test_there_is_a_point_in_every_column_between_the_first_and_the_last():
    rows = drawn(Curve("a", [(0.0, 0.0), (100.0, 1.0)]))[:10]
    cells = [row.split("│", 1)[1].ljust(30) for row in rows]
    assert all(any(cell[column] == "●" for cell in cells) for column in range(30))


def test_nothing_is_drawn_of_a_point_and_nothing_of_what_is_not_finite():
    assert drawn(Curve("a", [(1.0, 1.0)])) == []
    assert drawn() == []
    odd = [(0.0, math.nan), *FALLING, (10.0, math.inf)]
    assert drawn(Curve("a", odd)) == drawn(Curve("a", FALLING))


def test_averaging_keeps_the_mean_of_equal_stretches():
    points = [(float(n), float(n % 2)) for n in range(1000)]
    few = averaged(points, 10)
    assert len(few) == 10
    assert all(y == pytest.approx(0.5, abs=0.02) for _, y in few)
    assert averaged(points[:5], 10) == points[:5]
