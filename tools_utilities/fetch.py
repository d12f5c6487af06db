"""One verified download: tried again where that can help, resumed, checked, its failure explained.

An object is right when its length is, and its checksum: the manifest's or the store's CRC-32C,
else an etag that is an MD5; without any of them it counts as `unverified`. Some stores' etags look
like an MD5 and are not one (encryption with KMS keys). A wrong sum is fetched again, up to four times
in all. The third time the object comes in two pieces: what turns a bit on the way turns another one
then. The same bytes three times are what the store has: an error, or, where only an MD5 speaks against
them and this store never had an etag that was one, taken as unverified. After three such objects the
store's etags are not looked at any more.

Objects from `FetchLimits.parted_from_bytes` on are fetched as several ranges at once, each with
If-Match (`fetch_parts.py`). A store that does not answer ranges as it should is asked for the whole.

Where a response names another etag than the listing did, the object is the listed one only if the
listed etag is the MD5 of all of its bytes; a range of such an object cannot be proven.
"""

import logging
import random
import time
from collections.abc import Callable
from threading import Semaphore
from typing import Literal

import msgspec

from tools_utilities.checksum import decode_crc32c, encode_crc32c
from tools_utilities.errors import (
    AccessError,
    IntegrityError,
    ObjectNotFoundError,
    ObjectReplacedError,
    QuarkError,
    StoreError,
)
from tools_utilities.fetch_attempt import (
    BufferSink,
    FetchAttempt,
    FetchLimits,
    Progress,
    Sink,
    SinkError,
    is_md5,
    replaced_error,
)
from tools_utilities.fetch_parts import PartedDownload, ReadableSink, Span, cut, join
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.stream_statistics import StreamStatistics

_LOGGER = logging.getLogger(__name__)
_PHASE = "get after list"
_MAX_DOWNLOADS = 4
_CUT_DOWNLOAD = 2
"""How many downloads went before the one in two pieces."""
_ENOUGH_OTHER_ETAGS = 3
_MAX_SILENT_HEADS = 2
_SPREAD = 3.0
_SILENT_SHARE = 0.75
_PRECONDITION_FAILED = 412


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """A download that went well."""

    crc32c: int
    """Of the bytes that came, whatever they were checked against."""
    check: Literal["crc32c", "md5", "length"]
    """What the bytes were checked against."""


class Fetcher:
    """Downloads from one store; any number of threads may call it at once."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        limits: FetchLimits | None = None,
        statistics: StreamStatistics | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._store = store
        self._limits = limits or FetchLimits()
        self._statistics = statistics or StreamStatistics()
        self._clock = clock
        self._sleep = sleep
        self._uniform = uniform
        self._md5_etags = False
        """This store's etags have been MD5s."""
        self._num_other_etags = 0
        """Objects whose etags looked like an MD5 and were not one."""
        self._silent_heads = 0
        self._helpers = Semaphore(self._limits.part_threads)
        self._ranges_work = True

    def fetch(self, info: ObjectInfo, sink: Sink) -> Fetched:
        """Download a whole object into `sink`, which may be written from its start twice.

        Raises:
            IntegrityError: the bytes differ from the checksum, however they came.
            ObjectNotFoundError: it is gone; asked for once.
            ObjectReplacedError: it is another version now.
            AccessError: permission, credentials, region, clock; asked for once.
            StoreError: given up; detail: key, attempts, received_bytes, expected_bytes, phase.
            OSError: the sink's own error.
        """
        wrong: list[Progress] = []
        while True:
            spans = self._spans(info, len(wrong))
            progress = self._receive_parts(info, sink, spans) if len(spans) > 1 else None
            progress = progress or self._receive(info, (0, info.size_bytes), sink)
            self._check_version(info, progress)
            self._ask_checksum(info, progress)
            check = self._check(info, progress)
            if check == "wrong" and self._is_no_md5(info, progress, wrong):
                check = "length"
            if check != "wrong":
                self._statistics.add(unverified=int(check == "length"))
                return Fetched(crc32c=progress.crc32c, check=check)
            wrong.append(progress)
            if len(wrong) >= _MAX_DOWNLOADS or self._is_the_same(info, wrong):
                raise self._corrupt(info, progress, len(wrong))
            _LOGGER.warning("%s: wrong checksum; fetching it again", self._name(info))
            self._statistics.add(retries=1)

    def fetch_bytes(self, info: ObjectInfo) -> tuple[memoryview, Fetched]:
        """Download a whole object into memory."""
        sink = BufferSink(info.size_bytes)
        fetched = self.fetch(info, sink)
        return sink.read(0, info.size_bytes), fetched

    def fetch_range(self, info: ObjectInfo, start: int, end: int) -> bytes:
        """Return bytes [start, end), clipped to the object; only their number can be checked."""
        return bytes(self.fetch_view(info, start, end))

    def fetch_view(self, info: ObjectInfo, start: int, end: int) -> memoryview:
        """Return the same without a copy."""
        end = min(end, info.size_bytes)
        if start >= end:
            return memoryview(b"")
        sink = BufferSink(end - start)
        self._receive(info, (start, end), sink)
        return sink.read(0, end - start)

    # Several ranges at once.

    def _spans(self, info: ObjectInfo, num_wrong: int) -> list[Span]:
        """Return the parts of the next download."""
        third = info.size_bytes // 3
        if num_wrong == _CUT_DOWNLOAD and info.size_bytes > 1:
            return [(0, max(1, third)), (max(1, third), info.size_bytes)]
        if num_wrong or not self._ranges_work:
            return [(0, info.size_bytes)]
        return cut(info, self._limits)

    def _receive_parts(self, info: ObjectInfo, sink: Sink, spans: list[Span]) -> Progress | None:
        """Return what came in parts; None: the whole is to be asked for in one."""
        md5 = self._needs_md5(info)
        if md5 and not isinstance(sink, ReadableSink):
            return None

        def receive(span: Span, part: Sink) -> Progress:
            return self._receive(info, span, part)

        try:
            parts = PartedDownload(spans, sink, receive).run(self._helpers)
        except (StoreError, ObjectReplacedError) as error:
            if _is_transient(error) and not error.detail.get("restart"):
                raise
            # No ranges there, or an etag of another kind: the whole can show what is true.
            _LOGGER.info("%s: fetching it in one: %s", self._name(info), error)
            # One that was replaced says nothing of the store.
            self._ranges_work = error.detail.get("status") == _PRECONDITION_FAILED
            return None
        return join(spans, parts, sink, md5=md5)

    # One range, over several attempts.

    def _receive(self, info: ObjectInfo, span: tuple[int, int], sink: Sink) -> Progress:
        progress = self._new_progress(info, span)
        attempts = silent = 0
        first_failure: float | None = None
        pause = self._limits.first_pause_seconds
        while progress.received_bytes < span[1] - span[0]:
            attempts += 1
            started, resuming = self._clock(), progress.received_bytes > 0
            limits = self._limits.after_silence(silent)
            try:
                self._attempt(info, span, progress, sink, limits)
            except QuarkError as error:
                # A server that knows no ranges: the whole is to be had nevertheless.
                refused = resuming and type(error) is StoreError and not _is_transient(error)
                now = self._clock()
                first_failure = now if first_failure is None else first_failure
                # A store's own time limit may strike before the watch does.
                waited_long = now - started >= _SILENT_SHARE * limits.first_byte_seconds
                silent += waited_long and progress.received_bytes == 0
                late = now - first_failure >= self._limits.retry_seconds
                spent = attempts >= self._limits.max_attempts or late
                # More than a part was asked for: a server that sends the whole will do so again.
                too_much = bool(error.detail.get("restart")) and span != (0, info.size_bytes)
                if (
                    spent
                    or too_much
                    or silent >= self._limits.max_silent_attempts
                    or not (refused or _is_transient(error))
                ):
                    raise self._failed(info, span, progress, attempts, error) from error
                if refused or error.detail.get("restart"):
                    progress = self._new_progress(info, span)
                # A time-out was a pause already.
                pause = self._pause(
                    self._limits.first_pause_seconds if waited_long else pause, error
                )
        return progress

    def _attempt(
        self, info: ObjectInfo, span: Span, progress: Progress, sink: Sink, limits: FetchLimits
    ) -> None:
        started, before = self._clock(), progress.received_bytes
        self._statistics.add(requests=1)
        try:
            FetchAttempt(self._store, info, span, progress).run(sink, limits, self._clock)
        except SinkError as error:
            raise error.__cause__ or error from None
        finally:
            self._statistics.add(bytes_from_store=progress.received_bytes - before)
            self._statistics.waited("store", self._clock() - started)

    def _pause(self, previous: float, error: QuarkError) -> float:
        """Sleep between two attempts; decorrelated jitter, so that clients spread out."""
        first, longest = self._limits.first_pause_seconds, self._limits.longest_pause_seconds
        pause = min(longest, self._uniform(first, max(first, _SPREAD * previous)))
        _LOGGER.info("trying again in %.2f s: %s", pause, error)
        self._statistics.add(retries=1)
        self._statistics.waited("retry", pause)
        self._sleep(pause)
        return pause

    # Checks.

    def _new_progress(self, info: ObjectInfo, span: tuple[int, int]) -> Progress:
        return Progress(with_md5=span == (0, info.size_bytes) and self._needs_md5(info))

    def _needs_md5(self, info: ObjectInfo) -> bool:
        known_others = not self._md5_etags and self._num_other_etags >= _ENOUGH_OTHER_ETAGS
        return info.crc32c is None and is_md5(info.etag) and not known_others

    def _check_version(self, info: ObjectInfo, progress: Progress) -> None:
        found, md5 = progress.other_version, progress.md5
        if found is not None and (md5 is None or md5.hexdigest() != info.etag):
            error = replaced_error(self._store.endpoint_id, info, found)
            raise self._failed(info, (0, info.size_bytes), progress, 1, error)

    def _ask_checksum(self, info: ObjectInfo, progress: Progress) -> None:
        """Ask the store for the checksum of an object that would be unverified otherwise.

        One more request, so a store that has none to tell is soon left alone.
        """
        known = info.crc32c or progress.stored_crc32c or progress.md5
        if known is not None or self._silent_heads >= _MAX_SILENT_HEADS:
            return
        try:
            found = self._store.head(info.key)
        except QuarkError as error:
            _LOGGER.debug("%s: no checksum: %s", self._name(info), error)
            found = None
        if found is not None and found.crc32c is not None and found.etag == info.etag:
            progress.stored_crc32c = found.crc32c
            self._silent_heads = 0
        else:
            self._silent_heads += 1

    def _check(
        self, info: ObjectInfo, progress: Progress
    ) -> Literal["crc32c", "md5", "length", "wrong"]:
        written = info.crc32c or progress.stored_crc32c
        expected = decode_crc32c(written) if written else None
        if expected is not None:
            return "crc32c" if expected == progress.crc32c else "wrong"
        if progress.md5 is None:
            return "length"
        if progress.md5.hexdigest() != info.etag:
            return "wrong"
        self._md5_etags = True
        return "md5"

    def _is_no_md5(self, info: ObjectInfo, progress: Progress, earlier: list[Progress]) -> bool:
        by_md5 = (info.crc32c or progress.stored_crc32c) is None
        if self._md5_etags or not by_md5 or not self._is_the_same(info, [*earlier, progress]):
            return False
        self._num_other_etags += 1
        _LOGGER.warning(
            "%s: its etag looks like an MD5 and is not one; its content cannot be verified",
            self._name(info),
        )
        return True

    def _is_the_same(self, info: ObjectInfo, downloads: list[Progress]) -> bool:
        """Say whether the way cannot be to blame: other ranges brought the same bytes."""
        same = len({download.crc32c for download in downloads}) == 1
        return same and len(downloads) == _CUT_DOWNLOAD + 1 and info.size_bytes > 1

    # Failures.

    def _name(self, info: ObjectInfo) -> str:
        return f"{self._store.endpoint_id}/{info.key}"

    def _corrupt(self, info: ObjectInfo, progress: Progress, downloads: int) -> IntegrityError:
        written = info.crc32c or progress.stored_crc32c
        got = encode_crc32c(progress.crc32c)
        if written is None and progress.md5 is not None:
            written, got = f"md5 {info.etag}", f"md5 {progress.md5.hexdigest()}"
        return IntegrityError(
            f"{self._name(info)}: the bytes have checksum {got}, promised was {written}; "
            f"downloaded {downloads} times",
            hint="The object is damaged in the store or on the way; upload it again, "
            "or correct the manifest.",
            key=info.key,
            attempts=downloads,
            received_bytes=progress.received_bytes,
            expected_bytes=info.size_bytes,
            phase=_PHASE,
        )

    def _failed(
        self,
        info: ObjectInfo,
        span: tuple[int, int],
        progress: Progress,
        attempts: int,
        error: QuarkError,
    ) -> QuarkError:
        expected = span[1] - span[0]
        detail = {
            **error.detail,
            "key": info.key,
            "attempts": attempts,
            "received_bytes": progress.received_bytes,
            "expected_bytes": expected,
            "phase": _PHASE,
        }
        if isinstance(error, ObjectNotFoundError):
            return ObjectNotFoundError(
                f"{self._name(info)} was listed and is gone (404, {_PHASE})",
                hint="List again, or go on without such objects: on_missing=skip.",
                **{"status": 404, **detail},
            )
        if isinstance(error, StoreError) and _is_transient(error):
            return StoreError(
                f"{self._name(info)}: gave up after {attempts} attempts, "
                f"{progress.received_bytes} of {expected} bytes received ({_PHASE}): {error}",
                hint=error.hint or "The store or the network is in trouble; run again to resume.",
                **detail,
            )
        if isinstance(error, AccessError) and "permission" in error.detail:
            detail["kind"] = "access denied"
        return type(error)(error.message_text, hint=error.hint, **detail)


def _is_transient(error: QuarkError) -> bool:
    return bool(error.detail.get("transient"))
