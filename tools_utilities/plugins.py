"""Finds what a plural folder holds: every module in it ends in one constant, and that is the registry."""

from importlib import import_module
from pathlib import Path
from typing import Any


def load_plugins(folder: str, constant: str) -> dict[str, Any]:
    """Return name → plug-in for the package `folder` (dotted), in name order.

    Every module of the folder must define `constant`, whose `name` is its key.

    Raises:
        TypeError: a module lacks the constant, or two modules claim one name.
    """
    package = import_module(folder)
    plugins: dict[str, Any] = {}
    for path in sorted(Path(next(iter(package.__path__))).glob("[!_]*.py")):
        module = import_module(f"{folder}.{path.stem}")
        plugin = getattr(module, constant, None)
        if plugin is None:
            raise TypeError(f"{folder}/{path.name} does not define {constant}")
        if plugin.name in plugins:
            raise TypeError(f"{folder}/{path.name}: the name {plugin.name!r} is taken")
        plugins[plugin.name] = plugin
    return plugins
