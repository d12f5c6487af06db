"""Mark a claimed shard failed."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="fail",
    summary="Mark a claimed shard failed.",
    examples=("mark shard 5 as failed",),
    needs=("shard",),
    slots=frozenset({"data", "shard", "worker"}),
)
