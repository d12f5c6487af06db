"""Find datasets and shard groups below a path."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.discover(reading))


INTENT: Intent = Intent(
    name="discover",
    summary="Find datasets and shard groups below a path.",
    examples=(
        "what datasets are under s3://bucket/data?",
        "find shards in ./data/datasets depth 5",
    ),
    needs=("data",),
    slots=frozenset({"data", "depth"}),
    run=_run,
)
