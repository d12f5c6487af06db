"""Measure the loss on data."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import EVALUATE_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.evaluate(reading))


INTENT: Intent = Intent(
    name="evaluate",
    summary="Measure the loss on data.",
    examples=(
        "evaluate fox-12 on s3://bucket/val",
        "test quark on ./data/val",
    ),
    needs=("data",),
    slots=EVALUATE_SLOTS,
    run=_run,
)
