"""Show what can be said."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    from knowledge_hub.helping import show_help

    return show_help(reading.slots.get("topic"), resources)


INTENT: Intent = Intent(
    name="help",
    summary="Show what can be said.",
    examples=("help", "help train"),
    slots=frozenset({"topic"}),
    run=_run,
)
