"""Mark a claimed shard failed."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.act_on_shards(reading))


INTENT: Intent = Intent(
    name="fail",
    summary="Mark a claimed shard failed.",
    examples=("mark shard 5 as failed",),
    needs=("shard",),
    slots=frozenset({"data", "shard", "worker"}),
    run=_run,
)
