"""The training data of a run: one or several sources, dealt in steps, with an exact position.

Every step takes all its samples from one source, the one that is furthest behind its weight (its
share of the samples, or the job's `weights`), so that the order does not depend on the world size.
An epoch ends when every source is through.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from brain.ml.dataset_shards.mixed_stream import MixedStream
from brain.ml.streamed_source import StreamedSource

_LOADS = {"p50": "p50", "p90": "p90", "p99": "p99", "p100": "max"}


class TrainingStream(MixedStream):
    """Steps of training data: `take` returns their micro-batches. All ranks make the same calls."""

    def __init__(
        self, sources: Sequence[StreamedSource], batch_size: int, *, stop: str = "all_exhausted"
    ) -> None:
        """`batch_size`: sequences of one micro-batch of this rank; `stop`: as of MixedStream."""
        loaders = [source.loader(batch_size) for source in sources]
        super().__init__(loaders, stop=stop)
        self._loaders = loaders

    def get_stats(self) -> dict[str, float]:
        """Return the sources' numeric statistics, added up; rates and means only of a single one.

        Of load times, `load_p50_seconds` to `load_max_seconds`, the slowest source's.
        """
        total: dict[str, float] = {}
        for loader in self._loaders:
            for name, value in _flat(loader.get_stats()).items():
                mean = name.startswith("avg_") or name.endswith(("_rate", "_utilization"))
                if name.startswith("load_"):
                    total[name] = max(total.get(name, 0.0), value)
                elif isinstance(value, int | float) and not (mean and len(self._loaders) > 1):
                    total[name] = total.get(name, 0) + value
        return total


def _flat(stats: Mapping[str, Any]) -> dict[str, Any]:
    """Return statistics with waits, skipped records and load times as numbers of their own."""
    waits = {f"wait_{cause}_seconds": s for cause, s in stats.get("wait_seconds", {}).items()}
    loads = {
        f"load_{_LOADS[share]}_seconds": seconds
        for share, seconds in stats.get("load_seconds", {}).items()
    }
    skipped = {f"skipped_{reason}": count for reason, count in stats.get("skipped", {}).items()}
    return {
        **{name: value for name, value in stats.items() if name != "load_seconds"},
        **skipped,
        **waits,
        **loads,
    }
