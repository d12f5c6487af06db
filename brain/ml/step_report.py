"""What a `step` event says: the step's figures, its speed, and how the data keeps up."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from brain.ml.device_peak import utilization
from brain.ml.schedule import Progress, RunLength, epochs_done, share_done
from brain.ml.training_job import TrainingJob

BYTES_READ = ("bytes_from_store", "bytes_from_cache")
WAITS = ("open", "workers", "store", "read_ahead", "other_process", "retry")
"""Causes of waiting: for a split to be open at all, or for a worker process's batch, which are what the
loader waits for; and of that, or beside it on threads and in workers that read ahead, for the store, for a
fetch begun earlier, for another process's, for trying again. In the statistics they overlap; a step event
deals the loader's wait out over them, so that there they add up."""
_WHOLE = {"open", "workers"}
SUMMED = (
    *BYTES_READ, "objects_from_store", "objects_from_cache", "objects_uncached", "requests",
    "retries", "prefetch_hits", "prefetch_misses", "samples_loaded", "open_wait_seconds",
    "requests_per_second",
    *(f"wait_{cause}_seconds" for cause in WAITS[1:]),
)  # fmt: skip
"""Statistics that are added up over the ranks."""


class RunSize(NamedTuple):
    """What the use of the devices is told by."""

    parameters: int = 0
    devices: int = 1
    peak: float | None = None
    """Operations a second of one device; None: unknown."""


class StepReport:
    """Makes events; keeps what the last one said, for rates."""

    def __init__(
        self,
        job: TrainingJob,
        progress: Progress,
        length: RunLength,
        size: RunSize = RunSize(),  # noqa: B008 - frozen
    ) -> None:
        self._size = size
        self._job, self._progress, self._length = job, progress, length
        self._started = time.monotonic()
        self._first_share = share_done(job, progress, length)
        self._bytes = 0.0
        self._waits = dict.fromkeys(WAITS, 0.0)
        self._whole = "workers" if job.workers else "open"
        self._dealt = dict.fromkeys(WAITS, 0.0)

    def event(
        self,
        *,
        loss: float,
        rate: float,
        norm: float,
        tokens: int,
        seconds: float,
        waited: float,
        stats: Mapping[str, float],
    ) -> dict[str, Any]:
        """Return the fields of the step that has just been counted.

        `tokens` are the step's own; `seconds` it took, `waited` of them for data.
        """
        progress, waits = self._progress, waits_of(stats)
        fresh = {cause: waits[cause] - self._waits[cause] for cause in WAITS}
        self._waits = waits
        for cause, share in deal_wait(fresh, self._whole).items():
            self._dealt[cause] += share
        bytes_read = sum(stats.get(name, 0) for name in BYTES_READ)
        fresh_bytes, self._bytes = bytes_read - self._bytes, bytes_read
        return {
            "step": progress.step,
            "epoch": epochs_done(progress, self._length),
            "loss": loss,
            "lr": rate,
            "grad_norm": norm,
            "samples": progress.samples,
            "tokens": progress.tokens,
            "tokens_per_second": tokens / seconds if seconds else 0.0,
            "mfu": utilization(tokens, seconds, *self._size),
            "step_seconds": seconds,
            "data_wait_share": waited / seconds if seconds else 0.0,
            "wait_seconds": dict(self._dealt),
            "wait_cause": _most(fresh),
            "data_bytes_per_second": fresh_bytes / seconds if seconds else 0.0,
            # Files read in place are no cache; neither is a stream without one.
            "cache_hit_rate": _hit_rate(stats) if self._job.cache_dir else None,
            "retries": int(stats.get("retries", 0)),
            "eta_seconds": self._eta(),
        }

    def _eta(self) -> float | None:
        share = share_done(self._job, self._progress, self._length)
        made = share - self._first_share
        if made <= 0:
            return None
        return (time.monotonic() - self._started) * (1 - share) / made


def waits_of(stats: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds waited so far by cause, of all ranks together; the causes overlap."""
    waits = {cause: float(stats.get(f"wait_{cause}_seconds", 0.0)) for cause in WAITS[1:]}
    return {"open": float(stats.get("open_wait_seconds", 0.0)), **waits}


def deal_wait(fresh: Mapping[str, float], whole: str) -> dict[str, float]:
    """Return a step's wait dealt out over its causes: they add up to what the loader waited.

    That is `whole`: `workers` where there are any (what these waited for, they did beside each other),
    else `open`. The other causes are summed over threads; together they get at most the whole, each
    in proportion, and what none of them explains stays with the whole.
    """
    causes = {cause: max(0.0, fresh[cause]) for cause in WAITS if cause not in _WHOLE}
    waited, explained = max(0.0, fresh[whole]), sum(causes.values())
    scale = min(1.0, waited / explained) if explained > 0 else 0.0
    dealt = {cause: seconds * scale for cause, seconds in causes.items()}
    dealt[whole] = max(0.0, waited - sum(dealt.values()))
    return dealt


def _most(fresh: Mapping[str, float]) -> str | None:
    """Return what was waited for most; `open` and `workers` only where no cause of theirs tells more."""
    for names in (fresh.keys() - _WHOLE, _WHOLE):
        cause = max(sorted(names), key=lambda name: fresh[name])
        if fresh[cause] > 0:
            return cause
    return None


def _hit_rate(stats: Mapping[str, float]) -> float | None:
    fetched, cached = (stats.get(name, 0) for name in BYTES_READ)
    return cached / (fetched + cached) if fetched + cached else None
