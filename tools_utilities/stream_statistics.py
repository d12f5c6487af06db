"""What a process fetched, found and waited for: counters that any thread may add to."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from threading import Lock
from time import monotonic
from typing import Any

_LOAD_TIMES_KEPT = 4096
_COUNTERS = (
    "objects_from_store",
    "objects_from_cache",
    "objects_uncached",
    "bytes_from_store",
    "bytes_from_cache",
    "prefetch_hits",
    "prefetch_misses",
    "requests",
    "retries",
    "unverified",
    "quarantined",
)
_WAITS = ("store", "read_ahead", "other_process", "retry")


class StreamStatistics:
    """Counters since the process first used its manager."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._lock = Lock()
        self._counts: dict[str, int] = dict.fromkeys(_COUNTERS, 0)
        self._waited: defaultdict[str, float] = defaultdict(float, dict.fromkeys(_WAITS, 0.0))
        self._loads: deque[float] = deque(maxlen=_LOAD_TIMES_KEPT)
        self._num_loads = 0
        self._load_seconds = 0.0
        self._clock = clock
        self._first_request: float | None = None
        self._last_request = 0.0

    def add(self, **amounts: int) -> None:
        """Add to counters by name."""
        with self._lock:
            if "requests" in amounts:
                self._last_request = self._clock()
                if self._first_request is None:
                    self._first_request = self._last_request
            for name, amount in amounts.items():
                self._counts[name] += amount

    def waited(self, cause: str, seconds: float) -> None:
        """Add to the seconds that readers waited for one cause."""
        with self._lock:
            self._waited[cause] += seconds

    def loaded(self, seconds: float) -> None:
        """Record how long one opening of an object took."""
        with self._lock:
            self._loads.append(seconds)
            self._num_loads += 1
            self._load_seconds += seconds

    def to_dict(self) -> dict[str, Any]:
        """Return counters, `wait_seconds` by cause and `load_seconds` percentiles.

        `retry` and `store` are summed over all threads, so they may exceed the time that passed.
        """
        with self._lock:
            counts, waits = dict(self._counts), dict(self._waited)
            seconds = self._last_request - (self._first_request or 0.0)
            loads, total, number = sorted(self._loads), self._load_seconds, self._num_loads
        opened = counts["objects_from_cache"] + counts["objects_from_store"]
        opened += counts["objects_uncached"]
        return {
            **counts,
            "cache_hit_rate": counts["objects_from_cache"] / opened if opened else None,
            # Between the first and the last: what the store's limit on a prefix is compared with.
            "requests_per_second": (counts["requests"] - 1) / seconds if seconds > 0 else 0.0,
            "wait_seconds": waits,
            "load_seconds": {f"p{p}": _percentile(loads, p) for p in (50, 90, 99, 100)},
            "avg_load_time_us": total / number * 1e6 if number else 0.0,
        }


def _percentile(ordered: Sequence[float], percent: int) -> float:
    if not ordered:
        return 0.0
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
