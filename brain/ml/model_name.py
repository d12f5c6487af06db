"""What a model's name says; imports no torch, so that a plan can tell before anything is loaded.

`quark` (a file of `brain/ml/models/`), `package.module:build` (the user's own), `hf:FOLDER` (a causal
language model that transformers saved), or the name of a command in `quark.yaml`.
"""

import ast
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from tools_utilities.errors import UsageError
from tools_utilities.process_environment import OWN_PACKAGES

HF_PREFIX = "hf:"
FORM = "package.module:function"


def is_hf(name: str) -> bool:
    """Tell whether a name is that of a folder with a transformers model."""
    return name.startswith(HF_PREFIX)


def is_own(name: str) -> bool:
    """Tell whether a name is that of a function that builds the user's own model."""
    return ":" in name and not is_hf(name)


def check_own(name: str, project_dir: str | None) -> None:
    """Look for the function that a name means, without running any of its code.

    Raises:
        UsageError: there is no such module, or no such name at its top level.
    """
    module, function = split_own(name)
    first = module.partition(".")[0]
    if first in OWN_PACKAGES:
        raise UsageError(
            f"model {name}: {first} is a package of Quark's own", hint="Give yours another name."
        )
    spec = _find(module, project_dir)
    if spec is None or spec.origin is None:
        where = f" in {project_dir}" if project_dir else ""
        raise UsageError(
            f"model {name}: there is no module {module}{where}",
            hint=f"Write it as {module.replace('.', '/')}.py in the project's folder.",
        )
    known = _names(Path(spec.origin))
    if known is not None and function not in known:
        raise UsageError(
            f"model {name}: {spec.origin} defines no {function}",
            hint=f"Define `def {function}(config)` in it; it returns a torch module and a loss.",
        )


def split_own(name: str) -> tuple[str, str]:
    """Return (module, function) of a name.

    Raises:
        UsageError: it is of another form.
    """
    module, _, function = name.partition(":")
    parts = [*module.split("."), function]
    if not all(part.isidentifier() for part in parts):
        raise UsageError(f"model {name}: not of the form {FORM}", hint="As mypkg.models:build.")
    return module, function


def _find(module: str, project_dir: str | None) -> ModuleSpec | None:
    """Return where a module lies; unlike importlib's own search this imports no package."""
    path: list[str] | None = [*([project_dir] if project_dir else []), *sys.path]
    spec: ModuleSpec | None = None
    for part in module.split("."):
        if path is None:
            return None
        spec = PathFinder.find_spec(part, path)  # by its own name: a dotted one wants its parent
        if spec is None:
            return None
        if spec.submodule_search_locations is None:
            path = None
        elif spec.origin is None:  # a folder without __init__.py, which only an import lists
            path = [str(folder) for one in path if (folder := Path(one) / part).is_dir()]
        else:
            path = list(spec.submodule_search_locations)
    return spec


def _names(path: Path) -> set[str] | None:
    """Return what a module's top level defines; None where only running it could tell."""
    if path.suffix != ".py":
        return None
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return None  # importing it says what is wrong
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {one.id for one in targets if isinstance(one, ast.Name)}
        elif not isinstance(node, ast.Expr | ast.Pass):
            return None  # `if`, `try`, `for` …: it may define anything
    return None if "*" in names or "__getattr__" in names else names
