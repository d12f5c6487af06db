"""Run a function over every sample."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import PROCESS_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.process(reading))


INTENT: Intent = Intent(
    name="process",
    summary="Run a function over every sample.",
    examples=("process s3://bucket/set with pkg.mod:embed",),
    needs=(
        "data",
        "function",
    ),
    slots=PROCESS_SLOTS,
    run=_run,
)
