"""The environment of processes that this one starts: passed on whole, never searched for settings."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[1]
OWN_PACKAGES = ("brain", "knowledge_hub", "resource_manager", "tools_utilities")


def own_program(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command line of one of Quark's own modules; its environment needs `OWN_PATH`.

    `-P`: Python would look in the current folder first, and take a project's folder `brain` for Quark's.
    """
    return (sys.executable, "-P", "-m", module, *arguments)


OWN_PATH = {"PYTHONPATH": str(PACKAGE_ROOT)}
"""Where `own_program` finds these packages, installed or not."""


def environment_now() -> dict[str, str]:
    """Return this process's environment, for a process that another one starts for it."""
    return dict(os.environ)


def take_environment(variables: Mapping[str, str]) -> None:
    """Make `variables` this process's environment, in place of all that it had."""
    os.environ.clear()
    os.environ.update(variables)


def child_environment(added: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment with variables added, for a process that it starts.

    What PYTHONPATH holds already stays in it, after what is added.
    """
    variables = {**os.environ, **added}
    paths = [added.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    if any(paths):
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return variables
