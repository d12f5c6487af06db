"""What a loader worker does: reads its share of a pass, makes batches, and hands them over in order.

Started by `worker_pool.py`. Imports neither torch nor a store's client by itself: what a worker
imports decides how long the first batch takes. It ends when it is told to, or when the process that
started it is gone.
"""

import pickle
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from threading import Lock
from typing import Any

import numpy as np

from brain.ml.dataset_shards.epoch_plan import EpochPlan
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.stream_iteration import Iteration, StreamTotals
from brain.ml.dataset_shards.stream_statistics import stream_statistics
from brain.ml.dataset_shards.turn import LocalClock, Turn
from brain.ml.dataset_shards.worker_messages import (
    Begin,
    Ended,
    Failed,
    Frame,
    Opened,
    Release,
    Sent,
    SentBatch,
    Stop,
    Wanted,
    WorkerTask,
    dump,
    learn_counts,
    load,
)
from brain.ml.dataset_shards.worker_ring import (
    RingFile,
    RingWriter,
    Segment,
    aligned,
    encode_batch,
)
from brain.ml.dataset_shards.worker_shards import nearby_plan
from tools_utilities.errors import QuarkError, said_by
from tools_utilities.object_store import ObjectInfo
from tools_utilities.process_environment import take_environment
from tools_utilities.redaction import guard_process

_MESSAGE_BYTES = 512 << 10
"""A message is sent when it holds so much …"""
_MESSAGE_SECONDS = 0.05
"""… or its first batch is so old. The first messages of a pass are smaller."""
_STATS_SECONDS = 0.5


class _NewOrderError(Exception):
    """The owner wants something else now."""

    def __init__(self, frame: Begin | Stop) -> None:
        super().__init__()
        self.frame = frame


def run_worker(
    task: WorkerTask,
    number: int,
    connection: Connection,
    ring: RingFile,
    inherited: Sequence[Connection],
    environment: Mapping[str, str] | None,
) -> None:
    """Serve passes until told to stop; the target of a worker process.

    `environment`, where given, takes the place of this process's own.

    `inherited` are the owner's ends of connections that a forked worker has too: open, they would
    hide from other workers that the owner is gone.
    """
    if environment is not None:
        take_environment(environment)
    guard_process()
    for other in inherited:
        other.close()
    # Ctrl-C reaches every process of a terminal: it is the owner who ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    writer = RingWriter(ring.map(writable=True))
    ring.close()
    try:
        _Worker(task, number, connection, writer).run()
    except _OwnerGoneError:
        return


class _OwnerGoneError(Exception):
    """Nobody is left to read for, or to tell."""


_OWNERS = (_NewOrderError, _OwnerGoneError)
"""What the owner makes happen, not the data."""


class _Worker:
    def __init__(
        self, task: WorkerTask, number: int, connection: Connection, ring: RingWriter
    ) -> None:
        self._task = task
        self._number = number
        self._connection = connection
        self._sending = Lock()
        self._ring = ring
        self._pass = 0
        self._ahead = 0
        """Batches sent that the owner has not taken."""
        self._totals = StreamTotals()
        self._manager_stats: Callable[[], dict[str, Any]] = dict
        self._numbers: dict[str, int] = {}
        self._plan = self._own_plan()

    def _own_plan(self) -> EpochPlan:
        task, plan = self._task, self._task.plan
        if task.endpoint_id is None:
            manager = getattr(plan.source, "_manager", None)
            if manager is not None:
                self._manager_stats = manager.get_stats
            return plan
        self._numbers = {info.key: number for number, info in enumerate(plan.table.objects)}
        plan, self._manager_stats = nearby_plan(
            plan, task.endpoint_id, announce=self._announce, opened=self._note_opened
        )
        return plan

    def run(self) -> None:
        """Take orders."""
        frame: Any = self._receive()
        while not isinstance(frame, Stop):
            try:
                if isinstance(frame, Begin):
                    self._read_pass(frame)
                frame = self._receive()
            except _NewOrderError as order:
                frame = order.frame

    # A pass.

    def _read_pass(self, begin: Begin) -> None:
        self._pass, self._ahead = begin.number, 0
        self._ring.reset()
        self._seed(begin)
        try:
            iteration = self._begin(begin)
            self._send_batches(begin, iteration)
        except _OWNERS:
            raise
        except Exception as error:  # noqa: BLE001 - raised again where batches are asked for
            self._send(Failed(begin.number, _portable(error), traceback.format_exc()))
        else:
            counts = self._task.index.counts
            stats = self._stats(iteration)
            self._send(Ended(begin.number, iteration.start.epoch, counts, stats))

    def _begin(self, begin: Begin) -> Iteration:
        index = self._task.index
        learn_counts(index.counts, begin.counts)
        shared = getattr(self._task.collate, "takes_blocks", False)
        plan = replace(
            self._plan,
            start=begin.start,
            share=begin.share,
            partitioning=begin.partitioning,
            shared_rows=shared,
        )
        turn = Turn(0, begin.number, begin.start.epoch, begin.start.position, 0)
        self._clock = LocalClock()
        return Iteration(index, plan, self._clock, turn, self._totals)

    def _seed(self, begin: Begin) -> None:
        """Give random numbers of the collate a seed of their own, as torch's workers have."""
        seed = (begin.seed * 1_000_003 + begin.start.epoch * 1009 + self._number) % (1 << 32)
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - the legacy generator is what a user's collate may use
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(seed)
            torch.set_num_threads(1)
            _tell_torch(self._number, begin.share.num_workers, seed)

    def _send_batches(self, begin: Begin, iteration: Iteration) -> None:
        """Read, collate and send; the first message is one batch, later ones grow."""
        before, limit, told = self._totals.bad, 1, 0.0
        group: list[tuple[SentBatch, list[Segment]]] = []
        held, began = 0, time.monotonic()
        try:
            for batch, segments in self._encoded(begin.share, iteration):
                group.append((batch, segments))
                held += sum(map(aligned, batch.lengths))
                now = time.monotonic()
                if held < limit and now - began < _MESSAGE_SECONDS and not self._is_full(group):
                    continue
                stats = None
                if now - told > _STATS_SECONDS:
                    stats, told = self._stats(iteration), now
                self._send_group(group, held, self._totals.bad - before, stats)
                limit = min(_MESSAGE_BYTES, 4 * held)
                group, held, began = [], 0, time.monotonic()
        except _OWNERS:
            raise
        except Exception:
            # What was read before the error is delivered before it.
            self._send_group(group, held, self._totals.bad - before, None)
            raise
        self._send_group(group, held, self._totals.bad - before, None)

    def _encoded(
        self, share: Share, iteration: Iteration
    ) -> Iterator[tuple[SentBatch, list[Segment]]]:
        make = getattr(self._task.collate, "pack", self._task.collate)
        for samples in iteration.batches(drop_last=self._task.drop_last):
            segments = encode_batch(make(samples))
            own = (iteration.slot - 1) // share.batch_size
            lengths = [len(segment) for segment in segments]
            step = own * share.num_workers + share.worker
            yield SentBatch(step, lengths, iteration.standing()), segments

    def _is_full(self, group: Sequence[Any]) -> bool:
        most = self._task.batches_ahead
        return most is not None and len(group) >= max(1, most // 2)

    def _send_group(
        self,
        group: list[tuple[SentBatch, list[Segment]]],
        num_bytes: int,
        num_bad: int,
        stats: dict[str, Any] | None,
    ) -> None:
        if not group and not num_bad:
            return
        batches = [batch for batch, _ in group]
        segments = [segment for _, found in group for segment in found]
        most = self._task.batches_ahead
        while most is not None and self._ahead and self._ahead + len(group) > most:
            self._take_order(self._receive())
        if not self._ring.can_ever_hold(num_bytes):
            inline = [bytes(segment) for segment in segments]
            while self._ahead:
                # What is too large for the ring waits for its turn alone.
                self._take_order(self._receive())
            self._ahead += len(group)
            self._send(Sent(self._pass, -1, 0, batches, inline, num_bad, stats))
            return
        while self._connection.poll():
            self._take_order(self._receive())
        while (place := self._ring.place(num_bytes)) is None:
            self._take_order(self._receive())
        offset, taken = place
        self._ring.write(offset, segments)
        self._ahead += len(group)
        self._send(Sent(self._pass, offset, taken, batches, [], num_bad, stats))

    # The owner.

    def _receive(self) -> Any:
        try:
            return load(self._connection.recv_bytes())
        except (EOFError, ConnectionResetError) as error:
            raise _OwnerGoneError from error

    def _take_order(self, frame: Any) -> None:
        if not isinstance(frame, Release):
            raise _NewOrderError(frame)
        if frame.number == self._pass:
            self._ring.release(frame.num_bytes)
            self._ahead -= frame.num_batches

    def _send(self, frame: Frame) -> None:
        data = dump(frame)
        try:
            with self._sending:  # the threads that open splits ahead send too
                self._connection.send_bytes(data)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise _OwnerGoneError from error

    def _announce(self, infos: Sequence[ObjectInfo]) -> None:
        self._send(Wanted(self._pass, [self._numbers[info.key] for info in infos]))

    def _note_opened(self, info: ObjectInfo) -> None:
        number = self._numbers.get(info.key)
        if number is not None:
            self._send(Opened(self._pass, number))

    def _stats(self, iteration: Iteration) -> dict[str, Any]:
        source = self._plan.source
        return stream_statistics(self._manager_stats(), self._totals, iteration, source=source)


def _portable(error: BaseException) -> BaseException:
    """Return the error if it survives the way to the owner, else what it says."""
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    except Exception:  # noqa: BLE001 - an exception of any kind may fail to pickle in any way
        return QuarkError(said_by(error))
    return error


def _tell_torch(number: int, num_workers: int, seed: int) -> None:
    """Make `torch.utils.data.get_worker_info()` answer as in torch's own workers."""
    from torch.utils.data._utils import worker

    info: Any = worker.WorkerInfo  # typed as taking nothing
    worker._worker_info = info(id=number, num_workers=num_workers, seed=seed, dataset=None)  # noqa: SLF001 - torch has no public way
