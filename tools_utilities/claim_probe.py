"""Finds out, before anything is claimed, whether a store keeps its conditions.

A store that accepts `If-None-Match` and `If-Match` but ignores them gives every worker every shard.
The probe writes a few small objects named `.quark-probe-…` (names that discovery ignores; no folder,
which a disk would keep). A store is refused on proof alone: an answer that says nothing (503, a reset,
a reply that was lost) is asked for again, and 412 may be a writer's own success.
"""

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from uuid import UUID

from tools_utilities.errors import (
    ConditionFailedError,
    ObjectNotFoundError,
    StoreError,
    UsageError,
)
from tools_utilities.object_store import ObjectStore, read_object
from tools_utilities.patience import PATIENCE_SECONDS, patiently, told

RACERS = 8
ROUNDS = 3
_SECOND, _THIRD = b"second", b"third"
_Result = TypeVar("_Result")


def probe_conditions(
    store: ObjectStore,
    prefix: str,
    unique: UUID,
    *,
    seconds: float = PATIENCE_SECONDS,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return when the store is fit for claims; stay patient for so many seconds a request.

    Checks, in order: a create race of 8 has one winner, three times; a stale version is refused; a
    write is seen by the next read and the next listing.

    Raises:
        UsageError: the store does not keep its conditions; says which.
        StoreError: it answered nothing that tells.
    """
    stem = f"{prefix}.quark-probe-{unique}-"
    keys = [f"{stem}{round_number}" for round_number in range(ROUNDS)]
    probe = _Probe(store, seconds, sleep)
    try:
        for key in keys:
            probe.race(key)
        probe.versions(keys[0])
        probe.visibility(stem, keys)
    finally:
        _sweep(store, keys, sleep)


class _Probe:
    def __init__(self, store: ObjectStore, seconds: float, sleep: Callable[[float], None]) -> None:
        self._store = store
        self._seconds = seconds
        self._sleep = sleep

    def race(self, key: str) -> None:
        """Let racers create one object, each until it knows whether it did."""
        with ThreadPoolExecutor(RACERS) as pool:
            won = list(pool.map(lambda racer: self._create(key, racer), range(RACERS)))
        winners = [racer for racer in range(RACERS) if won[racer]]
        if len(winners) > 1:
            raise self._refused(
                f"{len(winners)} of {RACERS} creators of one object were told they won"
            )
        stands = self._read(key)
        if winners and stands != _racer(winners[0]):
            raise self._refused("an object that was created was created again")

    def _create(self, key: str, racer: int) -> bool:
        """Return whether the store said that this racer won; False: it lost, or nobody can say."""

        def create() -> bool:
            try:
                told(lambda: self._store.put_if_absent(key, _racer(racer)))
            except ConditionFailedError:
                # 409 asks to try again, and leaves no object behind when it was said to all.
                if self._read(key) is None:
                    raise StoreError(f"{key}: nobody could create it", transient=True) from None
                return False
            return True

        return self._patiently(create)

    def versions(self, key: str) -> None:
        """Write on the current version, then on the one before."""
        stale = self._patiently(lambda: self._store.head(key)).etag
        if stale is None:
            raise self._refused("it gives objects no version")
        if not self._replace(key, _SECOND, stale):
            raise self._refused("a write on the current version is refused")
        if self._replace(key, _THIRD, stale):
            raise self._refused("a write on a stale version was accepted")

    def _replace(self, key: str, data: bytes, etag: str) -> bool:
        """Return whether a conditional write went through, whatever its answer was."""

        def replace() -> bool:
            try:
                told(lambda: self._store.put_if_match(key, data, etag))
            except ConditionFailedError:
                return False
            return True

        return self._patiently(replace) or self._read(key) == data

    def visibility(self, stem: str, keys: list[str]) -> None:
        """Read and list what was written."""
        listed = self._patiently(lambda: [info.key for info in self._store.list(stem)])
        if self._read(keys[0]) != _SECOND or listed != sorted(keys):
            raise self._refused("a write is not seen by the next read or listing")

    def _read(self, key: str) -> bytes | None:
        def read() -> bytes | None:
            try:
                return read_object(self._store, key)[0]
            except ObjectNotFoundError:
                return None

        return self._patiently(read)

    def _patiently(self, ask: Callable[[], _Result]) -> _Result:
        return patiently(ask, seconds=self._seconds, sleep=self._sleep)

    def _refused(self, reason: str) -> UsageError:
        return UsageError(
            f"{self._store.endpoint_id} cannot hold claims: {reason}",
            hint="Use a store with conditional writes (S3, R2, GCS, a local folder), or give each"
            " machine its own shards.",
            store=self._store.endpoint_id,
        )


def _racer(number: int) -> bytes:
    return f"racer {number}".encode()


def _sweep(store: ObjectStore, keys: list[str], sleep: Callable[[float], None]) -> None:
    for key in keys:
        try:
            patiently(functools.partial(store.delete, key), seconds=1.0, sleep=sleep)
        except (StoreError, PermissionError):
            # Claims need no permission to delete: what is left is small and ignored by discovery.
            return
