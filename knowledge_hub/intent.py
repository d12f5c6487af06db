"""The contract of an intent: what a sentence can ask for, and who carries it out.

`knowledge_hub/intents/` holds one intent a file, each ending in `INTENT`. How an intent is said is
in the phrase table; an intent's file says what it needs, which slots it can use, and what runs.
"""

from collections.abc import Callable
from typing import Any

import msgspec


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """One thing a person can ask for."""

    name: str
    summary: str
    """One line for `help`."""
    examples: tuple[str, ...]
    """Sentences that this intent, and no other, answers; status ok. Used by help and the tests."""
    needs: tuple[str, ...] = ()
    """Slots without which it cannot run (incomplete)."""
    slots: frozenset[str] = frozenset()
    """Slots it can use, beside plan_only, set and then."""
    confirm: bool = False
    run: Callable[[Any, Any], int] | None = None
    """`run(reading, resources)`: carry the reading out with a ResourceManager; returns the exit code.

    None: the part that carries it out is not there yet; the program says so and exits 2.
    """
