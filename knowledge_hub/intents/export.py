"""Write a folder from which a scheduler starts a run."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import EXPORT_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.export(reading))


INTENT: Intent = Intent(
    name="export",
    summary="Write a folder from which a scheduler starts a run.",
    examples=("export fox-12 for slurm",),
    slots=EXPORT_SLOTS,
    run=_run,
)
