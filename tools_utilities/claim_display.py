"""Keeps the documented fields of each shard's metadata.json as the claim records have them.

For people and old programs; nothing of the protocol reads it, and a failure to write it is no error.
Every write is conditional on the version read *before* the record it shows, so that what a worker
wrote late never hides what happened since: the last to write has read the newest record.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec

from tools_utilities.claim_record import ClaimRecord
from tools_utilities.errors import AccessError, ConditionFailedError, QuarkError, StoreError
from tools_utilities.json_text import decode_json
from tools_utilities.object_store import ObjectStore, read_object
from tools_utilities.shard_status import STATUS_WORDS

TRIES = 3


class Shown(msgspec.Struct, frozen=True):
    """A metadata.json as it was read or written."""

    content: dict[str, Any]
    etag: str


class ShardDisplay:
    """The metadata.json files of one dataset, as one worker writes them."""

    def __init__(
        self,
        store: ObjectStore,
        key_of: Callable[[int], str],
        read_record: Callable[[int], ClaimRecord | None],
        wall_clock: Callable[[], float],
    ) -> None:
        """Read the newest claim record by `read_record`; `wall_clock` gives seconds since 1970."""
        self._store = store
        self._key_of = key_of
        self._read_record = read_record
        self._wall_clock = wall_clock
        self._known: dict[int, Shown] = {}

    def prepare(self, shard_id: int) -> None:
        """Read a shard's metadata.json; called before the record is written that is to be shown."""
        if shard_id not in self._known:
            found = self._read(shard_id)
            if found is not None:
                self._known[shard_id] = found

    def show(self, shard_id: int, record: ClaimRecord | None, progress: str | None = None) -> None:
        """Show a record that this worker just wrote; `progress` is `chunks done/chunks`."""
        for _ in range(TRIES):
            shown = self._known.pop(shard_id, None)
            try:
                if shown is None:
                    shown, record, progress = self._catch_up(shard_id, record, progress)
                if shown is not None:
                    self._write(shard_id, shown, record, progress)
            except ConditionFailedError:
                continue  # somebody wrote it meanwhile: the newest record is shown then
            except QuarkError:
                return  # the claim record is the truth
            return

    def _catch_up(
        self, shard_id: int, record: ClaimRecord | None, progress: str | None
    ) -> tuple[Shown | None, ClaimRecord | None, str | None]:
        shown = self._read(shard_id)
        newest = self._read_record(shard_id) if shown is not None else record
        return shown, newest, progress if _same_claim(newest, record) else None

    def _read(self, shard_id: int) -> Shown | None:
        try:
            data, info = read_object(self._store, self._key_of(shard_id))
            content = decode_json(data, type=dict[str, Any])
        except (StoreError, AccessError, msgspec.MsgspecError):
            return None
        return Shown(content, info.etag) if info.etag is not None else None

    def _write(
        self, shard_id: int, shown: Shown, record: ClaimRecord | None, progress: str | None
    ) -> None:
        content = told(shown.content, record, self._wall_clock(), progress)
        data = msgspec.json.format(msgspec.json.encode(content)) + b"\n"
        etag = self._store.put_if_match(self._key_of(shard_id), data, shown.etag).etag
        if etag is not None and record is not None and record.state == "leased":
            self._known[shard_id] = Shown(content, etag)


def told(
    content: dict[str, Any], record: ClaimRecord | None, now: float, progress: str | None
) -> dict[str, Any]:
    """Return a metadata.json's content as a record has it; `now` is seconds since 1970."""
    moment = datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds")
    state = record.state if record else "free"
    worker = None if record is None or state == "free" else record.worker
    begun = content.get("started_at")
    goes_on = content.get("assigned_to") == worker and begun and progress is not None
    changed: dict[str, Any] = {
        "status": STATUS_WORDS[state],
        "assigned_to": worker,
        "started_at": {"free": None, "leased": begun if goes_on else moment}.get(state, begun),
        "completed_at": moment if state == "done" else None,
    }
    kept = {name: value for name, value in content.items() if name != "progress"}
    return kept | changed | ({} if progress is None else {"progress": progress})


def _same_claim(one: ClaimRecord | None, other: ClaimRecord | None) -> bool:
    return (one and (one.gen, one.owner)) == (other and (other.gen, other.owner))
