"""The loop of one machine that processes shards: claim, work, complete, until nothing is left.

What goes wrong with one shard does not end the loop: a function that fails, or a chunk that is damaged or
gone, leaves its shard to others; a store in passing trouble has it tried again; a shard that kills its
workers is left alone after some.
"""

import time
from collections import Counter
from collections.abc import Callable

import msgspec

from tools_utilities.batch_work import FunctionError, Work
from tools_utilities.claim_record import ClaimRecord
from tools_utilities.errors import (
    AccessError,
    ChunkError,
    ClaimError,
    DamagedClaimError,
    RunStoppedError,
    ShardCrashError,
    StoreError,
)
from tools_utilities.manifest import Shard
from tools_utilities.object_store import ObjectStore
from tools_utilities.prepared_types import prepared
from tools_utilities.process_progress import ProcessProgress, ShardCount
from tools_utilities.scripts.process_input import WorkInput
from tools_utilities.scripts.shard_manager import ShardClaim, ShardManager
from tools_utilities.shard_hold import ShardHold
from tools_utilities.shard_processing import Observer, ShardOutput, ShardProcessor
from tools_utilities.stop_signals import Stop

STORE_TRIES = 3
"""How often this worker takes a shard on which the store was in trouble."""


@prepared
class ProcessSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What this worker did."""

    shards: tuple[int, ...]
    """Shards it completed, in order."""
    num_samples: int
    num_chunks_worked: int
    lost: tuple[int, ...]
    """Shards that another worker took from it; their output here is never seen."""
    failed: dict[int, str]
    """Shard → why it failed here: the function's error, its damaged chunk, or its crashes."""
    num_bad: int = 0
    """Samples left out by `on_bad=skip`."""


class ProcessWorker:
    """The loop of one machine."""

    def __init__(
        self,
        manager: ShardManager,
        places: tuple[WorkInput, tuple[ObjectStore, str]],
        work: Work,
        hear: tuple[Callable[[str], None], Callable[[str], None]],
        stop: Stop,
        max_attempts: int,
    ) -> None:
        self._manager = manager
        self._input, self._out = places
        self._work = work
        self._report, self._paint = hear
        self._stop = stop
        self._max_attempts = max_attempts
        self._troubles: Counter[int] = Counter()
        self._progress = ProcessProgress(time.monotonic)
        self._outputs: dict[int, ShardOutput] = {}
        self._lost: list[int] = []
        self._failed: dict[int, str] = {}

    def run(self, preferred: int | None, poll_seconds: float) -> ProcessSummary:
        """Work until every shard is done or has failed here; look so often for those of others."""
        by_id: dict[int, Shard] = {s.shard_id: s for s in self._input.manifest.shards}
        while True:
            self._stop.check()
            # A shard that failed here is left to others: another machine may have what it lacks.
            left_out = {*self._failed, *self._outputs}
            try:
                claim = self._manager.claim_shard(preferred, skip=left_out)
            except DamagedClaimError:  # nothing else is left
                damaged = self._manager.damaged_shards(left_out)
                self._failed |= {shard: str(error) for shard, error in damaged.items()}
                continue
            open_shards = self._manager.open_shards(left_out)
            total = sum(shard.num_samples > 0 for shard in by_id.values())
            still_open = len(open_shards) + len(self._failed)
            still_open += len(self._manager.damaged_shards(left_out))
            self._progress.shards(ShardCount(total - still_open, total))
            if claim is not None:
                self._work_shard_or_fail(by_id[claim.shard_id], claim)
            elif not open_shards:
                return self._summary()
            else:
                self._progress.working(None)
                self._paint(self._progress.line())
                self._stop.wait(self._manager.watch_seconds(poll_seconds))

    def _summary(self) -> ProcessSummary:
        outputs = self._outputs.values()
        return ProcessSummary(
            shards=tuple(self._outputs),
            num_samples=sum(output.num_samples for output in outputs),
            num_chunks_worked=sum(output.num_worked for output in outputs),
            lost=tuple(self._lost),
            failed=self._failed,
            num_bad=sum(output.num_bad for output in outputs),
        )

    def _work_shard_or_fail(self, shard: Shard, claim: ShardClaim) -> None:
        """Work a shard; credentials that end in mid-work fail the job with 1, as they do a run.

        Raises:
            StoreError: they have ended since; the claim is given back.
            AccessError: the first samples could not be had: exit code 4 is for a start.
        """
        try:
            self._work_shard(shard, claim)
        except AccessError as error:
            if not self._progress.num_samples:
                raise
            detail = {**error.detail, "cause": AccessError.exit_code}
            raise StoreError(str(error), hint=error.hint, **detail) from error

    def _work_shard(self, shard: Shard, claim: ShardClaim) -> None:
        hold = self._manager.hold(claim)
        record = hold.record
        assert record is not None  # noqa: S101 - a held claim has a record

        def check() -> None:
            self._stop.check()
            hold.check()

        self._heard(claim, 0)
        processor = ShardProcessor(
            self._input.source,
            self._out,
            self._work,
            check=check,
            observer=Observer(
                on_batch=self._batch_done,
                on_chunk=lambda done: self._chunk_done(claim, hold.record, done),
            ),
        )
        try:
            with hold:
                self._check_crashes(shard, record, processor)
                output = processor.run(shard, record)
                hold.complete(output.folder, output.num_samples, output.checksum)
        except (ClaimError, DamagedClaimError):
            if not self._claim_ended(claim.shard_id, hold):
                raise
        except (FunctionError, ChunkError, ShardCrashError) as error:
            self._failed[claim.shard_id] = str(error)
            self._manager.show(claim.shard_id, hold.record)
            self._report(f"shard {claim.shard_id}: {error}")
        except StoreError as error:
            self._troubles[claim.shard_id] += 1
            if not error.detail.get("transient") or self._troubles[claim.shard_id] >= STORE_TRIES:
                raise
            self._report(f"shard {claim.shard_id}: given back, to be tried again: {error}")
        except (RunStoppedError, KeyboardInterrupt):
            self._manager.show(claim.shard_id, hold.record)
            self._report(f"shard {claim.shard_id}: given back, its finished chunks are kept")
            raise
        else:
            self._outputs[claim.shard_id] = output
            self._manager.show(claim.shard_id, hold.record)
            left_out = f", {output.num_bad} left out" if output.num_bad else ""
            self._report(f"shard {claim.shard_id}: {output.num_samples:,} samples{left_out}")

    def _claim_ended(self, shard_id: int, hold: ShardHold) -> bool:
        """Note how a claim ended that could not be kept; False when nobody knows."""
        if hold.damage is not None:
            self._failed[shard_id] = str(hold.damage)
            self._report(f"shard {shard_id}: {hold.damage}")
        elif hold.lost:
            self._lost.append(shard_id)
            self._report(f"shard {shard_id}: another worker took it")
        elif hold.record and hold.record.state == "free":
            # Paused beyond its lease, say; the store took the shard back, so it can be tried again.
            self._report(f"shard {shard_id}: its lease ran out; given back")
        else:
            return False
        return True

    def _batch_done(self, samples: int) -> None:
        self._progress.samples(samples)
        self._paint(self._progress.line())

    def _chunk_done(self, claim: ShardClaim, record: ClaimRecord | None, done: int) -> None:
        self._manager.tell_progress(claim, record, done)
        self._heard(claim, done)

    def _heard(self, claim: ShardClaim, done: int) -> None:
        self._progress.working(claim.shard_id, done, len(claim.chunks))
        self._paint(self._progress.line())

    def _check_crashes(self, shard: Shard, record: ClaimRecord, processor: ShardProcessor) -> None:
        """Leave a shard alone on which worker after worker died, at one place.

        Raises:
            ShardCrashError: so it is; says where.
        """
        if record.crashes < self._max_attempts:
            return
        stuck = processor.stuck(shard, record)
        if stuck.claims < self._max_attempts:
            return
        raise ShardCrashError(
            f"{stuck.claims} workers in a row ended without a word in {stuck.chunk}: "
            "out of memory, a crash in the function, or killed",
            hint="Correct the function or the sample; then reset the shard "
            f"(`reset shard {shard.shard_id} in …`), or raise max_attempts.",
            key=stuck.chunk,
        )
