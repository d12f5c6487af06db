"""Delete a run's folder."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="delete_run",
    summary="Delete a run's folder.",
    examples=("delete run fox-12",),
    needs=("run",),
    slots=frozenset({"run"}),
    confirm=True,
)
