"""Compare runs."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="compare",
    summary="Compare runs.",
    examples=("compare fox-12 and heron-31",),
    needs=("runs",),
    slots=frozenset({"runs"}),
)
