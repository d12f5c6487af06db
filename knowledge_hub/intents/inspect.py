"""Show records of a dataset."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="inspect",
    summary="Show records of a dataset.",
    examples=(
        "show me 5 samples from s3://bucket/set",
        "preview ./data/tiny",
    ),
    needs=("data",),
    slots=frozenset({"data", "depth", "groups", "max_samples", "seed", "shuffle"}),
)
