"""Write a job file for a scheduler."""

from knowledge_hub.intent import Intent
from knowledge_hub.slots import EXPORT_SLOTS

INTENT: Intent = Intent(
    name="export",
    summary="Write a job file for a scheduler.",
    examples=("export fox-12 for slurm",),
    slots=EXPORT_SLOTS,
)
