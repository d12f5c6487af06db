"""Finds a shard that can be claimed, with few requests and out of other workers' way.

A pass goes over the shards that are not known to be done, in order, and is carried on from one claim
to the next. Where it pays, one listing tells which records exist and which are as they were last
seen: a shard without a record comes first and is claimed by one put, one that somebody goes on holding
costs nothing, and records that nobody has read here are read several at a time, last. A lost race
moves the pass to a random place, so that workers that start together part at once; when such races have
cost what a listing does, a new one shows what the others took meanwhile. Which of the unread records are
done, workers tell each other (`claim_notes.py`): requests a shard do not grow with their number.
Done is final: a done shard is not looked at again (what an operator resets by force is found by the
next process).
"""

import logging
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

from tools_utilities.claim_notes import DoneNotes
from tools_utilities.errors import AccessError, DamagedClaimError, StoreError
from tools_utilities.manifest import Shard
from tools_utilities.object_store import ObjectStore
from tools_utilities.shard_lease import Phase, ShardLease

FEW_SHARDS = 8
KEYS_A_PAGE = 1_000
LOOKS = 8
"""Records read at a time."""
GETS_A_PAGE = 4
"""One page of a listing costs about as much as so many small gets."""

logger = logging.getLogger(__name__)


def claim_versions(store: ObjectStore, prefix: str) -> dict[str, str | None]:
    """Return key → version of the claim records below a prefix, by one listing."""
    found = store.list(f"{prefix}shard_")
    return {info.key: info.etag for info in found if info.key.endswith("/claim.json")}


def listing_pays(shards: Sequence[Shard], num_wanted: int) -> bool:
    """Say whether listing the dataset costs less than reading `num_wanted` records."""
    num_keys = sum(2 + len(shard.chunks) for shard in shards)
    pages = 1 + num_keys // KEYS_A_PAGE
    return num_wanted > FEW_SHARDS and pages * GETS_A_PAGE <= num_wanted


class ShardSearch:
    """One worker's way through the shards."""

    def __init__(
        self,
        shards: Sequence[Shard],
        lease_of: Callable[[int], ShardLease],
        *,
        versions: Callable[[], Mapping[str, str | None]],
        before_claim: Callable[[int], None],
        jitter: Callable[[], float],
        now: Callable[[], float],
        notes: DoneNotes,
    ) -> None:
        """Use `versions` for a listing; `before_claim` runs before each put that may claim."""
        self._all = shards
        self._shards = {shard.shard_id: shard for shard in shards if shard.num_samples > 0}
        self._lease_of = lease_of
        self._versions = versions
        self._before_claim = before_claim
        self._jitter = jitter
        self._now = now
        self._notes = notes
        self._told: set[str] = set()
        """Keys of the damaged records that were told of."""
        self._noted: set[int] = set()
        """Shards that are done by the notes; nobody read their records here."""
        self._num_batches = 0
        """Of records read in this pass."""
        self._list_seconds = self._lost_seconds = 0.0
        self._fresh: deque[int] = deque()
        """Shards without a record, as the listing has it."""
        self._left: deque[int] = deque()
        self._read: set[int] = set()
        """Those of them whose records were read in this pass."""
        self._listed: Mapping[str, str | None] | None = None

    def claim(self, preferred: int | None, skip: Container[int] = ()) -> Shard | None:
        """Claim the preferred shard or the next that can be had; None after a whole pass in vain."""
        # An empty shard has no work in it: nobody is sent there.
        if preferred in self._shards and preferred not in skip and self._may_try(preferred):
            lease = self._lease_of(preferred)
            if self._look(lease) and self._claim(preferred, lease):
                return self._shards[preferred]
        found = self._walk(skip)
        if found is None:
            self._begin()
            found = self._walk(skip)
        return found

    def is_done(self, shard_id: int) -> bool:
        """Say whether the shard was done when it was last heard of; requests nothing."""
        record = self._lease_of(shard_id).record
        return shard_id in self._noted or (record is not None and record.state == "done")

    def forget(self, shard_id: int) -> None:
        """Take back that a shard is done: its operator has set it free."""
        self._noted.discard(shard_id)

    def is_open(self, shard_id: int) -> bool:
        """Say whether the shard was neither done nor damaged when it was last heard of."""
        return not self.is_done(shard_id) and self.damage(shard_id) is None

    def damage(self, shard_id: int) -> DamagedClaimError | None:
        """Return why the shard's record could not be read when it was last looked at, or None."""
        return self._lease_of(shard_id).damage

    def look_at(self, leases: Sequence[ShardLease]) -> None:
        """Read several records at once."""
        with ThreadPoolExecutor(len(leases)) as pool:
            list(pool.map(self._look, leases))

    def _look(self, lease: ShardLease) -> bool:
        """Read a record; False where it is damaged, which stops this shard alone."""
        try:
            lease.look()
        except DamagedClaimError as error:
            self._tell(lease, error)
            return False
        return True

    def _tell(self, lease: ShardLease, error: DamagedClaimError) -> None:
        if lease.key not in self._told:
            self._told.add(lease.key)
            logger.warning("%s. The other shards go on. %s", error, error.hint)

    def _begin(self) -> None:
        wanted = [shard_id for shard_id in self._shards if self._may_try(shard_id)]
        self._listed = None
        self._read.clear()
        self._num_batches = 0
        if listing_pays(self._all, len(wanted)):
            self._list()
        self._fresh = deque(shard_id for shard_id in wanted if self._is_fresh(shard_id))
        fresh = set(self._fresh)
        self._left = deque(shard_id for shard_id in wanted if shard_id not in fresh)

    def _list(self) -> None:
        begun = self._now()
        try:
            self._listed = self._versions()
            self._list_seconds, self._lost_seconds = self._now() - begun, 0.0
        except (StoreError, AccessError) as error:
            logger.warning("claim records are read one by one: %s", error)

    def _is_fresh(self, shard_id: int) -> bool:
        lease, listed = self._lease_of(shard_id), self._listed
        return listed is not None and lease.key not in listed and lease.record is None

    def _walk(self, skip: Container[int]) -> Shard | None:
        while self._fresh or self._left:
            fresh = bool(self._fresh)
            shard_id = (self._fresh if fresh else self._left).popleft()
            if shard_id in skip or not self._may_try(shard_id):
                continue
            lease = self._lease_of(shard_id)
            # The put says if a record was made since the listing.
            if not fresh and not self._looked(shard_id, lease, skip):
                continue
            begun = self._now()
            if self._claim(shard_id, lease):
                return self._shards[shard_id]
            self._lost_seconds += self._now() - begun
            # Some stores list in no time, others in that of many lost races: never pay twice.
            if fresh and self._lost_seconds >= self._list_seconds:
                self._begin()
            for left in (self._fresh, self._left):
                left.rotate(-int(self._jitter() * len(left)))
        return None

    def _may_try(self, shard_id: int) -> bool:
        return not self.is_done(shard_id) and self._lease_of(shard_id).phase is not Phase.HOLD

    def _looked(self, shard_id: int, lease: ShardLease, skip: Container[int]) -> bool:
        """Read the record where nothing else tells it; False when it is not to be had."""
        if self._needs_look(shard_id):
            if len(self._unread(skip)) > FEW_SHARDS and self._listed is not None:
                self._hear_of_others([shard_id, *self._left])
            if shard_id in self._noted:
                return False
            waiting = self._unread(skip)
            batch = [shard_id, *waiting[: LOOKS - 1]] if len(waiting) > FEW_SHARDS else [shard_id]
            if len(batch) == 1:
                self._look(lease)
            else:
                self.look_at([self._lease_of(number) for number in batch])
            self._read.update(batch)
        return lease.claimable()

    def _unread(self, skip: Container[int]) -> list[int]:
        """Return the next shards of the pass, a few at most, whose records must be read."""
        numbers = (number for number in self._left if number not in skip)
        return list(islice(filter(self._needs_look, numbers), FEW_SHARDS + 1))

    def _hear_of_others(self, left: Sequence[int]) -> None:
        """Before the first, second, fourth, eighth … batch of a pass: hear what is done, and tell it."""
        self._num_batches += 1
        if self._num_batches & (self._num_batches - 1):
            return
        notes = self._notes.read()
        if any(
            self._version(number) != notes.get(number, self._version(number)) for number in left
        ):
            self._list()  # done since the listing
        for number in left:
            if number in notes and self._version(number) == notes[number]:
                self._noted.add(number)
        known = {
            number: self._lease_of(number).version.etag
            for number in self._shards
            if number not in self._noted and self.is_done(number)
        }
        new = {
            number: etag
            for number, etag in known.items()
            if etag is not None and notes.get(number) != etag
        }
        if len(new) >= FEW_SHARDS:
            self._notes.add(new)

    def _version(self, shard_id: int) -> str | None:
        return self._listed.get(self._lease_of(shard_id).key) if self._listed else None

    def _needs_look(self, shard_id: int) -> bool:
        lease, listed = self._lease_of(shard_id), self._listed
        if shard_id in self._read or not self._may_try(shard_id):
            return False
        known = listed is not None and lease.record and listed.get(lease.key) == lease.version.etag
        return not (known and not lease.claimable())

    def _claim(self, shard_id: int, lease: ShardLease) -> bool:
        if not lease.claimable():
            return False
        self._before_claim(shard_id)
        try:
            return lease.claim_seen()
        except DamagedClaimError as error:  # made, or damaged, since the listing
            self._tell(lease, error)
            return False
