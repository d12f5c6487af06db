"""A document's rows that tests elsewhere assert to the letter: which, and that those are there."""

import ast
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def not_asserted(table: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the test ids (`file::function`) that name no test, or one that only nights run."""
    return sorted({name for names in table.values() for name in names if not _runs(name)})


def _runs(name: str) -> bool:
    file, _, function = name.partition("::")
    path = ROOT / file
    if not path.is_file() or not function.startswith("test_"):
        return False
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            # A mark on one case of `parametrize` leaves the others.
            marks = {ast.unparse(mark) for mark in node.decorator_list}
            return not marks & {"pytest.mark.nightly", "pytest.mark.network", "pytest.mark.gpu"}
    return False
