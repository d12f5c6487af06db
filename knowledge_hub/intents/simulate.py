"""Play a launch through without machines."""

from knowledge_hub.intent import Intent
from knowledge_hub.slots import TRAIN_SLOTS

INTENT: Intent = Intent(
    name="simulate",
    summary="Play a launch through without machines.",
    examples=("simulate with s3://bucket/set on 8 nodes",),
    slots=TRAIN_SLOTS,
)
