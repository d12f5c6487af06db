"""What a batch job works on: the shards of a sharded dataset, or files that were never sharded.

A folder with a manifest gives its shards. Without one every data file is a shard of one chunk, in
key order; several series of files in a folder need a choice. Every machine comes to the same shards
from the same listing.
"""

from collections.abc import Callable, Sequence

import msgspec

from tools_utilities.errors import DataNotFoundError, InputNeededError, UsageError
from tools_utilities.folder_columns import FolderColumns, find_folder_columns
from tools_utilities.group_listing import folder_of
from tools_utilities.manifest import Chunk, Manifest, Shard, load_manifest
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.scripts.dataset_discovery import (
    ShardGroup,
    find_groups,
    group_objects,
    list_group,
)
from tools_utilities.shard_processing import Input

UNKNOWN = 1
"""Stands for the count of a file that nobody has counted: there is work in it."""
GroupChooser = Callable[[Sequence[ShardGroup]], Sequence[ShardGroup]]


class WorkInput(msgspec.Struct, frozen=True, kw_only=True):
    """The shards of a job, and how their chunks are read."""

    manifest: Manifest
    source: Input
    sharded: bool
    """Whether it is in the documented layout, whose shards have folders for their claims."""


def find_input(
    store: ObjectStore,
    prefix: str,
    *,
    choose: GroupChooser | None = None,
    max_samples: int | None = None,
    token_dtype: str | None = None,
) -> WorkInput:
    """Return what there is to work on below a folder (or at a single file).

    `choose` picks among several groups of files. `max_samples` keeps the first so many samples, in
    shard order.

    Raises:
        DataNotFoundError: no data there.
        InputNeededError: several groups, and nobody chooses.
    """
    manifest = load_manifest(store, prefix, patient=True) if choose is None else None
    counted = manifest is not None
    columns: FolderColumns = ()
    if manifest is None:
        infos = _files(store, prefix, choose)
        manifest = _of_files(infos)
        columns = find_folder_columns((info.key for info in infos), prefix)
        prefix = ""
    found = WorkInput(
        manifest=manifest,
        source=Input(
            store=store,
            prefix=prefix,
            counted=counted,
            folder_columns=columns,
            token_dtype=token_dtype,
        ),
        sharded=all("/" in chunk.key for shard in manifest.shards for chunk in shard.chunks)
        and counted,
    )
    return found if max_samples is None else _first(found, max_samples)


def _files(store: ObjectStore, prefix: str, choose: GroupChooser | None) -> list[ObjectInfo]:
    single = group_objects(store, prefix.rstrip("/")) if prefix else []
    if len(single) == 1 and single[0].key == prefix.rstrip("/"):
        return single
    found = find_groups(store, prefix, min_objects=1, min_size_kb=0, probe=False)
    groups = [group for group in (*found.groups, *found.candidates) if group.format is not None]
    if choose is not None:
        groups = list(choose(groups))
    elif len([group for group in groups if not group.holdout]) == 1:
        groups = [group for group in groups if not group.holdout]
    if not groups and found.loose and choose is None:
        return list(found.loose)
    if not groups:
        raise DataNotFoundError(
            f"{store.spec.uri}/{prefix}: no data to work on",
            hint="Check the path, or make a sharded dataset with create_sharded_dataset.py.",
        )
    if len(groups) > 1 and choose is None:
        names = ", ".join(group.prefix for group in groups)
        raise InputNeededError(
            f"{store.spec.uri}/{prefix}: several groups of files: {names}",
            hint="Name one, or say which: `groups 1 and 2`, `everything`.",
            groups=[group.prefix for group in groups],
        )
    return [info for group in groups for info in list_group(store, group)]


def _of_files(infos: Sequence[ObjectInfo]) -> Manifest:
    shards = (
        Shard(
            shard_id=number,
            chunks=(
                Chunk(
                    key=info.key,
                    num_samples=UNKNOWN if info.size_bytes else 0,
                    num_bytes=info.size_bytes,
                    crc32c=info.crc32c,
                ),
            ),
        )
        for number, info in enumerate(infos)
    )
    return Manifest(prefix=folder_of(infos[0].key), shards=tuple(shards))


def _first(found: WorkInput, max_samples: int) -> WorkInput:
    """Return the same with its first `max_samples` samples alone; counts files until there are so many."""
    if max_samples < 1:
        raise UsageError(f"max_samples={max_samples}: at least 1")
    left = max_samples
    shards: list[Shard] = []
    cut: set[str] = set()
    for shard in found.manifest.shards:
        chunks: list[Chunk] = []
        for chunk in shard.chunks if left else ():
            count = chunk.num_samples if found.source.counted else _count(found.source, chunk, left)
            if count > left or not found.source.counted:
                cut.add(chunk.key)
            taken = min(count, left)
            left -= taken
            if taken:
                chunks.append(msgspec.structs.replace(chunk, num_samples=taken))
        if chunks:
            shards.append(msgspec.structs.replace(shard, chunks=tuple(chunks)))
    return msgspec.structs.replace(
        found,
        manifest=msgspec.structs.replace(found.manifest, shards=tuple(shards)),
        source=msgspec.structs.replace(found.source, cut=frozenset(cut), counted=True),
    )


def _count(source: Input, chunk: Chunk, enough: int) -> int:
    """Return a file's samples, counted as far as is needed."""
    key = source.prefix + chunk.key
    records = source.records(key, source.store.head(key))
    count = 0
    for block in records.blocks(0, None):
        count += len(block.records)
        if count >= enough:
            break
    return min(count, enough)
