"""List the runs."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.list_runs(reading))


INTENT: Intent = Intent(
    name="list",
    summary="List the runs.",
    examples=(
        "what's running?",
        "show failed runs",
    ),
    slots=frozenset({"lines", "state"}),
    run=_run,
)
