"""README: its environment table is settings.py's, its sentences are read, its Python parses."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from knowledge_hub.hub import KnowledgeHub
from tools_utilities.settings import environment_variables

CHECKOUT = Path(__file__).resolve().parents[2]
README = (CHECKOUT / "README.md").read_text()
BEGIN = "<!-- environment: begin (tests/end_to_end/test_readme.py holds this table against settings.py) -->"
END = "<!-- environment: end -->"


def environment_table() -> str:
    rows = [
        f"| `{variable.name}` | {variable.meaning.replace('|', chr(92) + '|')} |"
        for variable in environment_variables()
    ]
    return "\n".join(["| variable | meaning |", "| --- | --- |", *rows])


def test_the_environment_table_is_that_of_the_settings():
    table = README.partition(BEGIN)[2].partition(END)[0].strip()

    assert table == environment_table()


def sentences() -> list[str]:
    """Every quoted sentence that README gives to the program."""
    return re.findall(r'^\s+quark "([^"]+)"', README, flags=re.MULTILINE)


@pytest.mark.parametrize("sentence", sentences())
def test_a_sentence_of_the_readme_is_read_whole(sentence):
    assert KnowledgeHub().read(sentence).status == "ok"


def tutorial() -> list[str]:
    """The lines of the tutorial, without what is said beside them."""
    block = README.partition("## Tutorial")[2].partition("`quark` alone")[0]
    lines = [line.strip() for line in block.splitlines() if line.startswith("    quark")]
    return [re.sub(r"\s+# .*", "", line) for line in lines]


def test_the_tutorial_begins_with_nothing_and_ends_with_help():
    lines = tutorial()
    assert (lines[0], lines[-1]) == ("quark demo", "quark help")
    assert len(lines) >= 10


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_the_tutorial_is_followed_literally(tmp_path):
    quark = tmp_path / "bin/quark"
    quark.parent.mkdir()
    quark.write_text(f'#!/bin/sh\nexec {sys.executable} {CHECKOUT / "quark_cli.py"} "$@"\n')
    quark.chmod(0o755)
    folder = tmp_path / "fresh"
    folder.mkdir()
    environment = {**os.environ, "PATH": f"{quark.parent}:{os.environ['PATH']}"}
    for line in tutorial():
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr[-2000:])
        assert "Traceback" not in done.stderr
        assert done.stdout


def test_the_readme_shows_sentences():
    assert len(sentences()) >= 5


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL))
def test_the_python_of_the_readme_imports_what_exists(code):
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module:
            path = CHECKOUT / (node.module.replace(".", "/") + ".py")
            if path.exists():
                names = {alias.name for alias in node.names}
                defined = {
                    getattr(child, "name", None) for child in ast.parse(path.read_text()).body
                }
                assert names <= defined


@pytest.mark.parametrize("target", ["demo", "test", "lint"])
def test_the_make_targets_of_the_readme_exist(target):
    assert re.search(rf"^{target}:", (CHECKOUT / "Makefile").read_text(), flags=re.MULTILINE)
