"""What people see of claims: the documented metadata.json fields, a status line, a table.

None of it is read by the protocol: the claim record is the truth (`claim_display.py` writes the file).
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from tools_utilities.claim_record import ClaimRecord
from tools_utilities.errors import AccessError, DamagedClaimError, StoreError
from tools_utilities.json_text import decode_json
from tools_utilities.manifest import Shard
from tools_utilities.object_store import ObjectStore, read_object
from tools_utilities.worker_health import health_lines

STATUS_WORDS = {"free": "available", "leased": "in_use", "done": "completed"}
DAMAGED = "damaged"
"""Of a shard whose claim record cannot be read: it is none of the others."""


def shown_metadata(store: ObjectStore, key: str) -> dict[str, Any]:
    """Return a shard's metadata.json, or {} when it cannot be read."""
    try:
        return decode_json(read_object(store, key)[0], type=dict[str, Any])
    except (StoreError, AccessError, msgspec.MsgspecError):
        return {}


def status_row(
    shard: Shard, record: ClaimRecord | None, metadata: dict[str, Any], now: float
) -> dict[str, Any]:
    """Return one shard's row; an empty shard has nothing left to do and counts as completed."""
    word = STATUS_WORDS[record.state] if record else "available"
    held = record is not None and record.state != "free"
    return {
        "shard_id": shard.shard_id,
        "status": word if shard.num_samples else "completed",
        "assigned_to": record.worker if record and held else None,
        "num_samples": shard.num_samples,
        "attempts": record.attempts if record else 0,
        "crashes": record.crashes if record else 0,
        "gen": record.gen if record else 0,
        "seq": record.seq if record else 0,
        "owner": record.owner if record and held else None,
        "lease_seconds": record.lease_seconds if record and held else None,
        "age_seconds": _age(metadata.get("started_at"), now) if held else None,
        "progress": metadata.get("progress") if held else None,
        "output": record.output if record else None,
        "last_error": record.last_error if record else None,
    }


def readable(look: Callable[[], ClaimRecord | None]) -> ClaimRecord | DamagedClaimError | None:
    """Return the record that `look` reads, or why it cannot be read."""
    try:
        return look()
    except DamagedClaimError as error:
        return error


def damaged_row(shard: Shard, error: DamagedClaimError) -> dict[str, Any]:
    """Return the row of a shard whose record cannot be read: nothing is known of its claims."""
    row = status_row(shard, None, {}, 0.0)
    status = DAMAGED if shard.num_samples else row["status"]
    return row | {"status": status, "last_error": str(error)}


def _age(moment: Any, now: float) -> float | None:
    try:
        return round(max(0.0, now - datetime.fromisoformat(moment).timestamp()), 1)
    except (TypeError, ValueError):
        return None


def status_line(status: dict[str, Any]) -> str:
    """Return the status in one line."""
    return (
        f"Shards: {status['total']} total, {status['available']} available, "
        f"{status['in_use']} in use, {status['completed']} completed"
        + (f", {status[DAMAGED]} {DAMAGED}" if status.get(DAMAGED) else "")
    )


def status_table(status: dict[str, Any]) -> list[str]:
    """Return the status line and one line a shard, in columns."""
    shown = {
        "status": "status",
        "assigned_to": "assigned to",
        "owner": "owner",
        "age_seconds": "age s",
        "progress": "progress",
        "attempts": "attempts",
        "last_error": "last error",
    }
    titles = ("shard", *shown.values())
    rows: list[tuple[str, ...]] = [titles]
    for row in status["shards"]:
        names = tuple(shown)
        cells = ("" if row[name] is None else ascii(row[name]).strip("'") for name in names)
        rows.append((f"{row['shard_id']:03d}", *cells))
    widths = [max(len(row[column]) for row in rows) for column in range(len(titles))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [status_line(status), *lines, *health_lines(status.get("workers", ()))]
