"""Measure the loss on data."""

from knowledge_hub.intent import Intent
from knowledge_hub.slots import EVALUATE_SLOTS

INTENT: Intent = Intent(
    name="evaluate",
    summary="Measure the loss on data.",
    examples=(
        "evaluate fox-12 on s3://bucket/val",
        "test quark on ./data/val",
    ),
    needs=("data",),
    slots=EVALUATE_SLOTS,
)
