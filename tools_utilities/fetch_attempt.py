"""One request for one byte range, watched: it can be given up while the store still hangs.

The request runs in a thread of its own. A thread that was given up stays behind until its
connection's own time limit; it can no longer write anywhere.
"""

import hashlib
import mmap
import re
import time
from collections import deque
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Protocol

import msgspec

from tools_utilities.background import BACKGROUND
from tools_utilities.checksum import Buffer, crc32c
from tools_utilities.errors import ObjectReplacedError, QuarkError, StoreError
from tools_utilities.object_store import ObjectInfo, ObjectStore

_LOOKS_PER_WATCH = 20
_OWN_PAGES_BYTES = 256 << 10
_MD5 = re.compile(r"[0-9a-f]{32}")


class FetchLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a download tries again, and when it gives up."""

    max_attempts: int = 6
    max_silent_attempts: int = 4
    """Attempts without a single byte, each a tenth shorter than the one before: 34 s in all."""
    retry_seconds: float = 120.0
    """No new attempt begins so long after the first failure."""
    first_byte_seconds: float = 10.0
    watch_seconds: float = 10.0
    min_bytes_per_second: int = 64 * 1024
    """Over any `watch_seconds`; less is a stalled connection."""
    first_pause_seconds: float = 0.1
    longest_pause_seconds: float = 10.0
    parted_from_bytes: int = 48 << 20
    """Larger objects are fetched in parts at once; below, more connections bring nothing."""
    part_bytes: int = 16 << 20
    part_threads: int = 7
    """For all objects together, beside the threads that ask for them."""

    def after_silence(self, silent: int) -> "FetchLimits":
        """Return the limits of an attempt that so many silent ones went before."""
        if not silent:
            return self
        share = max(0.1, 1 - 0.1 * silent)
        return msgspec.structs.replace(self, first_byte_seconds=share * self.first_byte_seconds)


class Sink(Protocol):
    """Where the bytes of an object go."""

    def write(self, offset: int, piece: bytes) -> None:
        """Keep a piece; `offset` counts from the start of the range that was asked for."""
        ...


class BufferSink:
    """Keeps a range in memory."""

    def __init__(self, num_bytes: int) -> None:
        # Pages of their own go back to the system at once: freed among the small objects of many threads,
        # buffers of all sizes leave holes, a hundred megabytes in an hour.
        self.data: bytearray | mmap.mmap = (
            mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if num_bytes >= _OWN_PAGES_BYTES
            else bytearray(num_bytes)
        )

    def write(self, offset: int, piece: bytes) -> None:
        """Copy a piece to its place."""
        self.data[offset : offset + len(piece)] = piece

    def read(self, offset: int, num_bytes: int) -> memoryview:
        """Return what was written, without a copy."""
        return memoryview(self.data)[offset : offset + num_bytes]


class Progress:
    """What has arrived of a range over all attempts, and its checksums so far."""

    def __init__(self, *, with_md5: bool) -> None:
        self.received_bytes = 0
        self.crc32c = 0
        self.md5 = hashlib.md5(usedforsecurity=False) if with_md5 else None
        self.stored_crc32c: str | None = None
        """What the store says of the whole object."""
        self.other_version: ObjectInfo | None = None
        """What a response called the object, where that was not the listed etag."""

    def prove_by_md5(self, found: ObjectInfo) -> None:
        """Note that the bytes are of the listed version only if their MD5 is its etag."""
        if self.md5 is None:
            self.md5 = hashlib.md5(usedforsecurity=False)
        self.other_version = found

    def add(self, piece: Buffer) -> None:
        """Count a piece."""
        self.crc32c = crc32c(piece, self.crc32c)
        if self.md5 is not None:
            self.md5.update(piece)
        self.received_bytes += len(piece)


class SinkError(Exception):
    """The sink failed, not the store; the cause is the sink's own error."""


class FetchAttempt:
    """Asks for the bytes of `info` in [start, end) that are missing from `progress`."""

    def __init__(
        self, store: ObjectStore, info: ObjectInfo, span: tuple[int, int], progress: Progress
    ) -> None:
        self._store = store
        self._info = info
        self._start, self._end = span
        self._progress = progress
        self._lock = Lock()
        self._done = Event()
        self._given_up = False
        self._error: BaseException | None = None

    def run(
        self, sink: Sink, limits: FetchLimits, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Receive what is missing.

        Raises:
            StoreError: transient ones may be tried again, `restart` ones from the first byte.
            QuarkError: what the store says otherwise.
            SinkError: the bytes could not be kept.
        """
        start = (clock(), self._progress.received_bytes)
        Thread(target=self._receive, args=(sink,), name="quark-fetch", daemon=True).start()
        try:
            self._watch(limits, clock, start)
        except BaseException:
            # Interrupted: the caller will close the sink, so nothing may write to it any more.
            self._give_up("interrupted")
            raise
        if self._error is not None:
            raise self._error

    def _watch(
        self, limits: FetchLimits, clock: Callable[[], float], start: tuple[float, int]
    ) -> None:
        marks = deque([start])
        started, before = start
        look_seconds = min(limits.watch_seconds, limits.first_byte_seconds) / _LOOKS_PER_WATCH
        while not self._done.wait(look_seconds):
            now, received = clock(), self._progress.received_bytes
            if received == before:
                if now - started >= limits.first_byte_seconds:
                    self._give_up(f"no byte in {limits.first_byte_seconds:g} s")
                marks = deque([(now, received)])
                continue
            marks.append((now, received))
            while len(marks) > 1 and marks[1][0] <= now - limits.watch_seconds:
                marks.popleft()
            seconds, came = now - marks[0][0], received - marks[0][1]
            if seconds >= limits.watch_seconds and came < limits.min_bytes_per_second * seconds:
                self._give_up(f"{came} bytes in {seconds:.3g} s: the connection stalled")

    def _give_up(self, reason: str) -> None:
        with self._lock:
            if self._done.is_set():
                return
            self._given_up = True
            self._error = self._broken(reason)
            self._done.set()

    def _receive(self, sink: Sink) -> None:
        error: BaseException | None = None
        try:
            with BACKGROUND.piece():
                self._copy(sink)
        except (QuarkError, SinkError) as failure:
            error = failure
        except OSError as failure:
            error = self._broken(f"{type(failure).__name__}: {failure}")
        except BaseException as failure:  # noqa: BLE001 - raised again by the waiting thread
            error = failure
        with self._lock:
            if not self._given_up:
                self._error = error
            self._done.set()

    def _copy(self, sink: Sink) -> None:
        position = self._start + self._progress.received_bytes
        whole = self._end == self._info.size_bytes
        body = self._store.get(
            self._info.key,
            start=position,
            end=None if whole else self._end,
            if_etag=self._info.etag,
        )
        try:
            self._check_version(body.info)
            self._progress.stored_crc32c = body.info.crc32c
            for piece in body:
                BACKGROUND.check()
                if not self._keep(sink, piece):
                    return
        finally:
            body.close()
        if self._start + self._progress.received_bytes < self._end:
            raise self._broken("the body ended early")

    def _keep(self, sink: Sink, piece: bytes) -> bool:
        with self._lock:
            if self._given_up:
                return False
            offset = self._progress.received_bytes
            if self._start + offset + len(piece) > self._end:
                raise self._broken("more bytes came than were asked for", restart=True)
            try:
                sink.write(offset, piece)
            except OSError as error:
                raise SinkError(str(error)) from error
            self._progress.add(piece)
            return True

    def _check_version(self, found: ObjectInfo) -> None:
        listed, progress = self._info, self._progress
        if found.size_bytes == listed.size_bytes:
            if not (listed.etag and found.etag) or listed.etag == found.etag:
                return
            whole = (self._start, self._end) == (0, listed.size_bytes)
            fresh = progress.md5 is not None or progress.received_bytes == 0
            if whole and fresh and is_md5(listed.etag):
                # Some servers list one kind of etag and answer with another: the bytes decide.
                progress.prove_by_md5(found)
                return
        raise replaced_error(self._store.endpoint_id, listed, found)

    def _broken(self, reason: str, *, restart: bool = False) -> StoreError:
        return StoreError(
            reason,
            key=self._info.key,
            transient=True,
            restart=restart,
        )


def is_md5(etag: str | None) -> bool:
    """Tell whether an etag looks like an MD5."""
    return etag is not None and _MD5.fullmatch(etag) is not None


def replaced_error(store: str, listed: ObjectInfo, found: ObjectInfo) -> ObjectReplacedError:
    """Return the error of an object that is another version than the listed one."""
    return ObjectReplacedError(
        f"{store}/{listed.key} is no longer the object that was listed: "
        f"{found.size_bytes} bytes, version {found.etag}; listed were "
        f"{listed.size_bytes}, version {listed.etag}",
        hint="List again; somebody wrote it in the meantime.",
        key=listed.key,
    )
