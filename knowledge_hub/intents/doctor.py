"""Check this machine and the store."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.doctor(reading))


INTENT: Intent = Intent(
    name="doctor",
    summary="Check this machine and the store.",
    examples=(
        "check my setup",
        "doctor",
    ),
    slots=frozenset({"cache_dir", "data", "where"}),
    run=_run,
)
