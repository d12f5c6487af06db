"""Stop a run, saving it first."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.stop_runs(reading))


INTENT: Intent = Intent(
    name="stop",
    summary="Stop a run, saving it first.",
    examples=(
        "stop fox-12",
        "stop everything",
    ),
    needs=("run",),
    slots=frozenset({"run"}),
    confirm=True,
    run=_run,
)
