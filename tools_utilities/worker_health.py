"""Worker health: the documented words and rules, and the health of workers that share only claims.

`StreamCoordinator` has them of workers that report to it; `ClaimWatch` of those of a batch job on claims,
from the claim records it sees change. What faster workers take over needs no watch: they claim more, and
a lost worker's lease ends.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

import msgspec

SLOW_THRESHOLD = 0.2
LOST_INTERVALS = 3
NEWEST_SHARE = 0.5
"""Of the newest report in the average throughput."""
RENEWALS_A_LEASE = 3


class WorkerHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one worker."""

    rank: int
    status: str
    """`active`; `idle`: nothing left to do, or nothing done yet; `slow`: below (1 - threshold) of
    the median; `failed`: no heartbeat for 3 intervals; `unknown`: before the first heartbeat."""
    last_heartbeat: float | None
    """On the coordinator's clock, in seconds; None before the first."""
    samples_processed: int
    average_throughput: float
    """Samples a second, newer reports weighing more."""


class ClaimWorker(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a batch job on claims."""

    worker: str
    """The worker id people gave."""
    owner: str
    """Its process, as the claims name it."""
    health: WorkerHealth
    """`rank` numbers the workers as they were first seen; times are the watch's own clock."""


def health_word(
    *, silent_intervals: float, heard: bool, has_work: bool, samples: int, is_slow: bool
) -> str:
    """Return a worker's status by the documented rules; `silent_intervals` since it was last heard."""
    if silent_intervals > LOST_INTERVALS:
        return "failed"
    if not heard:
        return "unknown"
    if not has_work or not samples:
        return "idle"
    return "slow" if is_slow else "active"


def averaged(before: float, newest: float) -> float:
    """Return the average throughput after one more report."""
    return NEWEST_SHARE * newest + (1 - NEWEST_SHARE) * before if before else newest


class _Seen(msgspec.Struct, kw_only=True):
    rank: int
    worker: str
    since: float
    mark: Any = None
    heard: float | None = None
    interval: float = 1.0
    has_work: bool = False
    samples: int = 0
    measured_at: float = 0.0
    throughput: float = 0.0


class ClaimWatch:
    """Judges workers by how their claim records change, on this process's own clock.

    A change of any record of a worker (a renewal, a chunk, a completion, the next shard) is a heartbeat.
    Leases are renewed three times in their length, so silence for a whole one is a failure: the shard may
    then be taken over. One that holds nothing is idle, whether it waits or has ended.
    """

    def __init__(
        self,
        *,
        rebalance_threshold: float = SLOW_THRESHOLD,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`rebalance_threshold`: how far below the median a worker is slow."""
        self._threshold, self._clock = rebalance_threshold, clock
        self._seen: dict[str, _Seen] = {}

    def look(self, status: Mapping[str, Any]) -> tuple[ClaimWorker, ...]:
        """Take in a `get_shard_status()`; returns the workers as they were first seen."""
        now = self._clock()
        rows: dict[str, list[Mapping[str, Any]]] = {owner: [] for owner in self._seen}
        for row in status["shards"]:
            if row["owner"] is not None:
                rows.setdefault(row["owner"], []).append(row)
        for owner, own in rows.items():
            if owner not in self._seen:
                worker = str(own[0]["assigned_to"] or owner)
                self._seen[owner] = _Seen(rank=len(self._seen), worker=worker, since=now)
            self._hear(self._seen[owner], own, now)
        rates = [one.throughput for one in self._seen.values() if one.has_work and one.throughput]
        limit = (1 - self._threshold) * median(rates) if rates else 0.0
        return tuple(
            ClaimWorker(worker=one.worker, owner=owner, health=self._health(one, limit, now))
            for owner, one in self._seen.items()
        )

    def _hear(self, seen: _Seen, rows: list[Mapping[str, Any]], now: float) -> None:
        held = [row for row in rows if row["status"] == "in_use"]
        mark = sorted((row["shard_id"], row["gen"], row["seq"], row["progress"]) for row in rows)
        samples = sum(_samples_of(row) for row in rows)
        first, changed = seen.mark is None, mark != seen.mark
        seen.mark, seen.has_work = mark, bool(held)
        if held:
            seen.interval = float(held[0]["lease_seconds"]) / RENEWALS_A_LEASE
        if first:
            seen.samples, seen.measured_at = samples, now
        elif changed:
            seen.heard = now
        if samples > seen.samples and now > seen.measured_at:
            rate = (samples - seen.samples) / (now - seen.measured_at)
            seen.throughput = averaged(seen.throughput, rate)
            seen.samples, seen.measured_at = samples, now

    def _health(self, seen: _Seen, limit: float, now: float) -> WorkerHealth:
        last = seen.since if seen.heard is None else seen.heard
        silent = (now - last) / seen.interval if seen.has_work else 0.0
        status = health_word(
            silent_intervals=silent,
            heard=seen.heard is not None or not seen.has_work,
            has_work=seen.has_work,
            samples=seen.samples,
            is_slow=bool(seen.throughput) and seen.throughput < limit,
        )
        return WorkerHealth(
            rank=seen.rank,
            status=status,
            last_heartbeat=seen.heard,
            samples_processed=seen.samples,
            average_throughput=seen.throughput,
        )


def _samples_of(row: Mapping[str, Any]) -> int:
    """Return the samples of a shard that are done, by chunks while it is worked."""
    if row["status"] == "completed":
        return int(row["num_samples"])
    done, slash, chunks = str(row["progress"] or "").partition("/")
    if not slash or not done.isdecimal() or not chunks.isdecimal() or not int(chunks):
        return 0
    return int(row["num_samples"]) * int(done) // int(chunks)


def health_lines(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line a worker (a `ClaimWorker` as plain data), for people."""
    return [
        f"worker {ascii(one['worker'])[1:-1]}: {one['health']['status']}, "
        f"{one['health']['samples_processed']:,} samples, "
        f"{one['health']['average_throughput']:,.1f} a second"
        for one in workers
    ]
