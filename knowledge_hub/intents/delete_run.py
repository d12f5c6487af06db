"""Delete a run's folder."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.delete_run(reading))


INTENT: Intent = Intent(
    name="delete_run",
    summary="Delete a run's folder.",
    examples=("delete run fox-12",),
    needs=("run",),
    slots=frozenset({"run"}),
    confirm=True,
    run=_run,
)
