"""Show who holds which shard."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="shard_status",
    summary="Show who holds which shard.",
    examples=(
        "shard status of gs://bucket/sharded",
        "status of the shards in ./data/sharded",
    ),
    slots=frozenset({"data", "follow"}),
)
