"""Mark a claimed shard done."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.act_on_shards(reading))


INTENT: Intent = Intent(
    name="complete",
    summary="Mark a claimed shard done.",
    examples=(
        "mark shard 5 done",
        "complete shard 5 in gs://bucket/sharded",
    ),
    needs=("shard",),
    slots=frozenset({"data", "shard", "worker"}),
    run=_run,
)
