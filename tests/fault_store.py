"""A store around another one that counts its requests and fails as it is told."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tools_utilities.errors import StoreError
from tools_utilities.object_store import Body, ObjectInfo, StoreSpec
from tools_utilities.object_stores.memory import MemoryStore

Fault = Callable[[Body, int, int], Iterator[bytes]]
"""(the true body, start, end) → what arrives instead."""


class FaultyBody:
    """A body whose pieces a fault provides."""

    def __init__(self, info: ObjectInfo, pieces: Iterator[bytes]) -> None:
        self.info = info
        self.closed = False
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        self.closed = True


class FaultStore(MemoryStore):
    """The n-th get meets the n-th fault; afterwards gets go well, or meet `always`."""

    def __init__(self, *faults: Fault | Exception | None, always: Any = None) -> None:
        super().__init__(StoreSpec(uri=f"memory://fault-{id(self):x}"))
        self.faults = list(faults)
        self.always = always
        self.gets: list[tuple[str, int, int | None, str | None]] = []
        self._gets_lock = threading.Lock()

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> Any:
        with self._gets_lock:
            self.gets.append((key, start, end, if_etag))
            fault = self.faults.pop(0) if self.faults else self.always
        if isinstance(fault, Exception):
            raise fault
        body = super().get(key, start=start, end=end, if_etag=if_etag)
        if fault is None:
            return body
        stop = body.info.size_bytes if end is None else end
        return FaultyBody(body.info, fault(body, start, stop))

    @property
    def starts(self) -> list[int]:
        return [start for _, start, _, _ in self.gets]


def whole(body: Body) -> bytes:
    return b"".join(body)


def breaks_after(num_bytes: int) -> Fault:
    def fault(body: Body, start: int, end: int) -> Iterator[bytes]:
        yield whole(body)[:num_bytes]
        raise StoreError("connection reset", transient=True, received_bytes=num_bytes)

    return fault


def ends_after(num_bytes: int) -> Fault:
    def fault(body: Body, start: int, end: int) -> Iterator[bytes]:
        yield whole(body)[:num_bytes]

    return fault


def stalls_after(num_bytes: int, released: threading.Event) -> Fault:
    def fault(body: Body, start: int, end: int) -> Iterator[bytes]:
        if num_bytes:
            yield whole(body)[:num_bytes]
        released.wait(20)
        yield whole(body)[num_bytes:]

    return fault


def drips(num_bytes: int, seconds: float) -> Fault:
    def fault(body: Body, start: int, end: int) -> Iterator[bytes]:
        data = whole(body)
        for offset in range(0, len(data), num_bytes):
            time.sleep(seconds)
            yield data[offset : offset + num_bytes]

    return fault


def flips(offset: int) -> Fault:
    def fault(body: Body, start: int, end: int) -> Iterator[bytes]:
        data = bytearray(whole(body))
        data[offset] ^= 1
        yield bytes(data)

    return fault


def too_long(body: Body, start: int, end: int) -> Iterator[bytes]:
    yield whole(body) + b"more"


def busy() -> StoreError:
    return StoreError("503 SlowDown", status=503, transient=True)
