"""ShardManager: claim, complete, fail, renew and reset shards that many machines share.

    python tools_utilities/scripts/shard_manager.py --dataset_dir D --action claim

No server: each shard has a claim record in the store beside it (`tools_utilities/shard_lease.py`).
As a script: exit code 0 ok, 1 error, 3 nothing to claim, 4 not the owner.
"""

import math
import os
import socket
import sys
import time
from collections.abc import Callable, Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from tools_utilities.claim_display import ShardDisplay
from tools_utilities.claim_notes import DoneNotes
from tools_utilities.claim_probe import probe_conditions
from tools_utilities.claim_record import ClaimRecord, new_owner
from tools_utilities.claim_search import ShardSearch, claim_versions
from tools_utilities.claim_tickets import Ticket, TicketFolder
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.errors import ClaimError, DamagedClaimError, DataNotFoundError, UsageError
from tools_utilities.manifest import Manifest, Shard, load_manifest
from tools_utilities.object_store import ObjectStore, open_store
from tools_utilities.process_record import read_job
from tools_utilities.redaction import guard_process
from tools_utilities.shard_hold import ShardHold
from tools_utilities.shard_lease import Clock, Phase, ShardLease
from tools_utilities.shard_status import (
    DAMAGED,
    STATUS_WORDS,
    damaged_row,
    readable,
    shown_metadata,
    status_row,
)

ONE_DAY_SECONDS = 86_400.0
POLL_SECONDS = 5.0


class ShardClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed shard; `claim["shard_id"]` and `claim["chunks"]` work too."""

    shard_id: int
    chunks: tuple[str, ...]
    """Full URIs of its files, in order."""
    num_samples: int
    gen: int
    owner: str

    def __getitem__(self, name: str) -> Any:
        if name not in self.__struct_fields__:
            raise KeyError(name)
        return getattr(self, name)


class ShardManager:
    """One worker's access to the claims of a sharded dataset. Not thread-safe.

    `dataset_dir` is a folder or a store URI holding `master_metadata.json`. Leases default to a day,
    for claims that another process completes; loops that renew pass a short one.
    """

    def __init__(
        self,
        dataset_dir: str | Path,
        worker_id: str | None = None,
        *,
        lease_seconds: float = ONE_DAY_SECONDS,
        state_dir: Path | None = None,
        store: ObjectStore | None = None,
        clock: Clock | None = None,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        if not 0 < lease_seconds < math.inf:  # such a record would stop every other worker
            raise UsageError(
                f"lease={lease_seconds}: a number of seconds, more than 0",
                hint="A day is 86400.",
            )
        spec, self._prefix = locate_dataset(str(dataset_dir))
        self.store = store or open_store(spec)
        self.worker_id = worker_id or socket.gethostname()
        self._probed = False
        self._elsewhere: str | None = None
        """Where the data of these claims is, when a batch job keeps them with its results."""
        self.owner = new_owner(socket.gethostname(), os.getpid(), uuid4())
        self._lease_seconds = lease_seconds
        self._tickets = TicketFolder(state_dir or Path.home() / ".local/state/quark/claims")
        self._clock = clock or Clock()
        self._wall_clock = wall_clock
        self._leases: dict[int, ShardLease] = {}
        self._in_hold: dict[int, ShardLease] = {}
        """Given to a `hold`, whose thread uses it until it is done."""
        self._manifest: Manifest | None = None
        self._search: ShardSearch | None = None
        self._display = ShardDisplay(
            self.store,
            self._shown,
            lambda shard_id: self._fresh_lease(shard_id).look(),
            self._wall_clock,
        )

    @property
    def manifest(self) -> Manifest:
        """What the dataset says of itself; read once."""
        if self._manifest is None:
            self._manifest = load_manifest(self.store, self._prefix, patient=True)
        if self._manifest is None:
            self._manifest = self._of_job()
        if self._manifest is None:
            raise DataNotFoundError(
                f"{self.store.spec.uri}/{self._prefix}: no master_metadata.json",
                hint="Make one with create_sharded_dataset.py, or check --dataset_dir.",
            )
        return self._manifest

    def _of_job(self) -> Manifest | None:
        """Return the shards of a batch job that keeps its claims here and its data elsewhere."""
        found = read_job(self.store, self._prefix)
        self._elsewhere = found.job.dataset if found else None
        return found.job.manifest if found else None

    def use_manifest(self, manifest: Manifest) -> None:
        """Hold the claims of a dataset that lies elsewhere: the record of shard N stays here."""
        self._manifest = manifest
        self._search = None

    def probe(self) -> None:
        """Refuse a store that does not keep its conditions (UsageError); asked once."""
        if not self._probed:
            probe_conditions(self.store, self._prefix, uuid4())
            self._probed = True

    def claim_shard(
        self,
        preferred_shard_id: int | None = None,
        *,
        wait_seconds: float = 0.0,
        poll_seconds: float = POLL_SECONDS,
        skip: Container[int] = (),
    ) -> ShardClaim | None:
        """Claim a shard, the preferred one if it can be had, else the first; None when none can be had.

        Watches for up to `wait_seconds`, so that expired leases can be
        taken: a lease is judged by how long this process has seen it unchanged. Shards in `skip`
        are left to others, and not waited for; what was seen done is not looked at again.

        Raises:
            UsageError: the store does not keep its conditions, so it cannot hold claims.
            DamagedClaimError: what is left are shards whose records cannot be read (`damaged_shards`).
        """
        num_shards = len(self.manifest.shards)
        if self._elsewhere is not None:
            raise UsageError(
                f"{self.store.spec.uri}/{self._prefix} holds the claims of a job on the "
                f"{num_shards} shards of {self._elsewhere}",
                hint="Run the job's own command to work on them.",
            )
        if math.isnan(wait_seconds):
            raise UsageError("wait=nan: a number of seconds")
        self.probe()
        if preferred_shard_id is not None:
            self._shard(preferred_shard_id)
        until = self._clock.now() + wait_seconds
        while True:
            shard = self._searching().claim(preferred_shard_id, skip)
            if shard is not None:
                return self._claimed(shard, self._lease(shard.shard_id))
            if not self.open_shards(skip):
                for error in self.damaged_shards(skip).values():
                    raise error  # None would say that nothing is left to do
                return None
            if (left := until - self._clock.now()) <= 0:
                return None
            self._clock.sleep(min(self.watch_seconds(poll_seconds), left))

    def watch_seconds(self, poll_seconds: float) -> float:
        """Return how long to wait before looking again: a poll, or less where a lease runs out sooner."""
        leases = (lease for lease in self._leases.values() if lease.held_by_other)
        return min([poll_seconds, *(max(lease.seconds_to_expiry, 0.01) for lease in leases)])

    def _searching(self) -> ShardSearch:
        if self._search is None:
            self._search = ShardSearch(
                self.manifest.shards,
                self._lease,
                versions=lambda: claim_versions(self.store, self._prefix),
                before_claim=self._display.prepare,
                jitter=self._clock.jitter,
                now=self._clock.now,
                notes=DoneNotes(self.store, self._prefix),
            )
        return self._search

    def open_shards(self, skip: Container[int] = ()) -> list[int]:
        """Return the shards with work in them that were not done (nor damaged) when last looked at."""
        return list(filter(self._searching().is_open, self._with_work(skip)))

    def damaged_shards(self, skip: Container[int] = ()) -> dict[int, DamagedClaimError]:
        """Return the shards whose claim records could not be read when last looked at, and why."""
        search = self._searching()
        found = ((number, search.damage(number)) for number in self._with_work(skip))
        return {number: error for number, error in found if error is not None}

    def _with_work(self, skip: Container[int]) -> list[int]:
        shards = (one.shard_id for one in self.manifest.shards if one.num_samples > 0)
        return [number for number in shards if number not in skip]

    def mark_completed(
        self,
        shard_id: int,
        *,
        output: str | None = None,
        num_samples: int | None = None,
        checksum: str | None = None,
        ticket: Ticket | None = None,
    ) -> None:
        """Commit a claimed shard; idempotent. Raises ClaimError when another worker holds it."""
        lease = self._held(shard_id, ticket)
        if lease.phase is not Phase.DONE and not lease.complete(output, num_samples, checksum):
            raise self._not_owner(shard_id)
        # The ticket stays: to complete again is no error, also in another process.
        self._display.show(shard_id, lease.record)

    def mark_failed(
        self, shard_id: int, error: str | None = None, *, ticket: Ticket | None = None
    ) -> None:
        """Give a claimed shard up for others, with the reason."""
        lease = self._held(shard_id, ticket)
        if lease.phase is Phase.DONE:
            raise ClaimError(
                f"shard {shard_id} is completed already",
                hint="To have it done again: --action reset --force.",
            )
        lease.release(error or "marked as failed")
        self._tickets.drop(self._uri(shard_id))
        self._display.show(shard_id, lease.record)

    def renew(self, shard_id: int, *, ticket: Ticket | None = None) -> None:
        """Prolong a claim. Raises ClaimError when another worker holds it."""
        lease = self._held(shard_id, ticket)
        if lease.phase is Phase.DONE or not lease.renew():
            raise self._not_owner(shard_id)

    def hold(self, claim: ShardClaim) -> ShardHold:
        """Keep a claim alive while it is worked on: a context manager that renews in the background.

        `hold.check()` raises ClaimError once the work must stop; `hold.complete(...)` commits.
        """
        lease = self._leases.pop(claim.shard_id, None)
        if lease is None or lease.phase is not Phase.HOLD:
            raise self._not_owner(claim.shard_id)
        self._tickets.drop(self._uri(claim.shard_id))
        self._in_hold[claim.shard_id] = lease
        return ShardHold(lease, renew_seconds=self._lease_seconds / 3)

    def show(self, shard_id: int, record: ClaimRecord | None) -> None:
        """Rewrite a shard's metadata.json as its record stands; best effort."""
        self._display.show(shard_id, record)

    def tell_progress(self, claim: ShardClaim, record: ClaimRecord | None, done: int) -> None:
        """Show in metadata.json how many of a shard's chunks are done; best effort."""
        progress = f"{done}/{len(claim.chunks)} chunks"
        self._display.show(claim.shard_id, record, progress)

    def reset(self, shard_id: int, *, force: bool = False) -> None:
        """Set a shard free whoever holds it; a completed one, or a damaged record, only with `force`."""
        self._shard(shard_id)
        lease = self._fresh_lease(shard_id)
        # Beyond every generation, whatever the damaged record's was: takeovers count from 1.
        if not lease.reset(force=force, beyond=max(1, int(self._wall_clock()))):
            state = lease.record.state if lease.record else "gone"
            hint = "Give --force to redo it." if state == "done" else "Look at --action status."
            raise ClaimError(f"shard {shard_id} was not reset: it is {state}", hint=hint)
        self._leases.pop(shard_id, None)
        self._in_hold.pop(shard_id, None)
        self._searching().forget(shard_id)
        self._tickets.drop(self._uri(shard_id))
        self._display.show(shard_id, lease.record)

    def get_shard_status(self) -> dict[str, Any]:
        """Return counts by status and one row a shard (shard_id, status, assigned_to, attempts …)."""
        now = self._wall_clock()

        def row(shard: Shard) -> dict[str, Any]:
            record = readable(self._fresh_lease(shard.shard_id).look)
            if isinstance(record, DamagedClaimError):
                return damaged_row(shard, record)
            held = record is not None and record.state != "free"
            shown = shown_metadata(self.store, self._shown(shard.shard_id)) if held else {}
            return status_row(shard, record, shown, now)

        with ThreadPoolExecutor(8) as pool:
            rows = list(pool.map(row, self.manifest.shards))
        words = (*STATUS_WORDS.values(), DAMAGED)
        counts = {word: sum(row["status"] == word for row in rows) for word in words}
        return {"total": len(rows), **counts, "shards": rows}

    def records(self) -> list[tuple[int, ClaimRecord | None]]:
        """Return every shard's claim record as it stands now; None also where it is damaged."""
        numbers = [shard.shard_id for shard in self.manifest.shards]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda one: readable(self._fresh_lease(one).look), numbers))
        known = (None if isinstance(record, DamagedClaimError) else record for record in found)
        return list(zip(numbers, known, strict=True))

    def _shard(self, shard_id: int) -> Shard:
        for shard in self.manifest.shards:
            if shard.shard_id == shard_id:
                return shard
        raise UsageError(
            f"no shard {shard_id} in {self.store.spec.uri}/{self._prefix}",
            hint=f"Its shards are 0 to {len(self.manifest.shards) - 1}.",
        )

    def _key(self, shard_id: int) -> str:
        return f"{self._prefix}shard_{shard_id:03d}/claim.json"

    def _uri(self, shard_id: int) -> str:
        return f"{self.store.endpoint_id}/{self._key(shard_id)}"

    def _fresh_lease(self, shard_id: int, owner: str | None = None) -> ShardLease:
        return ShardLease(
            self.store,
            self._key(shard_id),
            owner or self.owner,
            worker=self.worker_id,
            lease_seconds=self._lease_seconds,
            clock=self._clock,
        )

    def _lease(self, shard_id: int) -> ShardLease:
        held = self._in_hold.get(shard_id)
        if held is not None and held.phase is Phase.DONE:
            return held  # final: what it says needs no reading
        # Kept, because a lease is judged by how long this process has watched it.
        lease = self._leases.get(shard_id)
        if lease is None:
            lease = self._leases[shard_id] = self._fresh_lease(shard_id)
        return lease

    def _held(self, shard_id: int, ticket: Ticket | None) -> ShardLease:
        self._shard(shard_id)
        lease = self._leases.get(shard_id)
        if lease and lease.phase in {Phase.HOLD, Phase.DONE}:
            return lease
        ticket = ticket or self._tickets.load(self._uri(shard_id))
        if ticket is None:
            raise ClaimError(
                f"shard {shard_id}: this machine holds no claim on it",
                hint="Claim it here first, or give --ticket.",
            )
        lease = self._fresh_lease(shard_id, ticket.owner)
        if not lease.adopt(ticket.gen):
            raise self._not_owner(shard_id)
        return lease

    def _not_owner(self, shard_id: int) -> ClaimError:
        return ClaimError(
            f"shard {shard_id}: another worker holds it now",
            hint="Discard this work; `--action status` shows who holds it.",
        )

    def _claimed(self, shard: Shard, lease: ShardLease) -> ShardClaim:
        record = lease.record
        assert record is not None  # noqa: S101 - HOLD has a record
        ticket = Ticket(gen=record.gen, owner=record.owner, version=lease.version.etag)
        self._tickets.save(self._uri(shard.shard_id), ticket)
        self._display.show(shard.shard_id, record)
        base = f"{self.store.spec.uri}/{self._prefix}"
        return ShardClaim(
            shard_id=shard.shard_id,
            chunks=tuple(base + chunk.key for chunk in shard.chunks),
            num_samples=shard.num_samples,
            gen=record.gen,
            owner=record.owner,
        )

    def _shown(self, shard_id: int) -> str:
        return f"{self._prefix}shard_{shard_id:03d}/metadata.json"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one action; prints its result on stdout and errors on stderr."""
    guard_process(sys.argv[1:] if arguments is None else arguments)
    from tools_utilities.scripts.shard_actions import run_action

    return run_action(arguments, ShardManager)


if __name__ == "__main__":
    sys.exit(main())
