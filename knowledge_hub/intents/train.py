"""Train a model on sharded data."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import TRAIN_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.train(reading))


INTENT: Intent = Intent(
    name="train",
    summary="Train a model on sharded data.",
    examples=(
        "train quark with s3://bucket/set",
        "start a run on ./data/tiny for 100 steps on cpu",
        "could you please train on ~/data/genomes for 3 epochs?",
    ),
    needs=("data",),
    slots=TRAIN_SLOTS,
    run=_run,
)
