"""Mark a claimed shard done."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="complete",
    summary="Mark a claimed shard done.",
    examples=(
        "mark shard 5 done",
        "complete shard 5 in gs://bucket/sharded",
    ),
    needs=("shard",),
    slots=frozenset({"data", "shard", "worker"}),
)
