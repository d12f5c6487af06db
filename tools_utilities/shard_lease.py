"""One worker's side of one shard's claim: the protocol of `docs/sharding.md`, as a state machine.

IDLE → (claim) → HOLD → (complete) → DONE, or LOST. Every write is a conditional put on the version
last seen. Whatever the store answers but a plain success means *unknown*: the record is read again
and decides (an SDK may retry a put whose first reply was lost and report 412 for its own success).
Leases are judged on this process's monotonic clock, from the moment it first saw a version: no two
clocks are ever compared. A worker that lost a shard discards its output.

Cost: a claim is one GET and one PUT, a renewal one PUT. Not thread-safe: `ShardHold` adds the lock.
"""

import random
import time
from collections.abc import Callable
from enum import Enum

import msgspec

from tools_utilities.claim_record import ClaimRecord, decode_record, encode_record
from tools_utilities.errors import (
    ConditionFailedError,
    DamagedClaimError,
    ObjectNotFoundError,
    StoreError,
)
from tools_utilities.object_store import ObjectStore, read_object
from tools_utilities.patience import PATIENCE_SECONDS, patiently

EXPIRY_FACTOR = 1.25
"""A lease has run out after this many lease times unchanged: room for a clock rate error of 25 %."""
DANGER_FACTOR = 0.75
"""The holder stops working this far into an unrenewed lease, before anyone may take it over."""


class Phase(Enum):
    """Where a worker stands with a shard."""

    IDLE = "idle"
    HOLD = "hold"
    DONE = "done"
    LOST = "lost"


_AFTER = {
    "claim": Phase.HOLD,
    "renew": Phase.HOLD,
    "complete": Phase.DONE,
    "release": Phase.IDLE,
    "reset": Phase.IDLE,
}


class Version(msgspec.Struct, frozen=True):
    """A record as read: None stands for an absent object."""

    record: ClaimRecord | None
    etag: str | None


class Clock(msgspec.Struct, frozen=True):
    """Time as the protocol sees it; replaced by a virtual clock in simulation."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    jitter: Callable[[], float] = random.random


class ShardLease:
    """One worker's view of one shard; `owner` must be new at each process start."""

    def __init__(
        self,
        store: ObjectStore,
        key: str,
        owner: str,
        *,
        worker: str = "",
        lease_seconds: float = 30.0,
        clock: Clock | None = None,
    ) -> None:
        self.key = key
        self.owner = owner
        self.phase = Phase.IDLE
        self.version = Version(None, None)
        self.damage: DamagedClaimError | None = None
        """Why the record could not be read when it was last looked at."""
        self._damaged_etag: str | None = None
        self._store = store
        self._worker = worker
        self._lease_seconds = lease_seconds
        self._clock = clock or Clock()
        self._first_seen = self._clock.now()
        self._good_sent = self._clock.now()

    @property
    def record(self) -> ClaimRecord | None:
        """The record last seen."""
        return self.version.record

    def look(self) -> ClaimRecord | None:
        """Read the record and return it; keeps watch over how long a version stands unchanged.

        Raises:
            DamagedClaimError: it is none. The shard is then neither free nor leased nor done.
        """
        try:
            seen = self._read_patiently(self._clock.now() + PATIENCE_SECONDS)
        except DamagedClaimError:
            self._see(Version(None, None))  # what was known of it holds no more
            raise
        self._see(seen)
        return self.version.record

    def claimable(self) -> bool:
        """Say whether the version last looked at may be claimed now."""
        record = self.version.record
        if self.damage is not None:
            return False
        if record is None or record.state == "free":
            return True
        if record.state == "done":
            return False
        if record.owner == self.owner:
            return True
        return self.seconds_to_expiry <= 0

    @property
    def held_by_other(self) -> bool:
        """Whether the version last seen is another worker's lease, run out or not."""
        record = self.version.record
        return record is not None and record.state == "leased" and record.owner != self.owner

    @property
    def seconds_to_expiry(self) -> float:
        """How much longer the version last seen must stand unchanged for its lease to have run out."""
        lease_seconds = self.version.record.lease_seconds if self.version.record else 0.0
        return EXPIRY_FACTOR * lease_seconds - (self._clock.now() - self._first_seen)

    def try_claim(self) -> bool:
        """Look, and claim the shard if it is free or its lease has run out."""
        self.look()
        return self.claim_seen()

    def claim_seen(self) -> bool:
        """Claim the shard as it was last seen (if never: as absent); False if it changed since."""
        self.phase = Phase.IDLE
        if not self.claimable():
            return False
        before = self.version.record
        crashed = before is not None and before.state == "leased" and before.owner != self.owner
        error = before.last_error if before else None
        if before is not None and crashed:
            error = f"{before.worker or before.owner} ended without a word (claim {before.gen})"
        claimed = ClaimRecord(
            gen=(before.gen if before else 0) + 1,
            owner=self.owner,
            state="leased",
            seq=0,
            lease_seconds=self._lease_seconds,
            worker=self._worker,
            attempts=(before.attempts if before else 0) + 1,
            crashes=(before.crashes if before else 0) + crashed,
            last_error=error,
        )
        return self._write("claim", claimed) is Phase.HOLD

    def adopt(self, gen: int) -> bool:
        """Hold a claim that this owner made earlier (by ticket); False when it is no longer its own."""
        record = self.look()
        if record is None or record.owner != self.owner or record.gen != gen:
            self.phase = Phase.LOST
        else:
            self.phase = {"leased": Phase.HOLD, "done": Phase.DONE, "free": Phase.LOST}[
                record.state
            ]
        self._good_sent = self._clock.now()
        return self.phase is not Phase.LOST

    def renew(self) -> bool:
        """Prolong the lease; False when the shard is lost (or already done)."""
        return self._write("renew", self._next(state="leased")) is Phase.HOLD

    def complete(
        self, output: str | None = None, num_samples: int | None = None, checksum: str | None = None
    ) -> bool:
        """Commit the shard; the output must be complete already. False when it was lost."""
        if self.phase is Phase.DONE:
            return True
        done = msgspec.structs.replace(
            self._next(state="done"), output=output, num_samples=num_samples, checksum=checksum
        )
        return self._write("complete", done) is Phase.DONE

    def release(self, error: str | None = None, *, crashes: int = 0) -> None:
        """Give the shard up for others; one way: this claim is never worked on again.

        Who can say so has not crashed: their count begins anew, unless it is given.
        """
        freed = msgspec.structs.replace(self._next(state="free"), last_error=error, crashes=crashes)
        self._write("release", freed)

    def reset(self, *, force: bool = False, beyond: int = 1) -> bool:
        """Set the shard free, as its operator; False when it changed in the meantime.

        A done shard is left alone unless `force`, the one exception to "done is final". So is one whose
        record is damaged, as it may have been done; `beyond` is a generation that no takeover reaches.
        """
        try:
            before = self.look()
        except DamagedClaimError:
            if not force:
                raise
            return self._replace_damaged(beyond)
        if before is None or (before.state == "done" and not force):
            return before is None
        freed = ClaimRecord(
            gen=before.gen + 1,
            owner=self.owner,
            state="free",
            seq=0,
            lease_seconds=before.lease_seconds,
            attempts=before.attempts,
            last_error=before.last_error,
        )
        return self._write("reset", freed) is Phase.IDLE

    def _replace_damaged(self, gen: int) -> bool:
        """Write a free record on what cannot be read: whoever holds the shard finds itself robbed."""
        freed = ClaimRecord(
            gen=gen,
            owner=self.owner,
            state="free",
            seq=0,
            lease_seconds=self._lease_seconds,
            attempts=0,
            last_error="its claim record was damaged, and was reset",
        )
        self.version = Version(None, self._damaged_etag)
        return self._write("reset", freed) is Phase.IDLE

    @property
    def age_seconds(self) -> float:
        """How long ago the last good renewal (or the claim) was sent."""
        return self._clock.now() - self._good_sent

    @property
    def age(self) -> float:
        """The same in lease times."""
        return self.age_seconds / self._lease_seconds

    def in_danger(self) -> bool:
        """Say whether the lease is so old that work must stop until a renewal succeeds."""
        return self.age >= DANGER_FACTOR

    def pause(self, leases: float) -> None:
        """Sleep for a part of the lease."""
        self._clock.sleep(leases * self._lease_seconds)

    def _next(self, state: str) -> ClaimRecord:
        record = self.version.record
        if self.phase is not Phase.HOLD or record is None:
            raise RuntimeError(f"{self.key}: {self.phase.value}, not held")
        return msgspec.structs.replace(record, state=state, seq=record.seq + 1)

    def _write(self, operation: str, new: ClaimRecord) -> Phase:
        """Put `new` on the version last seen, and settle what came of it."""
        first_sent = self._clock.now()
        give_up = first_sent + max(self._lease_seconds, 10.0)
        pause = 0.05
        while True:
            sent = self._clock.now()
            try:
                etag = self._put(new)
            except (ConditionFailedError, StoreError):
                settled = self._settle(operation, new, first_sent, give_up)
            else:
                settled = self._landed(operation, Version(new, etag), sent)
            if isinstance(settled, Phase):
                return settled
            if self._clock.now() > give_up:
                self.phase = Phase.LOST
                raise StoreError(
                    f"{self.key}: the store keeps refusing to {operation} the claim",
                    hint="Check the store, then run again: the record says who holds the shard.",
                    key=self.key,
                )
            self._clock.sleep(pause * (0.5 + self._clock.jitter()))
            pause = min(pause * 2, 2.0)
            if settled != new:
                new, first_sent = settled, self._clock.now()

    def _settle(
        self, operation: str, new: ClaimRecord, first_sent: float, give_up: float
    ) -> Phase | ClaimRecord:
        """Read the record after an unknown outcome; return where that leaves us, or what to put next.

        `first_sent` is when these very bytes were first sent: if they landed, nobody saw them earlier.
        """
        known = self.version
        try:
            current = self._read_patiently(give_up)
        except (StoreError, DamagedClaimError):
            self.phase = Phase.LOST
            raise
        record = current.record
        ours = record is not None and record.owner == self.owner and record.gen == new.gen
        if ours and record is not None and record.state == "done":
            return self._landed("complete", current, first_sent)
        if record == new:
            return self._landed(operation, current, first_sent)
        if ours and record is not None and record.state == "leased":
            if operation == "claim":
                return self._landed("claim", current, first_sent)
            self._see(current)
            self.phase = Phase.HOLD
            return msgspec.structs.replace(new, seq=record.seq + 1)
        if operation != "release" and current.etag == known.etag:
            return new
        self._see(current)
        self.phase = Phase.IDLE if operation == "release" else Phase.LOST
        return self.phase

    def _see(self, version: Version) -> None:
        """Take over what was read; a version is watched from when it was first seen."""
        if version.etag != self.version.etag:
            self._first_seen = self._clock.now()
        self.version = version

    def _landed(self, operation: str, version: Version, sent: float) -> Phase:
        self.version, self.damage = version, None
        self._good_sent = sent
        self._first_seen = self._clock.now()
        self.phase = _AFTER[operation]
        return self.phase

    def _put(self, new: ClaimRecord) -> str | None:
        data = encode_record(new)
        if self.version.etag is None:
            return self._store.put_if_absent(self.key, data).etag
        return self._store.put_if_match(self.key, data, self.version.etag).etag

    def _read(self) -> Version:
        for is_last in (False, True):
            self.damage = None
            try:
                data, info = read_object(self._store, self.key)
            except ObjectNotFoundError:
                break
            try:
                return Version(decode_record(self.key, data), info.etag)
            except DamagedClaimError as error:
                self.damage, self._damaged_etag = error, info.etag
                if is_last:  # it was no accident of the way here
                    raise
        return Version(None, None)

    def _read_patiently(self, give_up: float) -> Version:
        clock = self._clock
        seconds = give_up - clock.now()
        return patiently(
            self._read, seconds=seconds, now=clock.now, sleep=clock.sleep, jitter=clock.jitter
        )
