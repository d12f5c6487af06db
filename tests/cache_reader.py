"""A process that reads objects through a shared cache: `python -m tests.cache_reader JOB`.

JOB is JSON: endpoint, cache_dir, cache_bytes, cache_policy, orders (a list of key lists, one a
pass), window (objects held open at once), sizes. Prints `ready`, then its statistics as JSON; every
byte is compared with `content`.
"""

import hashlib
import json
import sys
from collections import deque

from tools_utilities.object_store import StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.shard_format import ShardBytes


def content(key: str, num_bytes: int) -> bytes:
    """Return the bytes of an object; every 32 of them depend on its key."""
    seed = hashlib.sha256(key.encode()).digest()
    return (seed * (num_bytes // 32 + 1))[:num_bytes]


def check(shard: ShardBytes) -> None:
    """Compare an object with what it must be, and close it."""
    expected = content(shard.info.key, shard.info.size_bytes)
    if bytes(shard.read(0, shard.info.size_bytes)) != expected:
        raise SystemExit(f"wrong bytes in {shard.info.key}")
    shard.close()


def main() -> None:
    """Read everything in the order given."""
    job = json.loads(sys.argv[1])
    manager = StreamingManager.for_store(
        StoreSpec(uri="s3://bucket", endpoint_url=job["endpoint"]),
        cache_dir=job["cache_dir"],
        cache_bytes=job["cache_bytes"],
        cache_policy=job["cache_policy"],
        concurrency=4,
    )
    infos = {info.key: info for info in manager.store.list("d/")}
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    num_read = 0
    for order in job["orders"]:
        if job["prefetch"]:
            manager.prefetch_shards([infos[key] for key in order])
        held: deque[ShardBytes] = deque()
        for key in order:
            held.append(manager.open_shard(infos[key]))
            if len(held) >= job["window"]:
                check(held.popleft())
                num_read += 1
        num_read += len(held)
        for shard in held:
            check(shard)
    sys.stdout.write(json.dumps({"num_read": num_read, **manager.get_stats()}) + "\n")


if __name__ == "__main__":
    main()
