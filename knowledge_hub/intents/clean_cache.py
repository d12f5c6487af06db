"""Empty the cache of downloaded shards."""

from typing import Any

from knowledge_hub.intent import Intent


def _run(reading: Any, resources: Any) -> int:
    return int(resources.clean_cache(reading))


INTENT: Intent = Intent(
    name="clean_cache",
    summary="Empty the cache of downloaded shards.",
    examples=("clear the cache",),
    slots=frozenset({"cache_dir"}),
    confirm=True,
    run=_run,
)
