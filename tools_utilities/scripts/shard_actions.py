"""The command line of `tools_utilities/scripts/shard_manager.py`: one action on one dataset's claims.

Exit codes: 0 ok, 1 error, 3 nothing to claim, 4 not the owner.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from tools_utilities.claim_tickets import Ticket, read_ticket
from tools_utilities.dataset_location import locate_dataset
from tools_utilities.errors import ClaimError, QuarkError, UsageError, error_lines
from tools_utilities.object_store import ObjectStore, open_store
from tools_utilities.output_sweep import find_orphans
from tools_utilities.shard_status import status_line, status_table
from tools_utilities.worker_health import ClaimWatch

if TYPE_CHECKING:
    from tools_utilities.scripts.shard_manager import ShardManager

ONE_DAY_SECONDS = 86_400.0
WATCH_SECONDS = 2.0
NOTHING_TO_CLAIM = 3
NOT_THE_OWNER = 4
DONE_WORDS = {"complete": "Completed", "fail": "Gave up", "renew": "Renewed", "reset": "Reset"}


def run_action(arguments: Sequence[str] | None, manager_type: "type[ShardManager]") -> int:
    """Run what the arguments say; returns the exit code."""
    options = _parse(arguments)
    try:
        spec, _ = locate_dataset(
            options.dataset_dir, endpoint_url=options.endpoint_url, profile=options.profile
        )
        worker = worker_name(options.worker_id, options.host_id, options.machine_id)
        manager = manager_type(
            options.dataset_dir, worker, lease_seconds=options.lease, store=open_store(spec)
        )
        code, result, line = _act(manager, options)
    except QuarkError as error:
        sys.stderr.write(error_lines(error))
        return NOT_THE_OWNER if isinstance(error, ClaimError) else 1
    sys.stdout.write((msgspec.json.encode(result).decode() if options.json else line) + "\n")
    return code


def worker_name(worker_id: str | None, host_id: int | None, machine_id: int = 0) -> str | None:
    """Return the worker id given, else `machineX_hostY` of the job's host, else None (host name)."""
    if worker_id or host_id is None:
        return worker_id
    return f"machine{machine_id}_host{host_id}"


def _act(manager: "ShardManager", options: argparse.Namespace) -> tuple[int, dict[str, Any], str]:
    """Carry an action out; returns exit code, result and its lines for people."""
    shard_id = options.shard_id
    if options.action == "status":
        return 0, *_status(manager, options)
    if options.action == "claim":
        claim = manager.claim_shard(
            shard_id, wait_seconds=options.wait, poll_seconds=min(5.0, options.lease / 3)
        )
        if claim is None:
            return NOTHING_TO_CLAIM, {"shard_id": None}, "No shard available"
        return 0, msgspec.to_builtins(claim), f"Claimed shard {claim.shard_id}"
    if options.action == "sweep":
        return 0, *_sweep(manager, options)
    if shard_id is None:
        raise UsageError(f"--action {options.action} needs --shard_id")
    ticket = _ticket(options.ticket)
    if options.action == "complete":
        manager.mark_completed(shard_id, output=options.output, ticket=ticket)
    elif options.action == "fail":
        manager.mark_failed(shard_id, options.error, ticket=ticket)
    elif options.action == "renew":
        manager.renew(shard_id, ticket=ticket)
    else:
        manager.reset(shard_id, force=options.force)
    return 0, {"shard_id": shard_id}, f"{DONE_WORDS[options.action]} shard {shard_id}"


def _sweep(manager: "ShardManager", options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """List, or with --delete remove, the outputs of claims that were lost."""

    def locate(uri: str) -> tuple[ObjectStore, str]:
        spec, prefix = locate_dataset(
            uri, endpoint_url=options.endpoint_url, profile=options.profile
        )
        return open_store(spec), prefix

    orphans = find_orphans(manager.records(), locate, delete=options.delete)
    num_bytes = sum(orphan.num_bytes for orphan in orphans)
    lines = [
        f"{ascii(orphan.folder)[1:-1]}  {orphan.num_files} files, {orphan.num_bytes:,} bytes"
        for orphan in orphans
    ]
    did = "Removed" if options.delete else "Left by lost claims (--delete removes them)"
    lines.append(f"{did}: {len(orphans)} outputs, {num_bytes:,} bytes")
    result = {"deleted": options.delete, "num_bytes": num_bytes, "orphans": orphans}
    return msgspec.to_builtins(result), "\n".join(lines)


def _status(manager: "ShardManager", options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    status = watched_status(manager, paint_status) if options.watch else manager.get_shard_status()
    lines = status_table(status) if options.watch or options.verbose else [status_line(status)]
    return status, "\n".join(lines)


def watched_status(
    manager: "ShardManager",
    paint: Callable[[dict[str, Any]], None],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Show the status every two seconds until all shards are completed; return the last.

    It also has `workers`, the health of each by how its claims change.
    """
    watch = ClaimWatch(clock=clock)
    while True:
        status = manager.get_shard_status()
        status["workers"] = msgspec.to_builtins(watch.look(status))
        if status["completed"] == status["total"]:
            return status
        paint(status)
        sleep(WATCH_SECONDS)


def paint_status(status: dict[str, Any]) -> None:
    """Draw the table in place on a terminal; elsewhere write one line, without escape bytes."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[H\x1b[2J" + "\n".join(status_table(status)) + "\n")
    else:
        sys.stderr.write(status_line(status) + "\n")
    sys.stderr.flush()


def _ticket(path: str | None) -> Ticket | None:
    if path is None:
        return None
    ticket = read_ticket(Path(path))
    if ticket is None:
        raise UsageError(f"{path}: no such ticket", hint="Claim the shard again.")
    return ticket


class _Parser(argparse.ArgumentParser):
    """Ends with 1, as the script's exit codes have it (2 is not one of them)."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(1, f"error: {message}\n")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _Parser(description="Claim, complete and look after shards.")
    parser.add_argument("--dataset_dir", required=True, help="folder or store URI")
    actions = ("claim", "status", "complete", "fail", "reset", "renew", "sweep")
    parser.add_argument("--action", required=True, choices=actions)
    parser.add_argument("--shard_id", type=int, help="for claim: the preferred one")
    parser.add_argument("--worker_id", help="shown as assigned_to; default: host name")
    parser.add_argument("--host_id", type=int, help="worker id machineX_hostY, if no --worker_id")
    parser.add_argument("--machine_id", type=int, default=0, help="the X of machineX_hostY")
    parser.add_argument("--lease", type=float, default=ONE_DAY_SECONDS, help="seconds")
    parser.add_argument(
        "--wait", type=float, default=0.0, help="seconds to watch for leases to end"
    )
    parser.add_argument("--ticket", help="ticket file of a claim made elsewhere")
    parser.add_argument("--output", help="for complete: where the output is")
    parser.add_argument("--error", help="for fail: why")
    parser.add_argument("--force", action="store_true", help="reset a completed shard too")
    parser.add_argument(
        "--delete", action="store_true", help="for sweep: remove what it lists, not only list it"
    )
    parser.add_argument("--watch", action="store_true", help="status until all are completed")
    parser.add_argument("--verbose", action="store_true", help="status: one line a shard")
    parser.add_argument("--endpoint_url", help="S3 endpoint (R2, MinIO, SeaweedFS)")
    parser.add_argument("--profile", help="AWS profile")
    parser.add_argument("--json", action="store_true", help="the result as JSON")
    return parser.parse_args(arguments)
