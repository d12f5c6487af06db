"""Show the whole path on a small dataset."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.demo(reading))


INTENT: Intent = Intent(
    name="demo",
    summary="Show the whole path on a small dataset.",
    examples=(
        "run the demo",
        "demo for 20 steps on cpu",
    ),
    slots=frozenset({"device", "epochs", "gpus", "max_seconds", "max_steps"}),
    run=_run,
)
