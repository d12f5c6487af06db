"""Types that msgspec decodes are prepared: unprepared, two first decodings at once crash Python."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
FOLDERS = ("brain", "knowledge_hub", "resource_manager", "tools_utilities")

DECODE_AT_ONCE = """
import sys, threading
import msgspec
from tools_utilities.prepared_types import prepared

sys.setswitchinterval(1e-6)
for _ in range(100):
    class Inner(msgspec.Struct):
        x: int
        y: dict[str, str]

    class Middle(msgspec.Struct):
        inner: Inner
        more: tuple[Inner, ...] = ()

    @prepared
    class Outer(msgspec.Struct):
        middle: Middle
        many: list[Middle] = []

    barrier = threading.Barrier(8)

    def decode():
        barrier.wait()
        msgspec.json.decode(
            b'{"middle":{"inner":{"x":1,"y":{}}},"many":[{"inner":{"x":1,"y":{}}}]}', type=Outer
        )

    threads = [threading.Thread(target=decode) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_a_prepared_type_may_be_decoded_by_many_threads_at_once():
    done = subprocess.run(
        [sys.executable, "-c", DECODE_AT_ONCE], cwd=CHECKOUT, timeout=100, check=False
    )
    assert done.returncode == 0


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for folder in FOLDERS:
        for path in (CHECKOUT / folder).rglob("*.py"):
            yield path, ast.parse(path.read_text())


def names_in(node: ast.AST) -> set[str]:
    found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    return found | {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def decoded_types(tree: ast.Module) -> set[str]:
    """Return the names of types that `decode(…, type=…)` and `convert(…, …)` are given; `decode_json` too."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in {"decode", "decode_json"}:
                given = [keyword.value for keyword in node.keywords if keyword.arg == "type"]
            elif name == "convert":
                given = node.args[1:2]
            else:
                continue
            found = found.union(*map(names_in, given))
    return found


@pytest.fixture(scope="module")
def structs() -> dict[str, bool]:
    """Return each Struct's name, and whether it is prepared."""
    return {
        node.name: any("prepared" in names_in(one) for one in node.decorator_list)
        for _, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and any("Struct" in names_in(b) for b in node.bases)
    }


def test_every_struct_that_is_decoded_is_prepared(structs):
    decoded = {name for _, tree in trees() for name in decoded_types(tree)}
    assert len(decoded & structs.keys()) > 15
    assert not [name for name in sorted(decoded & structs.keys()) if not structs[name]]
