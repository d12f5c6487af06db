"""One shard format a file; each ends in SHARD_FORMAT."""
