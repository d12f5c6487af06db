"""Adding to a sharded dataset that is finished: several writers at a time, then one index of all.

A writer reserves numbers by a conditional create in `_additions/`, writes its shards under them, and
says there what it wrote, last. `merge_additions` takes what is finished into the index by
compare-and-swap. It goes by the reserved numbers and names, so merging again, or by two at once,
changes nothing; what is not finished is left out until it is.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tools_utilities.dataset_metadata import encode_metadata
from tools_utilities.errors import ConditionFailedError, DataError, StoreError, UsageError
from tools_utilities.json_text import decode_json
from tools_utilities.manifest import (
    MASTER,
    Chunk,
    Manifest,
    Shard,
    encode_manifest,
    index_name,
    load_manifest,
)
from tools_utilities.object_store import ObjectStore, read_object
from tools_utilities.prepared_types import prepared

FOLDER = "_additions/"
_TRIES = 20


@prepared
class Addition(msgspec.Struct, frozen=True, kw_only=True):
    """What one writer adds."""

    identity: str
    """Of the source and the settings: the same command finds its reservation again."""
    first_shard: int
    num_shards: int
    done: bool = False
    shards: tuple[Shard, ...] = ()
    """Written last, when all of it is in the store."""

    @property
    def summary(self) -> dict[str, Any]:
        """What was added, as the master metadata says it."""
        return {
            "total_tasks": sum(shard.num_samples for shard in self.shards),
            "num_shards": len(self.shards),
        }


def reserve(store: ObjectStore, prefix: str, identity: str, num_shards: int) -> Addition:
    """Return the addition of this identity, reserved now or by an earlier run of the same command.

    Raises:
        UsageError: there is no finished dataset to add to.
        StoreError: other writers were faster too many times.
    """
    base = load_manifest(store, prefix)
    if base is None:
        raise UsageError(
            f"{store.spec.uri}/{prefix}: no finished dataset to add to",
            hint="Make it first, without --append.",
        )
    first = max((shard.shard_id + 1 for shard in base.shards), default=0)
    for _ in range(_TRIES):
        found = list(additions(store, prefix))
        for one in found:
            if one.identity == identity:
                return one
        first = max([first, *(one.first_shard + one.num_shards for one in found)])
        made = Addition(identity=identity, first_shard=first, num_shards=num_shards)
        try:
            store.put_if_absent(_key(prefix, first), msgspec.json.encode(made))
        except ConditionFailedError:
            continue  # another writer has just taken these numbers, or it was this very request
        return made
    raise StoreError(f"{prefix}{FOLDER}: no numbers to be had", hint="Run the command again.")


def additions(store: ObjectStore, prefix: str) -> Iterator[Addition]:
    """Yield every addition, in the order of their numbers.

    Raises:
        DataError: a file there is none of ours, or damaged.
    """
    for info in sorted(store.list(prefix + FOLDER), key=lambda info: info.key):
        if not info.key.endswith(".json"):
            continue
        try:
            yield decode_json(read_object(store, info.key)[0], type=Addition)
        except msgspec.MsgspecError as error:
            raise DataError(
                f"{info.key}: not the record of an addition: {error}",
                hint="Move it away; the command that wrote it then adds its shards again.",
                key=info.key,
            ) from error


def finish_addition(
    store: ObjectStore, prefix: str, addition: Addition, shards: Sequence[Sequence[Chunk]]
) -> Addition:
    """Say that all of an addition is in the store."""
    done = msgspec.structs.replace(
        addition,
        done=True,
        shards=tuple(
            Shard(shard_id=addition.first_shard + number, chunks=tuple(chunks))
            for number, chunks in enumerate(shards)
        ),
    )
    store.put(_key(prefix, addition.first_shard), msgspec.json.encode(done))
    return done


def merge_additions(store: ObjectStore, prefix: str) -> dict[str, Any]:
    """Take finished additions into the index; returns its sums. Again: the same.

    Raises:
        UsageError: there is no index, or the store gives objects no version.
        DataError: a file that an addition names is not there, or not of its size.
        StoreError: the index was changed by others too many times.
    """
    if load_manifest(store, prefix) is None:
        raise UsageError(
            f"{store.spec.uri}/{prefix}: no finished dataset here",
            hint="Make it first, then add to it with --append.",
        )
    done = [one for one in additions(store, prefix) if one.done]
    for _ in range(_TRIES):
        try:
            return _merge(store, prefix, done)
        except ConditionFailedError:
            continue  # another merge was faster: what it left out is added to what it wrote
    raise StoreError(f"{prefix}: the index is changed all the time", hint="Merge again later.")


def _merge(store: ObjectStore, prefix: str, done: Sequence[Addition]) -> dict[str, Any]:
    name = index_name(store, prefix)
    # Its version first: a manifest read later is that one, or the swap fails.
    content, info = read_object(store, prefix + name)
    if info.etag is None:
        raise UsageError(
            f"{store.endpoint_id}: it gives objects no version, so nothing can be merged safely",
            hint="Merge in a store with conditional writes (S3, R2, GCS, a local folder).",
        )
    before = load_manifest(store, prefix)
    if before is None:
        raise ConditionFailedError(f"{prefix}{name}: gone meanwhile")
    known = set(before.chunks)
    new = [
        shard
        for one in done
        for shard in one.shards
        if shard.chunks and not any(prefix + chunk.key in known for chunk in shard.chunks)
    ]
    for shard in new:
        _check(store, prefix, shard)
    after = msgspec.structs.replace(before, shards=(*before.shards, *new))
    sums = {"total_tasks": after.num_samples, "num_shards": len(after.shards)}
    if new:
        written = _master(content, after) if name == MASTER else encode_manifest(after)
        store.put_if_match(prefix + name, written, info.etag)
    return sums


def _check(store: ObjectStore, prefix: str, shard: Shard) -> None:
    for chunk in shard.chunks:
        stored = store.head(prefix + chunk.key)
        if stored.size_bytes != chunk.num_bytes or (
            stored.crc32c is not None and stored.crc32c != chunk.crc32c
        ):
            raise DataError(
                f"{stored.key}: {stored.size_bytes} bytes, not the {chunk.num_bytes} that were "
                "added",
                hint="Run the command that added it again.",
                key=stored.key,
            )


def _master(content: bytes, after: Manifest) -> bytes:
    master: dict[str, Any] = decode_json(content)
    known = {shard["shard_id"] for shard in master["shards"]}
    master["shards"] += [
        {
            "shard_id": shard.shard_id,
            "directory": f"shard_{shard.shard_id:03d}",
            "status": "available",
        }
        for shard in after.shards
        if shard.shard_id not in known
    ]
    master["total_tasks"] = after.num_samples
    master["num_shards"] = len(after.shards)
    master["total_bytes"] = sum(chunk.num_bytes or 0 for chunk in after.chunks.values())
    return encode_metadata(master)


def layout_of(store: ObjectStore, prefix: str) -> str:
    """Return the layout of a finished dataset, `folders` or `flat`."""
    return "folders" if index_name(store, prefix) == MASTER else "flat"


def _key(prefix: str, first_shard: int) -> str:
    return f"{prefix}{FOLDER}{first_shard:06d}.json"
