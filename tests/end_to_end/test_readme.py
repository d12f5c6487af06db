"""README: its environment table is settings.py's, its sentences are read, its Python parses."""

import ast
import re
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
