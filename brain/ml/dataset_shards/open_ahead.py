"""Opens splits on threads before they are needed; without threads, when they are needed.

The threads are daemons and live only while an iteration does: a process that forks between two
iterations has none, and one that is told to stop does not wait for a download.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread

from brain.ml.dataset_shards.split_source import OpenedSplit

_Job = tuple[int, Future[OpenedSplit]] | None


class OpenAhead:
    """A few threads and the splits they have opened; used by one thread, its owner."""

    def __init__(self, open_split: Callable[[int], OpenedSplit], *, num_threads: int) -> None:
        self._open_split = open_split
        self._num_threads = num_threads
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._threads: list[Thread] = []
        self._futures: dict[int, Future[OpenedSplit]] = {}

    def request(self, numbers: Iterable[int]) -> None:
        """Ask for splits, the one needed first in front; those already asked for are left alone."""
        if not self._num_threads:
            return
        for number in numbers:
            if number in self._futures:
                continue
            future: Future[OpenedSplit] = Future()
            self._futures[number] = future
            self._jobs.put((number, future))
            if len(self._threads) < min(self._num_threads, len(self._futures)):
                self._start_thread()

    def take(self, number: int) -> OpenedSplit:
        """Return a split, open; waits for a thread that is at it, else opens it here.

        Raises:
            QuarkError: it could not be opened.
        """
        future = self._futures.pop(number, None)
        if future is None or future.cancel():
            return self._open_split(number)
        return future.result()

    def close(self) -> None:
        """Stop; what was opened and not taken is closed, by whoever finishes opening it."""
        for future in self._futures.values():
            if not future.cancel():
                future.add_done_callback(_close_result)
        self._futures.clear()
        for _ in self._threads:
            self._jobs.put(None)
        self._threads.clear()

    def _start_thread(self) -> None:
        thread = Thread(target=_work, args=(self._jobs, self._open_split), daemon=True)
        thread.name = "quark-open-ahead"
        thread.start()
        self._threads.append(thread)


def _work(jobs: SimpleQueue[_Job], open_split: Callable[[int], OpenedSplit]) -> None:
    while (job := jobs.get()) is not None:
        number, future = job
        if not future.set_running_or_notify_cancel():
            continue
        try:
            opened = open_split(number)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that takes the split
            future.set_exception(error)
        else:
            future.set_result(opened)


def _close_result(future: Future[OpenedSplit]) -> None:
    if future.exception() is None:
        future.result().close()
