"""The licences of everything that Quark needs: the table of docs/licences.md.

python -m release.licences > docs/licences.md     # where every extra is installed: `make licences`
"""

import sys
from collections.abc import Mapping

from release.dependencies import UNKNOWN, Package, packages

ACCEPTED = frozenset(
    {
        "0BSD", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "BSD-2-Clause", "BSD-3-Clause",
        "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-CMU", "MPL-2.0", "PSF-2.0",
        "Unlicense", "Zlib",
    }
)  # fmt: skip
"""What may be used and handed on together with Apache-2.0 code without opening anything else."""
NOT_INSTALLED = {
    "alembic": "MIT",
    "mlflow-skinny": "Apache-2.0",
    "sqlalchemy": "MIT",
    "wandb": "MIT",
}
"""Extras that talk to a tracker, where they are not installed: what their own pages say."""
HEAD = """\
# Licences of the dependencies

Made by `make licences`; `tests/security/test_supply_chain.py` holds it against `pyproject.toml` and what is
installed. Quark itself is Apache-2.0. All of these may be used and handed on with it; MPL-2.0 asks that changed
files of that package stay open. What only Quark's own development needs (`[dev]`) is not handed on.

| package | tested with | licence | needed by |
| --- | --- | --- | --- |
"""


def licence_table(found: Mapping[str, Package]) -> str:
    """Return the whole document."""
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows(found))


def rows(found: Mapping[str, Package]) -> list[tuple[str, str, str, str]]:
    """Return package, version, licence and who needs it, by name."""
    return [
        (
            one.name,
            _version(one),
            one.licence or NOT_INSTALLED.get(one.name, UNKNOWN),
            _needed(one, found),
        )
        for one in found.values()
    ]


def _version(package: Package) -> str:
    return (package.version or "").partition("+")[0]


def _needed(package: Package, found: Mapping[str, Package]) -> str:
    if package.direct:
        return ", ".join(f"`[{extra}]`" for extra in package.extras) or "Quark"
    return ", ".join(one.name for one in found.values() if package.name in one.needs)


def parts(expression: str) -> set[str]:
    """Return the licences of an SPDX expression, each of which has to be accepted.

    Of alternatives all are asked for as well: nobody has to choose then.
    """
    flat = expression.replace("(", " ").replace(")", " ").replace(" OR ", " AND ")
    return {part.strip() for part in flat.split(" AND ")}


def main() -> None:
    """Write the table to stdout."""
    sys.stdout.write(licence_table(packages()))


if __name__ == "__main__":
    main()
