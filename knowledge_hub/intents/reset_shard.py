"""Make a shard claimable again."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="reset_shard",
    summary="Make a shard claimable again.",
    examples=("reset shard 5 in gs://bucket/sharded",),
    needs=("shard",),
    slots=frozenset({"data", "shard"}),
    confirm=True,
)
