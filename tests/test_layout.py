"""The layout's promises: imports point down, heavy libraries load late, each plug-in is one file."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("quark_cli.py", "knowledge_hub", "resource_manager", "brain", "tools_utilities")

# From the bottom up; a module may import from its own level and below.
LEVELS = (
    "tools_utilities",
    "tools_utilities.scripts",
    "brain",
    "resource_manager",
    "knowledge_hub",
    "tools_utilities.scripts.quark_cli",
    "quark_cli",
)
PLUG_INS = {
    "tools_utilities/object_stores": "STORE_SCHEME",
    "tools_utilities/shard_formats": "SHARD_FORMAT",
    "tools_utilities/sample_sources": "SAMPLE_SOURCE",
    "brain/ml/dataset_shards/partition_strategies": "STRATEGY",
    "knowledge_hub/intents": "INTENT",
    "resource_manager/launch_targets": "LAUNCH_TARGET",
    "brain/ml/trackers": "TRACKER",
}
OURS = {"tests", *(name.removesuffix(".py") for name in CODE)}
ENVIRONMENT_READERS = {
    "tools_utilities/settings.py",
    "tools_utilities/process_environment.py",
    "brain/ml/process_group.py",
}


def code_files() -> list[Path]:
    found: list[Path] = []
    for name in CODE:
        path = ROOT / name
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def level_of(module: str) -> int | None:
    """Return the level of one of our modules: that of its longest matching name."""
    fitting = [name for name in LEVELS if module == name or module.startswith(name + ".")]
    return LEVELS.index(max(fitting, key=len)) if fitting else None


def imports_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield imported modules and lines; `from a import b` gives both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


FILES = code_files()


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Return every file of the code, parsed, by its path from the root."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"), str(path))
        for path in FILES
    }


def test_imports_point_down(trees):
    wrong = []
    for name, tree in trees.items():
        own = level_of(module_of(ROOT / name))
        assert own is not None, name
        for imported, line in imports_of(tree):
            level = level_of(imported)
            if level is not None and level > own:
                wrong.append(f"{name}:{line} imports {imported}")
    assert wrong == []


def test_levels_would_catch_an_upward_import():
    assert level_of("tools_utilities.errors") == 0
    assert level_of("tools_utilities.scripts.dataset_discovery") == 1
    assert level_of("tools_utilities.scripts.quark_cli") == 5
    assert level_of("brain.ml.train") == 2
    assert level_of("quark_cli") == 6
    assert level_of("numpy") is None
    tree = ast.parse("def f():\n    from brain.ml import trainer\n")
    assert list(imports_of(tree)) == [("brain.ml", 2), ("brain.ml.trainer", 2)]


def test_only_brain_imports_torch(trees):
    wrong = [
        f"{name}:{line}"
        for name, tree in trees.items()
        if not name.startswith("brain/")
        for imported, line in imports_of(tree)
        if imported.partition(".")[0] == "torch"
    ]
    assert wrong == []


def reads_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        named = node.attr in {"environ", "environb", "getenv", "putenv"}
        return named and isinstance(node.value, ast.Name) and node.value.id == "os"
    if isinstance(node, ast.ImportFrom) and node.module == "os":
        return any(alias.name in {"environ", "getenv"} for alias in node.names)
    return False


def test_only_two_files_read_the_environment(trees):
    wrong = [
        f"{name}:{getattr(node, 'lineno', 0)}"
        for name, tree in trees.items()
        if name not in ENVIRONMENT_READERS
        for node in ast.walk(tree)
        if reads_environment(node)
    ]
    assert wrong == []


def test_reading_the_environment_is_recognised():
    for text in (
        "import os\nos.environ['A']",
        "from os import getenv",
        "import os\nos.getenv('A')",
    ):
        assert any(reads_environment(node) for node in ast.walk(ast.parse(text)))


def test_no_module_uses_future_annotations_or_relative_imports(trees):
    wrong = [
        f"{name}:{node.lineno}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module == "__future__" or node.level)
    ]
    assert wrong == []


def test_files_stay_short():
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in FILES
    }
    assert {name: lines for name, lines in lengths.items() if lines > 400} == {}


@pytest.mark.parametrize("folder", [name for name in PLUG_INS if (ROOT / name).is_dir()])
def test_every_plug_in_ends_in_its_constant(folder):
    constant = PLUG_INS[folder]
    for path in sorted((ROOT / folder).glob("[!_]*.py")):
        last = ast.parse(path.read_text(encoding="utf-8")).body[-1]
        assert isinstance(last, ast.AnnAssign), path
        assert isinstance(last.target, ast.Name), path
        assert last.target.id == constant, path


HEAVY = ("torch", "boto3", "botocore", "pyarrow", "obstore", "prompt_toolkit")


@pytest.mark.parametrize(
    "module",
    ["tools_utilities.scripts.quark_cli", "tools_utilities.object_store", "knowledge_hub.hub"],
)
def test_importing_loads_nothing_heavy(module):
    if not (ROOT / (module.replace(".", "/") + ".py")).exists():
        return  # the promise is about a file that this part of the project has yet to bring
    program = (
        f"import sys, {module}; "
        f"print(*sorted({set(HEAVY)} & {{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def test_knowing_every_store_scheme_loads_no_sdk():
    program = (
        "import sys; from tools_utilities.object_store import store_schemes; store_schemes(); "
        f"print(*sorted({set(HEAVY)} & {{name.partition('.')[0] for name in sys.modules}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def tracked_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        return FILES  # an unpacked release: no repository
    return [ROOT / name for name in listed.stdout.split("\0") if name]


# Written apart, so that this file does not hold what it looks for.
MACHINE = re.compile(
    "|".join(
        [
            "/" + r"work/(main|shared)\b",
            "/" + r"root/\.",
            "/" + r"tmp/q\b",
            "extra-index-" + "url",
            "index-" + r"url\s*=",
            "PIP_" + "INDEX",
            "files" + r"\.pythonhosted",
            "artifact" + "ory",
        ]
    )
)


def test_what_tests_import_is_declared():
    """A package that only comes along with another one is gone when that one drops it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    declared = {canonical(re.split(r"[^\w.-]", line)[0]) for line in lines}
    owners = packages_distributions()
    undeclared = {
        (str(path.relative_to(ROOT)), name)
        for path in (ROOT / "tests").rglob("*.py")
        for name in top_level_imports(path.read_text(encoding="utf-8"))
        if name in owners.keys() - OURS and declared.isdisjoint(map(canonical, owners[name]))
    }
    assert not undeclared


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def top_level_imports(text: str) -> set[str]:
    found: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def test_no_tracked_file_names_a_machine_or_a_registry():
    found = []
    for path in tracked_files():
        if not path.is_file() or path.is_relative_to(ROOT / "tests" / "cases"):
            continue  # the cases quote what others reported
        if path.suffix == ".jsonl":
            continue  # sentences people typed
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in MACHINE.finditer(text)]
    assert found == []


def test_the_search_for_machine_paths_finds_them():
    assert MACHINE.search("see " + "/" + "work/main/x")
    assert MACHINE.search("--" + "index-" + "url=https://x")
    assert not MACHINE.search("a package of the name quark")
