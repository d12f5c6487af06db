"""Holds a claimed shard while it is worked on: renews in the background, and says when to stop.

    with ShardHold(lease, renew_seconds=10) as hold:
        for sample in hold.each(samples):   # or hold.check(): ends with ClaimError when it must
            ...
        hold.complete(output=..., num_samples=...)

Once 0.75 of the lease has gone by without a good renewal, `check` lets nothing through: it waits for
the renewal that the background is trying, and raises when the lease has run out or is lost.

Leaving without `complete` gives the shard up, with the error that ended the work.
"""

import logging
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self, TypeVar

from tools_utilities.background import BACKGROUND
from tools_utilities.claim_record import ClaimRecord
from tools_utilities.errors import (
    ClaimError,
    DamagedClaimError,
    QuarkError,
    RunStoppedError,
    ShardCrashError,
    said_by,
)
from tools_utilities.shard_lease import DANGER_FACTOR, Phase, ShardLease

logger = logging.getLogger(__name__)

EXIT_SECONDS = 1.0
"""How long leaving waits for a renewal in flight."""
GIVE_UP_AGE = 1.0
"""A lease as old as this (in leases) ends the work, also where nobody took the shard yet."""
LOOK_AGAIN = 0.01
"""How often (in leases) work that waits looks for a good renewal."""
_Item = TypeVar("_Item")


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
                self._lease.release(self._reason(error), crashes=self._crashes(error))
        except QuarkError as failure:
            # The lease runs out by itself; the error that ended the work matters more.
            logger.warning("%s: could not give the claim up: %s", self._lease.key, failure)
        finally:
            self._lock.release()

    def _reason(self, error: BaseException | None) -> str | None:
        """Return why the shard is given up; somebody's stopping the worker is no error of the shard."""
        if isinstance(error, KeyboardInterrupt | RunStoppedError):
            return None
        before = self._lease.record.last_error if self._lease.record else None
        return said_by(error) if error else before or "given up"

    def _crashes(self, error: BaseException | None) -> int:
        """Return the count that is left in the record: what was given up for its crashes keeps them."""
        record = self._lease.record
        return record.crashes if record and isinstance(error, ShardCrashError) else 0

    @property
    def record(self) -> ClaimRecord | None:
        """The claim record last seen."""
        return self._lease.record

    @property
    def damage(self) -> DamagedClaimError | None:
        """Why the claim record could not be read when it had to be: nobody can say who holds the shard."""
        return self._lease.damage

    @property
    def lost(self) -> bool:
        """Whether another worker is known to hold the shard (rather than: nobody can say)."""
        return self._lease.phase is Phase.LOST

    def each(self, items: Iterable[_Item]) -> Iterator[_Item]:
        """Yield the items as long as the claim is safe: `check` before each."""
        for item in items:
            self.check()
            yield item

    def check(self) -> None:
        """Return while the claim is safe; in danger wait for a renewal, and raise ClaimError without one.

        What is not done between two calls cannot be stopped: call it at least every tenth of a lease.
        """
        lease = self._lease
        while lease.phase is Phase.HOLD and DANGER_FACTOR <= lease.age < GIVE_UP_AGE:
            lease.pause(LOOK_AGAIN)
        if lease.phase is not Phase.DONE and (lease.phase is not Phase.HOLD or lease.in_danger()):
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
        # The claim may have been made some time ago, and a lost shard's thread ends.
        wait_seconds = max(0.0, self._renew_seconds - self._lease.age_seconds)
        while not self._ended.wait(wait_seconds):
            wait_seconds = self._renew_seconds
            with self._lock:
                if self._ended.is_set() or self._lease.phase is not Phase.HOLD:
                    return
                try:
                    with BACKGROUND.piece():
                        self._lease.renew()
                except QuarkError as error:
                    # `check` stops the work when the lease is in danger.
                    logger.warning("%s: could not renew the claim: %s", self._lease.key, error)
                    wait_seconds = self._renew_seconds / 10
