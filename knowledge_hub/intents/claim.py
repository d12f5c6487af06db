"""Take a shard to work on."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.act_on_shards(reading))


INTENT: Intent = Intent(
    name="claim",
    summary="Take a shard to work on.",
    examples=("claim a shard from gs://bucket/sharded as worker_3, prefer shard 5",),
    slots=frozenset({"data", "prefer", "worker"}),
    run=_run,
)
