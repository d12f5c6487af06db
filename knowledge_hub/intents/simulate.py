"""Play the data of a run through for its machines, links and caches; starts nothing."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import TRAIN_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.simulate(reading))


INTENT: Intent = Intent(
    name="simulate",
    summary="Play the data of a run through for its machines; starts nothing.",
    examples=("simulate with s3://bucket/set on 8 nodes",),
    slots=TRAIN_SLOTS,
    run=_run,
)
