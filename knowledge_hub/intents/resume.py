"""Continue a run from its newest checkpoint."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import RESUME_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.resume(reading))


INTENT: Intent = Intent(
    name="resume",
    summary="Continue a run from its newest checkpoint.",
    examples=(
        "resume",
        "continue the last run for 2 more epochs",
    ),
    slots=RESUME_SLOTS,
    run=_run,
)
