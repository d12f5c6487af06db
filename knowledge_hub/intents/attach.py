"""Watch a run that goes on."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="attach",
    summary="Watch a run that goes on.",
    examples=("watch fox-12",),
    needs=("run",),
    slots=frozenset({"run"}),
)
