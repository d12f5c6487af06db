"""Show records of a dataset."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.inspect(reading))


INTENT: Intent = Intent(
    name="inspect",
    summary="Show records of a dataset.",
    examples=(
        "show me 5 samples from s3://bucket/set",
        "preview ./data/tiny",
    ),
    needs=("data",),
    slots=frozenset({"data", "depth", "groups", "max_samples", "seed", "shuffle"}),
    run=_run,
)
