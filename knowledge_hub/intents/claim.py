"""Take a shard to work on."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="claim",
    summary="Take a shard to work on.",
    examples=("claim a shard from gs://bucket/sharded as worker_3, prefer shard 5",),
    slots=frozenset({"data", "prefer", "worker"}),
)
