"""Keys at what is no terminal of the system."""

import io

import pytest

from tools_utilities.terminal_keys import pressed_keys


class Notebook(io.StringIO):
    """Says that it is a terminal, and has no descriptor."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("closed", [False, True])
def test_nothing_is_typed_at_what_only_says_that_it_is_a_terminal(closed):
    stdin = Notebook("d")
    if closed:
        stdin.close()
    with pressed_keys(stdin) as typed:
        assert typed() == ""


def test_nothing_is_typed_in_a_file(tmp_path):
    (tmp_path / "keys").write_text("d")
    with (tmp_path / "keys").open() as stdin, pressed_keys(stdin) as typed:
        assert typed() == ""
