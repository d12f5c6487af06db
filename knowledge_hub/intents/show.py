"""Show one run: metrics and a picture."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.show_run(reading))


INTENT: Intent = Intent(
    name="show",
    summary="Show one run: metrics and a picture.",
    examples=(
        "show fox-12",
        "show me the last run",
    ),
    needs=("run",),
    slots=frozenset({"run"}),
    run=_run,
)
