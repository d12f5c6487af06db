"""Finds out, before anything is claimed, whether a store keeps its conditions.

A store that accepts `If-None-Match` and `If-Match` but ignores them gives every worker every shard.
The probe writes a few small objects under `.quark-probe/` (names that discovery ignores).
"""

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from tools_utilities.errors import ConditionFailedError, StoreError, UsageError
from tools_utilities.object_store import ObjectStore

RACERS = 8
ROUNDS = 3


def probe_conditions(store: ObjectStore, prefix: str, unique: UUID) -> None:
    """Return when the store is fit for claims.

    Checks, in order: a create race of 8 has one winner, three times; a stale version is refused; a
    write is seen by the next read and the next listing.

    Raises:
        UsageError: the store does not keep its conditions; says which.
    """
    folder = f"{prefix}.quark-probe/{unique}/"
    keys = [f"{folder}{round_number}" for round_number in range(ROUNDS)]
    try:
        for key in keys:
            _probe_race(store, key)
        _probe_versions(store, keys[0])
        _probe_visibility(store, folder, keys)
    finally:
        _sweep(store, keys)


def _probe_race(store: ObjectStore, key: str) -> None:
    def create(racer: int) -> bool:
        try:
            store.put_if_absent(key, f"racer {racer}".encode())
        except ConditionFailedError:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as pool:
        winners = sum(pool.map(create, range(RACERS)))
    if winners != 1:
        raise _refused(store, f"{winners} of {RACERS} creators of one object were told they won")


def _probe_versions(store: ObjectStore, key: str) -> None:
    stale = store.head(key).etag
    if stale is None:
        raise _refused(store, "it gives objects no version")
    store.put_if_match(key, b"second", stale)
    try:
        store.put_if_match(key, b"third", stale)
    except ConditionFailedError:
        return
    raise _refused(store, "a write on a stale version was accepted")


def _probe_visibility(store: ObjectStore, folder: str, keys: list[str]) -> None:
    body = store.get(keys[0])
    try:
        read = b"".join(body)
    finally:
        body.close()
    listed = [info.key for info in store.list(folder)]
    if read != b"second" or listed != sorted(keys):
        raise _refused(store, "a write is not seen by the next read or listing")


def _refused(store: ObjectStore, reason: str) -> UsageError:
    return UsageError(
        f"{store.endpoint_id} cannot hold claims: {reason}",
        hint="Use a store with conditional writes (S3, R2, GCS, a local folder), or give each"
        " machine its own shards.",
        store=store.endpoint_id,
    )


def _sweep(store: ObjectStore, keys: list[str]) -> None:
    for key in keys:
        try:
            store.delete(key)
        except (StoreError, PermissionError):
            # Claims need no permission to delete: what is left is small and ignored by discovery.
            return
