"""Make a shard claimable again."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.act_on_shards(reading))


INTENT: Intent = Intent(
    name="reset_shard",
    summary="Make a shard claimable again.",
    examples=("reset shard 5 in gs://bucket/sharded",),
    needs=("shard",),
    slots=frozenset({"data", "shard"}),
    confirm=True,
    run=_run,
)
