"""Empty the cache of downloaded shards."""

from knowledge_hub.intent import Intent

INTENT: Intent = Intent(
    name="clean_cache",
    summary="Empty the cache of downloaded shards.",
    examples=("clear the cache",),
    slots=frozenset({"cache_dir"}),
    confirm=True,
)
