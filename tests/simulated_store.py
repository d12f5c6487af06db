"""A store of any size whose bytes are made when asked for: JSON lines of one length, by arithmetic."""

import threading
import time
from collections.abc import Iterator
from typing import Any

from tools_utilities.errors import ObjectNotFoundError, ObjectReplacedError
from tools_utilities.object_store import ObjectInfo, StoreSpec
from tools_utilities.object_stores import memory
from tools_utilities.object_stores._bodies import PIECE_BYTES, clip_range


class SimulatedBody:
    """A range of an object, piece by piece."""

    def __init__(self, store: "SimulatedStore", info: ObjectInfo, start: int, end: int) -> None:
        self.info = info
        self._store, self._start, self._end = store, start, end

    def __iter__(self) -> Iterator[bytes]:
        for offset in range(self._start, self._end, PIECE_BYTES):
            stop = min(offset + PIECE_BYTES, self._end)
            self._store.wait_for(stop - offset)
            yield self._store.content(self.info.key, offset, stop)

    def close(self) -> None:
        """Count the request as over."""
        self._store.ended(self.info.key)


class SimulatedStore(memory.MemoryStore):
    """`num_objects` objects of `samples_per_object` lines, ids counting on from object to object.

    Knows no checksums. `latency_seconds` passes before each body, `bytes_per_second` limits it;
    `gets` are (key, start, end) in the order asked, `starts` and `ends` their times by `clock`.
    """

    def __init__(
        self,
        num_objects: int,
        samples_per_object: int,
        *,
        record_bytes: int = 100,
        latency_seconds: float = 0.0,
        bytes_per_second: float = float("inf"),
    ) -> None:
        super().__init__(StoreSpec(uri=f"memory://simulated-{id(self):x}"))
        self.num_objects = num_objects
        self.samples_per_object = samples_per_object
        self.record_bytes = record_bytes
        self.latency_seconds = latency_seconds
        self.bytes_per_second = bytes_per_second
        self.object_bytes = samples_per_object * record_bytes
        self.num_gets = 0
        self.got_bytes = 0
        self.open_gets = 0
        self.most_open_gets = 0
        self._counting = threading.Lock()

    def register(self) -> StoreSpec:
        """Make the store the one of its URI in this process."""
        memory._STORES[self.spec.uri] = self
        return self.spec

    def key(self, number: int) -> str:
        """Return the key of an object."""
        return f"data/x/part-{number:07d}.jsonl"

    def info(self, number: int) -> ObjectInfo:
        """Return what the store says of an object."""
        return ObjectInfo(
            key=self.key(number), size_bytes=self.object_bytes, etag=f"version-{number}"
        )

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield every object."""
        infos = map(self.info, range(self.num_objects))
        return (info for info in infos if info.key.startswith(prefix) and info.key > start_after)

    def head(self, key: str) -> ObjectInfo:
        """Return what is known of one object."""
        return self.info(self._number(key))

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> Any:
        """Open a range."""
        info = self.info(self._number(key))
        if if_etag not in {None, info.etag}:
            raise ObjectReplacedError(f"{key} is another version", key=key, status=412)
        start, end = clip_range(start, end, info.size_bytes)
        with self._counting:
            self.num_gets += 1
            self.got_bytes += end - start
            self.open_gets += 1
            self.most_open_gets = max(self.most_open_gets, self.open_gets)
        self.began(key)
        if self.latency_seconds:
            time.sleep(self.latency_seconds)
        return SimulatedBody(self, info, start, end)

    def began(self, key: str) -> None:
        """Called as a request comes in; for tests that watch."""

    def ended(self, key: str) -> None:
        """Called as a body is closed."""
        with self._counting:
            self.open_gets -= 1

    def wait_for(self, num_bytes: int) -> None:
        """Take as long as so many bytes take."""
        if self.bytes_per_second != float("inf"):
            time.sleep(num_bytes / self.bytes_per_second)

    def content(self, key: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of an object."""
        size, first = self.record_bytes, self._number(key) * self.samples_per_object
        low, high = start // size, -(-end // size)
        lines = b"".join(self.line(first + number) for number in range(low, high))
        return lines[start - low * size : end - low * size]

    def line(self, sample: int) -> bytes:
        """Return one line."""
        head = b'{"id":%15d,"text":"' % sample
        return head + b"x" * (self.record_bytes - len(head) - 3) + b'"}\n'

    def _number(self, key: str) -> int:
        digits = key.removeprefix("data/x/part-").removesuffix(".jsonl")
        if not digits.isdecimal() or int(digits) >= self.num_objects:
            raise ObjectNotFoundError(f"{key} does not exist", key=key, status=404, phase="get")
        return int(digits)
