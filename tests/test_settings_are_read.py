"""No setting is without effect: each key is asked for by the code that acts on it."""

import ast

from tests.test_layout import ROOT, code_files
from tools_utilities.setting_keys import SETTING_KEYS

TABLES = [ROOT / "tools_utilities" / name for name in ("setting_keys.py", "remote_keys.py")]


def words_of_the_code() -> set[str]:
    """Return every text constant, attribute and keyword in the code but for the tables themselves."""
    found: set[str] = set()
    for path in code_files():
        if path in TABLES:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)
    return found


def test_every_setting_is_read_somewhere():
    found = words_of_the_code()
    assert sorted(key.name for key in SETTING_KEYS if key.name not in found) == []


def test_a_setting_of_a_run_reaches_the_code_that_trains():
    """Settings that a job holds under their own name are read from the job, not only copied."""
    from resource_manager.job_settings import SAME_NAME

    read: set[str] = set()
    for path in (ROOT / "brain").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                read.add(node.attr)
    assert sorted(set(SAME_NAME) - read) == []
