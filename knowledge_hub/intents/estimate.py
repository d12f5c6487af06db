"""Say what a run would take; starts nothing."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import TRAIN_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.estimate(reading))


INTENT: Intent = Intent(
    name="estimate",
    summary="Say what a run would take; starts nothing.",
    examples=("how much would it cost to train on s3://bucket/set for 1 epoch on 8 a100s?",),
    needs=("data",),
    slots=TRAIN_SLOTS,
    run=_run,
)
