"""Opens splits on threads before they are needed, and lays out windows; without threads, opens late.

The threads are daemons and live only while an iteration does: a process that forks between two
iterations has none, and one that is told to stop does not wait for a download.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from brain.ml.dataset_shards.laid_window import LaidWindow
from brain.ml.dataset_shards.split_source import OpenedSplit
from tools_utilities.background import BACKGROUND
from tools_utilities.errors import QuarkError

_Job = tuple[Callable[[], Any], Future[Any]] | None
LayOut = Callable[[Sequence[OpenedSplit]], LaidWindow | None]


class OpenAhead:
    """A few threads and the splits they have opened; used by one thread, its owner."""

    def __init__(self, open_split: Callable[[int], OpenedSplit], *, num_threads: int) -> None:
        self._open_split = open_split
        self._num_threads = num_threads
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._threads: list[Thread] = []
        self._futures: dict[int, Future[OpenedSplit]] = {}
        self._laid: dict[Sequence[int], Future[LaidWindow | None]] = {}
        self._laying = Lock()
        """One at a time: while it is laid out, a window is held twice."""
        self._closed = False

    def request(self, numbers: Iterable[int]) -> None:
        """Ask for splits, the one needed first in front; those already asked for are left alone."""
        if not self._num_threads:
            return
        for number in numbers:
            if number in self._futures:
                continue
            future: Future[OpenedSplit] = Future()
            self._futures[number] = future
            self._jobs.put((partial(self._open_split, number), future))
            if len(self._threads) < min(self._num_threads, len(self._futures)):
                self._start_thread()

    def request_layout(self, numbers: Sequence[int], lay: LayOut) -> None:
        """Ask for a window of splits, all of them asked for already, to be laid out."""
        if numbers in self._laid or any(number not in self._futures for number in numbers):
            return
        futures = [self._futures[number] for number in numbers]
        laid: Future[LaidWindow | None] = Future()
        self._laid[numbers] = laid
        # Its splits stand before it in the queue, so threads are at them or have opened them.
        self._jobs.put((partial(self._lay_out, futures, lay), laid))

    def has_laid_out(self, numbers: Sequence[int]) -> bool:
        """Return whether a window has been laid out (or found to be none that can be)."""
        laid = self._laid.get(numbers)
        return laid is not None and laid.done()

    def take_layout(self, numbers: Sequence[int]) -> LaidWindow | None:
        """Return a window that has been laid out, once; None where it cannot be."""
        return self._laid.pop(numbers).result()

    def give_up_layout(self, numbers: Sequence[int]) -> None:
        """Say that a window is wanted no more as it may have been asked for."""
        laid = self._laid.pop(numbers, None)
        if laid is not None:
            laid.cancel()

    def take(self, number: int) -> OpenedSplit:
        """Return a split, open; waits for a thread that is at it, else opens it here.

        Raises:
            QuarkError: it could not be opened.
        """
        future = self._futures.pop(number, None)
        if future is None or future.cancel():
            return self._open_split(number)
        return future.result()

    def keep(self, numbers: Collection[int]) -> None:
        """Give up what was asked for, was not taken, and is not among these: it was passed by."""
        for window in [one for one in self._laid if one[0] not in numbers]:
            self._laid.pop(window).cancel()
        for number in [one for one in self._futures if one not in numbers]:
            future = self._futures.pop(number)
            # Closed by whoever finishes opening it.
            if not future.cancel():
                future.add_done_callback(_close_result)

    def close(self) -> None:
        """Stop; what was opened and not taken is closed."""
        self.keep(())
        with self._laying:  # splits that are open may be closed after this
            self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        self._threads.clear()

    def _start_thread(self) -> None:
        thread = Thread(target=_work, args=(self._jobs,), daemon=True)
        thread.name = "quark-open-ahead"
        thread.start()
        self._threads.append(thread)

    def _lay_out(self, futures: Sequence[Future[OpenedSplit]], lay: LayOut) -> LaidWindow | None:
        try:
            with BACKGROUND.away():
                opened = [future.result() for future in futures]
        except (CancelledError, QuarkError):
            return None  # whoever takes the split opens it, or is told
        with self._laying:
            return None if self._closed else lay(opened)


def _work(jobs: SimpleQueue[_Job]) -> None:
    with BACKGROUND.piece():
        while (job := _next(jobs)) is not None:
            _do(*job)
            del job  # or what it opened or laid out stays in memory until there is another one


def _next(jobs: SimpleQueue[_Job]) -> _Job:
    with BACKGROUND.away():
        return jobs.get()


def _do(run: Callable[[], Any], future: Future[Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = run()
    except BaseException as error:  # noqa: BLE001 - carried to the thread that takes it
        future.set_exception(error)
    else:
        future.set_result(result)


def _close_result(future: Future[OpenedSplit]) -> None:
    if future.exception() is None:
        future.result().close()
