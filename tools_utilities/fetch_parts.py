"""A big object as several ranges at once; each is retried and resumed by itself.

The first part goes alone until its first byte is there: what the store refuses, it refuses once. What
comes of the parts is put together as if one request had brought it: their CRC-32Cs are combined, and
where only an MD5 can prove the whole, it is taken in one pass at the end.
"""

from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Lock, Semaphore, Thread
from typing import Protocol, runtime_checkable

from tools_utilities.checksum import Buffer, combine_crc32c
from tools_utilities.fetch_attempt import FetchLimits, Progress, Sink
from tools_utilities.object_store import ObjectInfo

Span = tuple[int, int]
Receive = Callable[[Span, Sink], Progress]
_READ_BACK_BYTES = 1 << 20


@runtime_checkable
class ReadableSink(Sink, Protocol):
    """A sink that gives back what it was given."""

    def read(self, offset: int, num_bytes: int) -> Buffer:
        """Return bytes that were written before."""
        ...


class StoppedError(OSError):
    """A part writes no more: another one has failed."""


class _Part:
    """One range: a sink of its own that can be shut."""

    def __init__(self, span: Span, sink: Sink, arrived: Callable[[], None]) -> None:
        self.span = span
        self.progress: Progress | None = None
        self._sink, self._arrived = sink, arrived
        self._lock = Lock()
        self._shut = False

    def write(self, offset: int, piece: bytes) -> None:
        """Write a piece at its place in the whole."""
        with self._lock:
            if self._shut:
                raise StoppedError("another part has failed")
            self._sink.write(self.span[0] + offset, piece)
        self._arrived()

    def shut(self) -> None:
        """Let nothing through any more."""
        with self._lock:
            self._shut = True


class PartedDownload:
    """The parts of one object; `run` is called once."""

    def __init__(self, spans: Sequence[Span], sink: Sink, receive: Receive) -> None:
        self._parts = [_Part(span, sink, self._begin) for span in spans]
        self._receive = receive
        self._changed = Condition()
        self._waiting = deque(self._parts)
        self._helpers: Semaphore | None = None
        self._running = 0
        self._error: BaseException | None = None

    def run(self, helpers: Semaphore) -> list[Progress]:
        """Receive all parts, helped by as many threads as `helpers` lets through.

        Raises:
            QuarkError: the first failure of a part; nothing is written to the sink after that.
            OSError: the sink's own error.
        """
        self._helpers = helpers
        try:
            self._work()
            with self._changed:
                self._changed.wait_for(lambda: not self._running or self._error is not None)
        finally:
            # Interrupted, or failed: the caller will write from the start again, or close the sink.
            for part in self._parts:
                part.shut()
        if self._error is not None:
            raise self._error
        return [part.progress for part in self._parts if part.progress is not None]

    def _begin(self) -> None:
        """Let others help, once the first byte is there."""
        helpers, self._helpers = self._helpers, None
        if helpers is None:
            return
        for _ in self._parts[1:]:
            if not helpers.acquire(blocking=False):
                return
            with self._changed:
                self._running += 1
            thread = Thread(target=self._help, args=(helpers,), name="quark-part", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the system gives no more threads: those that there are go on
                self._leave(helpers)
                return

    def _help(self, helpers: Semaphore) -> None:
        try:
            self._work()
        finally:
            self._leave(helpers)

    def _leave(self, helpers: Semaphore) -> None:
        helpers.release()
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                if not self._waiting or self._error is not None:
                    return
                part = self._waiting.popleft()
            try:
                part.progress = self._receive(part.span, part)
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that runs it all
                with self._changed:
                    if self._error is None:
                        self._error = error
                    self._changed.notify_all()
                return


def cut(info: ObjectInfo, limits: FetchLimits) -> list[Span]:
    """Return the parts to fetch an object in; one, where more are not worth it or not safe."""
    size = info.size_bytes
    # Without an etag parts of two versions could be put together.
    if info.etag is None or size < limits.parted_from_bytes:
        return [(0, size)]
    starts = range(0, size, limits.part_bytes)
    return [(start, min(start + limits.part_bytes, size)) for start in starts]


def join(spans: Sequence[Span], parts: Sequence[Progress], sink: Sink, *, md5: bool) -> Progress:
    """Return what one request for the whole would have brought."""
    whole = Progress(with_md5=md5)
    if whole.md5 is not None and isinstance(sink, ReadableSink):
        for offset in range(0, spans[-1][1], _READ_BACK_BYTES):
            whole.md5.update(sink.read(offset, min(_READ_BACK_BYTES, spans[-1][1] - offset)))
    for (start, end), part in zip(spans, parts, strict=True):
        whole.crc32c = combine_crc32c(whole.crc32c, part.crc32c, end - start)
        whole.received_bytes += part.received_bytes
        whole.stored_crc32c = whole.stored_crc32c or part.stored_crc32c
    return whole
