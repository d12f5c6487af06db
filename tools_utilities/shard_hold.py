"""Holds a claimed shard while it is worked on: renews in the background, and says when to stop.

    with ShardHold(lease) as hold:
        for sample in samples:
            hold.check()                    # raises ClaimError once the lease is in danger or lost
            ...
        hold.complete(output=..., num_samples=...)

Leaving without `complete` gives the shard up, with the error that ended the work.
"""

import logging
import threading
from types import TracebackType
from typing import Self

from tools_utilities.claim_record import ClaimRecord
from tools_utilities.errors import ClaimError, QuarkError
from tools_utilities.shard_lease import Phase, ShardLease

logger = logging.getLogger(__name__)

EXIT_SECONDS = 1.0
"""How long leaving waits for a renewal in flight."""


class ShardHold:
    """A lease kept alive by a thread; the lease must be in HOLD. Its methods may be called from any thread."""

    def __init__(self, lease: ShardLease, *, renew_seconds: float) -> None:
        self._lease = lease
        self._renew_seconds = renew_seconds
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_ended, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        # A renewal that the store does not answer may hold the lock: the lease then runs out by itself.
        if not self._lock.acquire(timeout=EXIT_SECONDS):
            return
        try:
            if self._lease.phase is Phase.HOLD:
                before = self._lease.record.last_error if self._lease.record else None
                reason = f"{type(error).__name__}: {error}" if error else before or "given up"
                self._lease.release(reason)
        except QuarkError as failure:
            # The lease runs out by itself; the error that ended the work matters more.
            logger.warning("%s: could not give the claim up: %s", self._lease.key, failure)
        finally:
            self._lock.release()

    @property
    def record(self) -> ClaimRecord | None:
        """The claim record last seen."""
        return self._lease.record

    @property
    def lost(self) -> bool:
        """Whether another worker is known to hold the shard (rather than: nobody can say)."""
        return self._lease.phase is Phase.LOST

    def check(self) -> None:
        """Raise ClaimError when the work must stop: somebody else may soon hold the shard."""
        if self._lease.phase is Phase.LOST or self._lease.in_danger():
            raise ClaimError(
                f"{self._lease.key}: the claim is lost or could not be renewed",
                hint="Its output is discarded; another worker takes the shard.",
                key=self._lease.key,
            )

    def complete(
        self, output: str | None = None, num_samples: int | None = None, checksum: str | None = None
    ) -> None:
        """Commit the shard. Raises ClaimError when it was lost: publish nothing then."""
        with self._lock:
            done = self._lease.phase is Phase.DONE or (
                self._lease.phase is Phase.HOLD
                and self._lease.complete(output, num_samples, checksum)
            )
        if not done:
            raise ClaimError(
                f"{self._lease.key}: another worker holds the shard",
                hint="Its output is discarded; the other worker's counts.",
                key=self._lease.key,
            )

    def _renew_until_ended(self) -> None:
        while not self._ended.wait(self._renew_seconds):
            with self._lock:
                if self._ended.is_set() or self._lease.phase is not Phase.HOLD:
                    return
                try:
                    self._lease.renew()
                except QuarkError as error:
                    # `check` stops the work when the lease is in danger.
                    logger.warning("%s: could not renew the claim: %s", self._lease.key, error)
