"""A stream's statistics by name, beside those of its manager."""

from collections.abc import Mapping, Sequence
from typing import Any

from brain.ml.dataset_shards.stream_index import StreamIndex
from brain.ml.dataset_shards.stream_iteration import Iteration, StreamTotals


def stream_statistics(
    manager: Mapping[str, Any],
    totals: StreamTotals,
    iteration: Iteration | None,
    index: StreamIndex | None = None,
) -> dict[str, Any]:
    """Return the manager's statistics and what the stream adds to them.

    `local_samples` and `remote_samples` share out the samples as the objects they came from were
    found in the cache (or on a local disk) and in the store.
    """
    samples = totals.samples + (0 if iteration is None else iteration.num_samples)
    from_store = manager.get("objects_from_store", 0)
    opened = from_store + manager.get("objects_from_cache", 0)
    remote = round(samples * from_store / opened) if opened else 0
    busy = totals.read_seconds - totals.open_seconds
    return {
        "prefetch_hits": 0,
        "prefetch_misses": 0,
        "avg_load_time_us": 0.0,
        **manager,
        "samples_loaded": samples,
        "local_samples": samples - remote,
        "remote_samples": remote,
        "bad_records": totals.bad,
        "skipped": dict(totals.skipped),
        "missing_objects": len(totals.missing),
        "schema_drift": "" if index is None or index.drift is None else index.drift.text,
        "dropped_samples": totals.dropped,
        "padded_samples": totals.padded,
        "open_wait_seconds": totals.open_seconds,
        "num_checkpoints": totals.checkpoints,
        "worker_utilization": busy / totals.read_seconds if totals.read_seconds else 0.0,
    }


def merge_statistics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of several processes as one: sums, and the worst of percentiles.

    Averages and shares are those of the busiest process, except the cache's hit rate.
    """
    merged: dict[str, Any] = {}
    for part in sorted(parts, key=lambda part: int(part.get("samples_loaded", 0))):
        for name, value in part.items():
            merged[name] = _combine(name, merged.get(name), value)
    opened = sum(
        merged.get(f"objects_{kind}", 0) for kind in ("from_cache", "from_store", "uncached")
    )
    if opened:
        merged["cache_hit_rate"] = merged.get("objects_from_cache", 0) / opened
    if "samples_loaded" in merged and opened:
        # Of all processes: the one that fetches need not be one that reads.
        known = opened - merged.get("objects_uncached", 0)
        remote = merged.get("objects_from_store", 0) / known if known else 0
        merged["remote_samples"] = round(merged["samples_loaded"] * remote)
        merged["local_samples"] = merged["samples_loaded"] - merged["remote_samples"]
    return merged


def merge_workers(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of workers that read one epoch together.

    What all of them see, as each opens every split, is counted once.
    """
    merged = merge_statistics(parts)
    for name in ("missing_objects", "dropped_samples"):
        if name in merged:
            merged[name] = max(part.get(name, 0) for part in parts)
    skipped: dict[str, int] = {}
    for part in parts:
        for reason, count in part.get("skipped", {}).items():
            skipped[reason] = max(count, skipped.get(reason, 0))
    if parts:
        merged["skipped"] = skipped
    return merged


def _combine(name: str, old: Any, new: Any) -> Any:
    if old is None or name in {"avg_load_time_us", "worker_utilization", "cache_hit_rate"}:
        return new
    if isinstance(new, Mapping):
        percentile = name == "load_seconds"
        both = {**old, **new}
        return {
            key: (max if percentile else _add)(old.get(key, 0), new.get(key, 0)) for key in both
        }
    return _add(old, new)


def _add(old: Any, new: Any) -> Any:
    return old + new if isinstance(old, int | float) and isinstance(new, int | float) else new
