"""ShardManager: claim, complete, fail, renew and reset shards that many machines share.

    python tools_utilities/scripts/shard_manager.py --dataset_dir D --action claim

No server: each shard has a claim record in the store beside it (`tools_utilities/shard_lease.py`).
As a script: exit code 0 ok, 1 error, 3 nothing to claim, 4 not the owner.
"""

import argparse
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from tools_utilities.claim_probe import probe_conditions
from tools_utilities.claim_record import ClaimRecord, new_owner
from tools_utilities.claim_tickets import Ticket, TicketFolder, read_ticket
from tools_utilities.errors import (
    ClaimError,
    DataNotFoundError,
    ObjectNotFoundError,
    QuarkError,
    StoreError,
    UsageError,
)
from tools_utilities.manifest import Manifest, Shard, load_manifest
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store
from tools_utilities.shard_lease import Clock, Phase, ShardLease

ONE_DAY_SECONDS = 86_400.0
POLL_SECONDS = 5.0
STATUS_WORDS = {"free": "available", "leased": "in_use", "done": "completed"}
NOTHING_TO_CLAIM = 3
NOT_THE_OWNER = 4


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
        spec, self._prefix = locate_dataset(str(dataset_dir))
        self.store = store or open_store(spec)
        self.worker_id = worker_id or socket.gethostname()
        self.owner = new_owner(socket.gethostname(), os.getpid(), uuid4())
        self._lease_seconds = lease_seconds
        self._tickets = TicketFolder(state_dir or Path.home() / ".local/state/quark/claims")
        self._clock = clock or Clock()
        self._wall_clock = wall_clock
        self._leases: dict[int, ShardLease] = {}
        self._manifest: Manifest | None = None

    @property
    def manifest(self) -> Manifest:
        """What the dataset says of itself; read once."""
        if self._manifest is None:
            self._manifest = load_manifest(self.store, self._prefix)
        if self._manifest is None:
            raise DataNotFoundError(
                f"{self.store.spec.uri}/{self._prefix}: no master_metadata.json",
                hint="Make one with create_sharded_dataset.py, or check --dataset_dir.",
            )
        return self._manifest

    def probe(self) -> None:
        """Refuse a store that does not keep its conditions (UsageError)."""
        probe_conditions(self.store, self._prefix, uuid4())

    def claim_shard(
        self, preferred_shard_id: int | None = None, *, wait_seconds: float = 0.0
    ) -> ShardClaim | None:
        """Claim a shard: the preferred one if it can be had, else the first that can.

        Returns None when none can. Watches for up to `wait_seconds`, so that expired leases can be
        taken: a lease is judged by how long this process has seen it unchanged.
        """
        shards = self._in_order(preferred_shard_id)
        until = self._clock.now() + wait_seconds
        while True:
            for shard in shards:
                lease = self._lease(shard.shard_id)
                if lease.phase is not Phase.HOLD and lease.try_claim():
                    return self._claimed(shard, lease)
            left = until - self._clock.now()
            if left <= 0 or all(self._is_done(shard.shard_id) for shard in shards):
                return None
            self._clock.sleep(min(POLL_SECONDS, left))

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
        self._tickets.drop(self._uri(shard_id))
        self._tell_people(shard_id, lease.record)

    def mark_failed(
        self, shard_id: int, error: str | None = None, *, ticket: Ticket | None = None
    ) -> None:
        """Give a claimed shard up for others, with the reason."""
        lease = self._held(shard_id, ticket)
        if lease.phase is Phase.DONE:
            raise ClaimError(
                f"shard {shard_id} is completed already", hint="Set it free with --action reset."
            )
        lease.release(error or "marked as failed")
        self._tickets.drop(self._uri(shard_id))
        self._tell_people(shard_id, lease.record)

    def renew(self, shard_id: int, *, ticket: Ticket | None = None) -> None:
        """Prolong a claim. Raises ClaimError when another worker holds it."""
        if not self._held(shard_id, ticket).renew():
            raise self._not_owner(shard_id)

    def reset(self, shard_id: int, *, force: bool = False) -> None:
        """Set a shard free whoever holds it; a completed one only with `force`."""
        self._shard(shard_id)
        lease = self._fresh_lease(shard_id)
        if not lease.reset(force=force):
            state = lease.record.state if lease.record else "gone"
            hint = "Give --force to redo it." if state == "done" else "Look at --action status."
            raise ClaimError(f"shard {shard_id} was not reset: it is {state}", hint=hint)
        self._leases.pop(shard_id, None)
        self._tickets.drop(self._uri(shard_id))
        self._tell_people(shard_id, lease.record)

    def get_shard_status(self) -> dict[str, Any]:
        """Return counts by status and one row a shard (shard_id, status, assigned_to, attempts …)."""
        shards = self.manifest.shards
        with ThreadPoolExecutor(8) as pool:
            records = list(pool.map(lambda shard: self._fresh_lease(shard.shard_id).look(), shards))
        rows = [_row(shard, record) for shard, record in zip(shards, records, strict=True)]
        counts = {
            word: sum(row["status"] == word for row in rows) for word in STATUS_WORDS.values()
        }
        return {"total": len(rows), **counts, "shards": rows}

    def _in_order(self, preferred: int | None) -> list[Shard]:
        # An empty shard has no work in it: nobody is sent there.
        shards = [shard for shard in self.manifest.shards if shard.num_samples > 0]
        if preferred is not None:
            self._shard(preferred)
            shards.sort(key=lambda shard: shard.shard_id != preferred)
        return shards

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
        # Kept, because a lease is judged by how long this process has watched it.
        return self._leases.setdefault(shard_id, self._fresh_lease(shard_id))

    def _is_done(self, shard_id: int) -> bool:
        record = self._lease(shard_id).record
        return record is not None and record.state == "done"

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
        self._tell_people(shard.shard_id, record)
        base = f"{self.store.spec.uri}/{self._prefix}"
        return ShardClaim(
            shard_id=shard.shard_id,
            chunks=tuple(base + chunk.key for chunk in shard.chunks),
            num_samples=shard.num_samples,
            gen=record.gen,
            owner=record.owner,
        )

    def _tell_people(self, shard_id: int, record: ClaimRecord | None) -> None:
        """Rewrite the documented metadata.json, for people and old tools; the protocol never reads it."""
        key = f"{self._prefix}shard_{shard_id:03d}/metadata.json"
        now = datetime.fromtimestamp(self._wall_clock(), UTC).isoformat(timespec="seconds")
        state = record.state if record else "free"
        try:
            body = self.store.get(key)
            metadata = msgspec.json.decode(b"".join(body), type=dict[str, Any])
            metadata["status"] = STATUS_WORDS[state]
            metadata["assigned_to"] = None if record is None or state == "free" else record.worker
            metadata["started_at"] = now if state == "leased" else metadata.get("started_at")
            metadata["completed_at"] = now if state == "done" else None
            self.store.put(key, msgspec.json.format(msgspec.json.encode(metadata)))
        except (ObjectNotFoundError, StoreError, msgspec.MsgspecError):
            return  # best effort: the claim record is the truth


def locate_dataset(dataset_dir: str) -> tuple[StoreSpec, str]:
    """Return the store of a folder or URI, and the prefix in it (empty, or ending in `/`)."""
    if "://" not in dataset_dir:
        return StoreSpec(uri=f"file://{Path(dataset_dir).expanduser().resolve()}"), ""
    scheme, _, rest = dataset_dir.partition("://")
    if scheme == "file":
        return StoreSpec(uri=dataset_dir.rstrip("/")), ""
    bucket, _, prefix = rest.partition("/")
    return StoreSpec(uri=f"{scheme}://{bucket}"), f"{prefix.rstrip('/')}/" if prefix else ""


def _row(shard: Shard, record: ClaimRecord | None) -> dict[str, Any]:
    return {
        "shard_id": shard.shard_id,
        "status": STATUS_WORDS[record.state] if record else "available",
        "assigned_to": record.worker if record and record.state != "free" else None,
        "num_samples": shard.num_samples,
        "attempts": record.attempts if record else 0,
        "gen": record.gen if record else 0,
        "output": record.output if record else None,
        "last_error": record.last_error if record else None,
    }


def status_line(status: dict[str, Any]) -> str:
    """Return the status in one line."""
    return (
        f"Shards: {status['total']} total, {status['available']} available, "
        f"{status['in_use']} in use, {status['completed']} completed"
    )


def _act(manager: ShardManager, arguments: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Carry an action out; returns exit code, result and its one line for people."""
    shard_id, ticket = arguments.shard_id, _ticket(arguments.ticket)
    if arguments.action == "status":
        status = manager.get_shard_status()
        return 0, status, status_line(status)
    if arguments.action == "claim":
        manager.probe()
        claim = manager.claim_shard(shard_id, wait_seconds=arguments.wait)
        if claim is None:
            return NOTHING_TO_CLAIM, {"shard_id": None}, "No shard available"
        return 0, msgspec.to_builtins(claim), f"Claimed shard {claim.shard_id}"
    if shard_id is None:
        raise UsageError(f"--action {arguments.action} needs --shard_id")
    if arguments.action == "complete":
        manager.mark_completed(shard_id, ticket=ticket)
    elif arguments.action == "fail":
        manager.mark_failed(shard_id, ticket=ticket)
    elif arguments.action == "renew":
        manager.renew(shard_id, ticket=ticket)
    else:
        manager.reset(shard_id, force=arguments.force)
    words = {"complete": "Completed", "fail": "Gave up", "renew": "Renewed", "reset": "Reset"}
    return 0, {"shard_id": shard_id}, f"{words[arguments.action]} shard {shard_id}"


def _ticket(path: str | None) -> Ticket | None:
    if path is None:
        return None
    ticket = read_ticket(Path(path))
    if ticket is None:
        raise UsageError(f"{path}: no such ticket", hint="Claim the shard again.")
    return ticket


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Claim, complete and look after shards.")
    parser.add_argument("--dataset_dir", required=True, help="folder or store URI")
    actions = ("claim", "status", "complete", "fail", "reset", "renew")
    parser.add_argument("--action", required=True, choices=actions)
    parser.add_argument("--shard_id", type=int, help="for claim: the preferred one")
    parser.add_argument("--worker_id", help="shown as assigned_to; default: host name")
    parser.add_argument("--lease", type=float, default=ONE_DAY_SECONDS, help="seconds")
    parser.add_argument(
        "--wait", type=float, default=0.0, help="seconds to watch for leases to end"
    )
    parser.add_argument("--ticket", help="ticket file of a claim made elsewhere")
    parser.add_argument("--force", action="store_true", help="reset a completed shard too")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one action; prints its result on stdout and errors on stderr."""
    options = _parse(arguments)
    try:
        manager = ShardManager(options.dataset_dir, options.worker_id, lease_seconds=options.lease)
        code, result, line = _act(manager, options)
    except QuarkError as error:
        sys.stderr.write(f"error: {error}\n" + (f"hint: {error.hint}\n" if error.hint else ""))
        return NOT_THE_OWNER if isinstance(error, ClaimError) else 1
    sys.stdout.write((msgspec.json.encode(result).decode() if options.json else line) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
