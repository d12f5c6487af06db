"""Repeat the last or a named run, with edits."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import AGAIN_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.again(reading))


INTENT: Intent = Intent(
    name="again",
    summary="Repeat the last or a named run, with edits.",
    examples=(
        "same as last time but with batch size 128",
        "run fox-12",
    ),
    slots=AGAIN_SLOTS,
    run=_run,
)
