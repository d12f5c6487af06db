"""Watch a run that goes on."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.attach(reading))


INTENT: Intent = Intent(
    name="attach",
    summary="Watch a run that goes on.",
    examples=("watch fox-12",),
    needs=("run",),
    slots=frozenset({"run"}),
    run=_run,
)
