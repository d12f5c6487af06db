"""Show a run's log."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.logs(reading))


INTENT: Intent = Intent(
    name="logs",
    summary="Show a run's log.",
    examples=("tail the logs of fox-12, last 200 lines",),
    slots=frozenset({"follow", "lines", "run"}),
    run=_run,
)
