"""Make, convert or upload shards."""

from typing import Any

from knowledge_hub.intent import Intent
from knowledge_hub.slots import SHARD_SLOTS


def _run(reading: Any, resources: Any) -> int:
    return int(resources.shard(reading))


INTENT: Intent = Intent(
    name="shard",
    summary="Make, convert or upload shards.",
    examples=(
        "split dataset.jsonl into 8 shards of 100MB chunks and upload to gs://bucket/sharded",
        "make webdataset shards from hf://org/set, 2048 samples each, to r2://bridge/runs",
    ),
    needs=("source",),
    slots=SHARD_SLOTS,
    run=_run,
)
