"""The environment of processes that this one starts: passed on whole, never searched for settings."""

import os
from collections.abc import Mapping


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
