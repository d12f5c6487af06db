"""How a run is named in a command: `fox-12`, or `run=genomes` where the name is no run id.

In a sentence only a run id is a run by itself; a name that a person gave (`call it genomes`) is said
as `run=genomes`, which a shell leaves as it is.
"""

import re
import shlex
from typing import Final

RUN_ID: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z][A-Za-z0-9]*)?-[0-9]+")
"""`fox-12`, `brave-heron-3`."""
NO_NAMES: Final = frozenset({"", ".", "..", "latest", "all"})
"""What no run is called: no folder's name, or a word that means other runs."""
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.-]*[A-Za-z0-9_-]")


def said_run(name: str) -> str:
    """Return a run's name as a command at a shell takes it."""
    if RUN_ID.fullmatch(name):
        return name
    if _PLAIN.fullmatch(name):
        return f"run={name}"
    return f"--override {shlex.quote(f'run={name}')}"


def run_in_sentence(name: str) -> str | None:
    """Return a run's name as a sentence holds it; None where no sentence can.

    In a session there is no shell that would take quotes away.
    """
    if RUN_ID.fullmatch(name):
        return name
    if _PLAIN.fullmatch(name):
        return f"run={name}"
    quote = next((mark for mark in "\"'" if mark not in name), None)
    return f"run={quote}{name}{quote}" if quote and is_run_name(name) else None


def is_run_name(name: str) -> bool:
    """Whether a run may be called that: one folder's name that a sentence can say."""
    return name not in NO_NAMES and "/" not in name and name.isprintable()
