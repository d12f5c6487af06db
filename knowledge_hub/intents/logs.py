"""Show a run's log."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="logs",
    summary="Show a run's log.",
    examples=("tail the logs of fox-12, last 200 lines",),
    slots=frozenset({"follow", "lines", "run"}),
)
