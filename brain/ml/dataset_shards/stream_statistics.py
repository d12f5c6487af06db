"""A stream's statistics by name, beside those of its manager."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from brain.ml.dataset_shards.stream_index import StreamIndex
from brain.ml.dataset_shards.stream_iteration import Iteration, StreamTotals

if TYPE_CHECKING:
    from tools_utilities.schema_drift import SchemaDrift


def stream_statistics(
    manager: Mapping[str, Any],
    totals: StreamTotals,
    iteration: Iteration | None,
    index: StreamIndex | None = None,
    source: object = None,
) -> dict[str, Any]:
    """Return the manager's statistics and what the stream adds to them.

    What came from the cache (or a local disk) are the stored bytes of the samples read, less what was
    fetched: an object is opened once a split, and counting openings would find each object in the cache
    that has just been fetched. `local_samples` and `remote_samples` share out the samples likewise.
    """
    samples = totals.samples + (0 if iteration is None else iteration.num_samples)
    busy = totals.read_seconds - totals.open_seconds
    found: dict[str, Any] = {
        "prefetch_hits": 0,
        "prefetch_misses": 0,
        "avg_load_time_us": 0.0,
        **manager,
        "samples_loaded": samples,
        "bytes_read": round(totals.read_bytes),
        "bad_records": totals.bad,
        "skipped": dict(totals.skipped),
        "missing_objects": len(totals.missing),
        "schema_drift": _drift_of(index, source),
        "dropped_samples": totals.dropped,
        "padded_samples": totals.padded,
        "open_wait_seconds": totals.open_seconds,
        "num_checkpoints": totals.checkpoints,
        "worker_utilization": busy / totals.read_seconds if totals.read_seconds else 0.0,
    }
    return found | _by_source(found)


def _drift_of(index: StreamIndex | None, source: object) -> str:
    """Return how the shards' columns differ: by their footers, else as far as they have been opened."""
    told = None if index is None else index.drift
    found: SchemaDrift | None = told or getattr(source, "drift", None)
    return "" if found is None else found.text


def _by_source(statistics: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was read from where: bytes, the share of them that was not fetched, samples."""
    read, fetched = statistics["bytes_read"], statistics.get("bytes_from_store", 0)
    cached = max(0, read - fetched)  # more may be fetched than read: for what comes next
    samples = statistics["samples_loaded"]
    local = round(samples * cached / read) if read else 0 if fetched else samples
    return {
        "bytes_from_cache": cached,
        "cache_hit_rate": cached / read if read else None,
        "local_samples": local,
        "remote_samples": samples - local,
    }


def merge_statistics(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the statistics of several processes as one: sums, and the worst of percentiles.

    Averages and shares are those of the busiest process, except the cache's hit rate.
    """
    merged: dict[str, Any] = {}
    for part in sorted(parts, key=lambda part: int(part.get("samples_loaded", 0))):
        for name, value in part.items():
            merged[name] = _combine(name, merged.get(name), value)
    if "bytes_read" in merged:
        # Of all processes: the one that fetches need not be one that reads.
        merged |= _by_source(merged)
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
    if isinstance(new, str):
        return new or old  # one process's text is not unsaid by another that has none
    return old + new if isinstance(old, int | float) and isinstance(new, int | float) else new
