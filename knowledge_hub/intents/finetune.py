"""Train on from a checkpoint or an earlier run."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import TRAIN_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.finetune(reading))


INTENT: Intent = Intent(
    name="finetune",
    summary="Train on from a checkpoint or an earlier run.",
    examples=(
        "fine-tune quark on s3://bucket/set/train- with lr 2e-5",
        "adapt quark on ./data/x starting from fox-12",
    ),
    needs=("data",),
    slots=TRAIN_SLOTS,
    run=_run,
)
