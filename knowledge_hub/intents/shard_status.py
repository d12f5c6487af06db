"""Show who holds which shard."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.act_on_shards(reading))


INTENT: Intent = Intent(
    name="shard_status",
    summary="Show who holds which shard.",
    examples=(
        "shard status of gs://bucket/sharded",
        "status of the shards in ./data/sharded",
    ),
    slots=frozenset({"data", "follow"}),
    run=_run,
)
