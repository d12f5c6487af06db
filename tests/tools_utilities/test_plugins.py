"""One file a plug-in, found by its constant; errors and settings travel as they promise."""

import sys
import textwrap

import pytest

from tools_utilities.plugins import load_plugins

PLUGIN = """
class _Plugin:
    name = {name!r}

PLUGIN = _Plugin()
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes a package of plug-ins and returns its dotted name."""

    def write(**files: str) -> str:
        name = f"plugs_{tmp_path.name.replace('-', '_')}_{len(sys.modules)}"
        folder = tmp_path / name
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for stem, text in files.items():
            (folder / f"{stem}.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(tmp_path)
        return name

    return write


def test_plug_ins_are_found_by_the_name_they_give(package):
    name = package(first=PLUGIN.format(name="b"), second=PLUGIN.format(name="a"))
    assert list(load_plugins(name, "PLUGIN")) == ["b", "a"]


def test_helpers_are_no_plug_ins(package):
    assert load_plugins(package(_helper="x = 1"), "PLUGIN") == {}


def test_a_file_without_the_constant_is_named(package):
    with pytest.raises(TypeError, match=r"empty\.py does not define PLUGIN"):
        load_plugins(package(empty="x = 1"), "PLUGIN")


def test_two_of_one_name_are_refused(package):
    name = package(one=PLUGIN.format(name="x"), two=PLUGIN.format(name="x"))
    with pytest.raises(TypeError, match=r"two\.py: the name 'x' is taken"):
        load_plugins(name, "PLUGIN")


def test_a_broken_plug_in_is_not_hidden(package):
    with pytest.raises(ZeroDivisionError):
        load_plugins(package(broken="1 / 0"), "PLUGIN")
