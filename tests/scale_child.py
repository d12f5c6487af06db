"""One measurement of scale in a process of its own: `python -m tests.scale_child WHAT …`, JSON out.

objects N STOP     N objects of 1 KB, ten records each, read up to STOP samples
huge GB STOP       one object of so many GB, never cached
resume             a fresh start and one in the middle of an epoch of 10⁹ samples
overlap PREFETCH   shards that take 0.2 s to fetch and 0.2 s to compute on
half POLICY        three epochs with a cache of half the data
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.simulated_store import SimulatedStore
from tools_utilities.scripts.s3_streaming_manager import StreamingManager


def peak_mb() -> int:
    """Return VmHWM; the kernel's mark of this process alone."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def stream_over(store: SimulatedStore, **settings: Any) -> StreamDataset:
    manager = StreamingManager.for_store(store.register(), cache_dir=None, cache_bytes=0)
    return StreamDataset(manager, "data/x/", rank=0, world_size=1, **settings)


def ids_of(batch: list[dict[str, Any]]) -> list[int]:
    return [sample["id"] for sample in batch]


def read(store: SimulatedStore, stop: int) -> dict[str, Any]:
    begun, seen, total, first = time.perf_counter(), 0, 0, 0.0
    for batch in StreamLoader(stream_over(store), 32, collate_fn=ids_of):
        first = first or time.perf_counter() - begun
        seen, total = seen + len(batch), total + sum(batch)
        if seen >= stop:
            break
    everything = store.num_objects * store.samples_per_object
    if seen == everything and total != everything * (everything - 1) // 2:
        raise SystemExit("samples are missing or repeated")
    return {
        "samples": seen,
        "first_batch_seconds": round(first, 2),
        "seconds": round(time.perf_counter() - begun, 1),
        "peak_mb": peak_mb(),
        "read_mb": store.got_bytes // 1_000_000,
    }


def objects(count: str, stop: str) -> dict[str, Any]:
    return read(SimulatedStore(int(count), 10, record_bytes=100), int(stop))


def huge(gigabytes: str, stop: str) -> dict[str, Any]:
    samples = int(float(gigabytes) * 1_000_000)
    return read(SimulatedStore(1, samples, record_bytes=1000), int(stop))


def resume(samples: str = "1000000000") -> dict[str, Any]:
    """Samples in memory, so that only finding the place is measured and no store."""
    count = int(samples)
    stream = StreamDataset.from_samples(range(count), rank=0, world_size=1, batch_size=32)
    state, found = stream.state_dict(), dict[str, Any]()
    for name, position in (("fresh", 0), ("middle", count // 2 + 7)):
        stream.load_state_dict({**state, "position": position})
        begun, iterator = time.perf_counter(), iter(stream)
        batch = [next(iterator) for _ in range(32)]
        found[name] = {
            "seconds": round(time.perf_counter() - begun, 3),
            "peak_mb": peak_mb(),
            "different": len(set(batch)),
        }
    return found


def overlap(prefetch: str) -> dict[str, Any]:
    """Ten shards read in file order; the ideal is one fetch more than there are steps."""
    store = SimulatedStore(10, 32, record_bytes=100, latency_seconds=0.2)
    settings = {"prefetch": "auto" if prefetch == "auto" else int(prefetch), "shuffle": False}
    loader = StreamLoader(stream_over(store, **settings), 32, collate_fn=ids_of)
    begun = time.perf_counter()
    for _ in loader:
        time.sleep(0.2)
    seconds = time.perf_counter() - begun
    return {"seconds": round(seconds, 2), "ideal": 2.2, "ratio": round(seconds / 2.2, 2)}


def half(policy: str) -> dict[str, Any]:
    """Three epochs of 1,024 objects with a cache of half of them; shares of epochs 2 and 3."""
    store, found, before = SimulatedStore(1024, 5, record_bytes=1000), dict[str, Any](), (0, 0)
    with tempfile.TemporaryDirectory(prefix="quark-scale-") as folder:
        manager = StreamingManager.for_store(
            store.register(),
            cache_dir=folder,
            cache_bytes=store.num_objects * store.object_bytes // 2,
            cache_policy=policy,
        )
        stream = StreamDataset(manager, "data/x/", batch_size=32, rank=0, world_size=1)
        for epoch in (1, 2, 3):
            for _ in stream:
                pass
            now = manager.get_stats()["objects_from_cache"], store.num_gets
            found[f"epoch {epoch}"] = {
                "hit_rate": round((now[0] - before[0]) / store.num_objects, 2),
                "fetched": round((now[1] - before[1]) / store.num_objects, 2),
            }
            before = now
    return found


MEASUREMENTS: dict[str, Callable[..., dict[str, Any]]] = {
    "objects": objects,
    "huge": huge,
    "resume": resume,
    "overlap": overlap,
    "half": half,
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(MEASUREMENTS[sys.argv[1]](*sys.argv[2:])) + "\n")
