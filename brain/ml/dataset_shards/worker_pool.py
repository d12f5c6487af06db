"""The loader workers of one StreamLoader, as the process sees them that delivers their batches.

Batches come in the order of the epoch, whichever worker has made them, and the pass that is read
ahead is given up when another begins. There are no semaphores and no named shared memory: pipes,
and one anonymous file a worker (`worker_ring.py`).
"""

import pickle
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import msgspec

from brain.ml.dataset_shards.epoch_plan import EpochStart
from brain.ml.dataset_shards.partitioning import Partitioning
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.stream_iteration import Standing, too_many_bad
from brain.ml.dataset_shards.worker_messages import (
    Begin,
    Ended,
    Failed,
    Opened,
    Release,
    Sent,
    SentBatch,
    Stop,
    Wanted,
    WorkerTask,
    dump,
    load,
)
from brain.ml.dataset_shards.worker_process import run_worker
from brain.ml.dataset_shards.worker_ring import (
    RING_BYTES,
    RingFile,
    decode_batch,
    split_segments,
)
from tools_utilities.errors import UsageError, WorkerError
from tools_utilities.process_environment import environment_now

_STOP_SECONDS = 2.0
PRELOAD = ["__main__", "brain.ml.dataset_shards.worker_process"]
"""What a fork server imports once for all workers."""


class Delivery(NamedTuple):
    """One batch, in its turn."""

    batch: Any
    standing: Standing


class _Worker:
    """One process, what it has sent, and how far that has been taken."""

    def __init__(self, process: Any, connection: Connection, ring: RingFile) -> None:
        self.process = process
        self.connection = connection
        self.view = ring.map(writable=False)
        self.waiting: deque[tuple[SentBatch, Sent, list[memoryview]]] = deque()
        self.final: Ended | Failed | None = None
        self.num_bad = 0

    def begin(self, begin: Begin) -> None:
        self.waiting.clear()
        self.final, self.num_bad = None, 0
        self.send(begin)

    def send(self, frame: Begin | Release | Stop) -> None:
        """Send; that a worker is gone is noticed where its batches are missed."""
        try:
            self.connection.send_bytes(dump(frame))
        except (BrokenPipeError, ConnectionResetError):
            return

    def hold(self, sent: Sent) -> None:
        self.num_bad = sent.num_bad
        segments = (
            iter([memoryview(piece) for piece in sent.inline])
            if sent.offset < 0
            else iter(split_segments(self.view, sent.offset, _lengths(sent)))
        )
        for batch in sent.batches:
            self.waiting.append((batch, sent, [next(segments) for _ in batch.lengths]))


class WorkerPool:
    """Started once; `run` as often as there are epochs. `close` it."""

    def __init__(
        self,
        task: WorkerTask,
        num_workers: int,
        context: Any,
        *,
        timeout: float = 0,
        on_wanted: Callable[[list[int]], None] | None = None,
        on_opened: Callable[[int], None] | None = None,
        ring_bytes: int = RING_BYTES,
    ) -> None:
        """Start the processes.

        Args:
            task: What they do.
            num_workers: How many.
            context: How they start: one of multiprocessing's contexts.
            timeout: Seconds to wait for a batch; 0: for ever.
            on_wanted: Told which objects come next, by number.
            on_opened: Told of each object that is in use.
            ring_bytes: Of batches read ahead, a worker.

        Raises:
            UsageError: what a worker needs cannot be sent to it.
        """
        self.stats: dict[int, Mapping[str, Any]] = {}
        """Of each worker, as it last told."""
        self.wait_seconds = 0.0
        """Spent waiting for batches."""
        self._timeout = timeout
        self._on_wanted, self._on_opened = on_wanted, on_opened
        self._bad_budget = task.plan.tolerance.bad_budget
        self._copies = not getattr(task.collate, "finish_copies", False)
        self._pass = 0
        self._workers: list[_Worker] = []
        self._close = weakref.finalize(self, _end, self._workers)
        try:
            for number in range(num_workers):
                self._workers.append(self._start(task, number, context, ring_bytes))
        except BaseException:
            self.close()
            raise

    def _start(self, task: WorkerTask, number: int, context: Any, ring_bytes: int) -> _Worker:
        ring = RingFile(ring_bytes)
        mine, theirs = context.Pipe()
        method = context.get_start_method()
        inherited = (
            [*(worker.connection for worker in self._workers), mine] if method == "fork" else []
        )
        # The fork server's own is the one of its start: keys set since would be missing.
        environment = environment_now() if method == "forkserver" else None
        process = context.Process(
            target=run_worker,
            args=(task, number, theirs, ring, inherited, environment),
            name=f"quark-loader-{number}",
            daemon=True,
        )
        try:
            process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            mine.close()
            raise UsageError(
                f"a loader worker cannot be started: {error}",
                hint="Define deserialize and collate_fn at the top level of a module, or use "
                "num_workers=0.",
            ) from error
        finally:
            theirs.close()
        worker = _Worker(process, mine, ring)
        ring.close()
        return worker

    @property
    def pids(self) -> list[int]:
        """Process numbers of the workers."""
        return [worker.process.pid for worker in self._workers]

    def close(self) -> None:
        """End the processes; safe to call twice."""
        self._pass += 1
        self._close()

    def begin(
        self,
        start: EpochStart,
        share: Share,
        counts: Indices,
        partitioning: Partitioning | None,
        seed: int,
    ) -> int:
        """Start a pass; returns its number. Whatever was read ahead of another is given up."""
        self._pass += 1
        for number, worker in enumerate(self._workers):
            own = replace_worker(share, number, len(self._workers))
            worker.begin(
                Begin(
                    number=self._pass,
                    start=start,
                    share=own,
                    counts=counts,
                    partitioning=partitioning,
                    seed=seed,
                )
            )
        return self._pass

    def batches(self, number: int) -> Iterator[Delivery]:
        """Yield the batches of a pass in order.

        Raises:
            UsageError: another pass has begun meanwhile.
            WorkerError: a worker has ended, said nothing for too long, or met an error that cannot
                be carried here.
            Exception: what a worker has met.
        """
        step = 0
        while (found := self._take(number, step)) is not None:
            worker, (batch, sent, segments) = found
            value = decode_batch(segments, copy=self._copies)
            yield Delivery(value, batch.standing)
            del value, segments
            self._check(number)
            if batch is sent.batches[-1]:
                worker.send(Release(number, sent.num_bytes, len(sent.batches)))
            step = batch.step + 1

    def ended(self) -> list[Ended]:
        """Return what the workers said at the end of the pass."""
        return [worker.final for worker in self._workers if isinstance(worker.final, Ended)]

    def _take(
        self, number: int, step: int
    ) -> tuple[_Worker, tuple[SentBatch, Sent, list[memoryview]]] | None:
        """Return the first batch that is not before `step`; None: there is none."""
        count = len(self._workers)
        skipped = 0
        while skipped < count:
            worker = self._workers[step % count]
            if not worker.waiting and worker.final is None:
                self._wait_for(number, worker)
            self._check_bad()
            if worker.waiting and worker.waiting[0][0].step == step:
                return worker, worker.waiting.popleft()
            if not worker.waiting and isinstance(worker.final, Failed):
                raise self._failure(worker, worker.final)
            # No batch of that number: all its records were bad, or this worker has no more.
            step += 1
            skipped = 0 if worker.waiting else skipped + 1
        return None

    # What workers say.

    def _wait_for(self, number: int, worker: _Worker) -> None:
        """Take in what all workers say until this one has a batch, or has come to its end."""
        started = time.monotonic()
        try:
            while not worker.waiting and worker.final is None:
                left = self._timeout and self._timeout - (time.monotonic() - started)
                live = [one.connection for one in self._workers if one.final is None]
                ready = wait(live, left if self._timeout else None)
                if not ready:
                    raise WorkerError(
                        f"no batch from a loader worker (pid {worker.process.pid}) for "
                        f"{self._timeout:g} s",
                        hint="Raise timeout, or look at what deserialize and collate_fn wait for.",
                    )
                for one in self._workers:
                    if one.connection in ready:
                        self._hear(number, one)
        finally:
            self.wait_seconds += time.monotonic() - started

    def _hear(self, number: int, worker: _Worker) -> None:
        try:
            frame = load(worker.connection.recv_bytes())
        except (EOFError, ConnectionResetError) as error:
            raise self._lost(worker) from error
        if frame.number != number:
            return  # of a pass that was given up
        if isinstance(frame, Sent):
            worker.hold(frame)
        elif isinstance(frame, Ended | Failed):
            worker.final = frame
        elif isinstance(frame, Wanted) and self._on_wanted is not None:
            self._on_wanted(frame.objects)
        elif isinstance(frame, Opened) and self._on_opened is not None:
            self._on_opened(frame.object)
        stats = getattr(frame, "stats", None)
        if stats is not None:
            self.stats[self._workers.index(worker)] = stats

    def _check(self, number: int) -> None:
        if number != self._pass:
            raise UsageError(
                "this iteration was given up: another one of the same loader has begun",
                hint="Use one iterator at a time, or a StreamLoader each.",
            )

    def _check_bad(self) -> None:
        """Hold the budget of bad records over all workers; each of them holds it for itself."""
        num_bad = sum(worker.num_bad for worker in self._workers)
        if num_bad > self._bad_budget:
            raise too_many_bad(self._bad_budget)

    def _failure(self, worker: _Worker, failed: Failed) -> BaseException:
        place = f"in a loader worker (pid {worker.process.pid})"
        failed.error.add_note(f"{place}:\n{failed.trace}")
        return failed.error

    def _lost(self, worker: _Worker) -> WorkerError:
        worker.process.join(_STOP_SECONDS)
        code, pid = worker.process.exitcode, worker.process.pid
        how = f"was killed by signal {-code}" if code and code < 0 else f"ended with code {code}"
        return WorkerError(
            f"a loader worker (pid {pid}) {how}",
            hint="Killed by signal 9, memory is what usually ran out: fewer workers, or smaller "
            "batches. Resume from the last checkpoint.",
            pid=pid,
            exit_code=code,
        )


def replace_worker(share: Share, worker: int, num_workers: int) -> Share:
    """Return a rank's share as one of its workers has it."""
    return msgspec.structs.replace(share, worker=worker, num_workers=num_workers)


def _lengths(sent: Sent) -> list[int]:
    return [length for batch in sent.batches for length in batch.lengths]


def _end(workers: list[_Worker]) -> None:
    """Ask, wait, terminate, kill."""
    for worker in workers:
        worker.send(Stop())
        worker.connection.close()
    deadline = time.monotonic() + _STOP_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        if worker.process.is_alive():
            worker.process.terminate()
            worker.process.join(_STOP_SECONDS)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
    workers.clear()
