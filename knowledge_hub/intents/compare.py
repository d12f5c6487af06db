"""Compare runs."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.compare_runs(reading))


INTENT: Intent = Intent(
    name="compare",
    summary="Compare runs.",
    examples=("compare fox-12 and heron-31",),
    needs=("runs",),
    slots=frozenset({"runs"}),
    run=_run,
)
