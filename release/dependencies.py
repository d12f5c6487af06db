"""What Quark is made of: the packages it needs, whatever they need, and what each says of itself.

Read from `pyproject.toml` and the metadata of what is installed here. A package that is not installed
here (an extra nobody asked for) is known by its name and its pin alone.
"""

import re
import tomllib
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
DEVELOPMENT = "dev"
"""The extra that no user installs."""
_CLASSIFIER = "License :: OSI Approved :: "
_LONGEST = 60
CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "ISC License (ISCL)": "ISC",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
    "Zero-Clause BSD (0BSD)": "0BSD",
    "The Unlicense (Unlicense)": "Unlicense",
}
"""What older packages say, as SPDX says it."""
TEXTS = {
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache": "Apache-2.0",
    "BSD": "BSD-3-Clause",
    "BSD 3-Clause": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "3-Clause BSD License": "BSD-3-Clause",
}
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Package:
    """One package."""

    name: str
    """Normalised: lower case, dashes."""
    version: str | None
    """None: not installed here, and not pinned."""
    licence: str | None
    """An SPDX expression; None: not installed here."""
    needs: tuple[str, ...] = ()
    """The packages it needs here, by name."""
    direct: bool = False
    """Whether Quark names it itself."""
    extras: tuple[str, ...] = ()
    """The extras of Quark that name it; empty: every installation has it, or another package needs it."""


def normal(name: str) -> str:
    """Return a package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(root: Path = ROOT) -> dict[str, list[Requirement]]:
    """Return what pyproject.toml asks for, by extra; `""`: what every installation needs."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {extra: [Requirement(text) for text in texts] for extra, texts in groups.items()}


def pins(root: Path = ROOT) -> dict[str, str]:
    """Return the versions of constraints.txt by name."""
    found = {}
    for line in (root / "constraints.txt").read_text(encoding="utf-8").splitlines():
        text = line.partition("#")[0].strip()
        if text:
            name, _, version = text.partition("==")
            found[normal(name)] = version
    return found


def packages(*, development: bool = False, root: Path = ROOT) -> dict[str, Package]:
    """Return Quark's packages and all that they need, by name; without those of its own development."""
    asked: dict[str, list[str]] = {}
    waiting: list[Requirement] = []
    for extra, requirements in declared(root).items():
        if extra != DEVELOPMENT or development:
            for requirement in requirements:
                asked.setdefault(normal(requirement.name), []).append(extra)
                waiting.append(requirement)
    pinned, found = pins(root), dict[str, Package]()
    wanted: dict[str, set[str]] = {}
    while waiting:
        requirement = waiting.pop()
        name = normal(requirement.name)
        extras = wanted.setdefault(name, set())
        new_extras = requirement.extras - extras
        if name in found and not new_extras:
            continue
        extras |= new_extras
        package, needs = _package(name, extras, asked.get(name), pinned)
        found[name] = package
        waiting += needs
    return dict(sorted(found.items()))


def _package(
    name: str, extras: set[str], asked: list[str] | None, pinned: dict[str, str]
) -> tuple[Package, list[Requirement]]:
    named = tuple(extra for extra in asked or () if extra)
    of_quark = () if asked and "" in asked else named
    try:
        installed = distribution(name)
    except PackageNotFoundError:
        return Package(name, pinned.get(name), None, (), asked is not None, of_quark), []
    needs = [
        requirement
        for requirement in map(Requirement, installed.requires or ())
        if _applies(requirement, extras)
    ]
    package = Package(
        name=name,
        version=installed.version,
        licence=licence_of(installed),
        needs=tuple(sorted({normal(requirement.name) for requirement in needs})),
        direct=asked is not None,
        extras=of_quark,
    )
    return package, needs


def _applies(requirement: Requirement, extras: set[str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def licence_of(installed: Distribution) -> str:
    """Return a package's licence as an SPDX expression, from whichever field it says it in."""
    metadata: Any = installed.metadata  # a message of email; its protocol leaves `get` out
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression)
    said = [
        text.removeprefix(_CLASSIFIER)
        for text in metadata.get_all("Classifier") or ()
        if text.startswith(_CLASSIFIER)
    ]
    known = sorted({CLASSIFIERS[text] for text in said if text in CLASSIFIERS})
    free = (metadata.get("License") or "").strip().partition("\n")[0]
    if free in TEXTS:
        return TEXTS[free]
    if known:
        return " AND ".join(known)
    return free if free and len(free) <= _LONGEST else UNKNOWN
