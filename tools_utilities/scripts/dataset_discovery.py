"""Finds the shard groups below a prefix: listing → candidates → scored groups.

python tools_utilities/scripts/dataset_discovery.py --bucket B --root P --auto-shards --human
"""

import msgspec

from tools_utilities.data_objects import LOOSE, assign_stems, in_series, junk_reason, kind_of
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.shard_format import shard_formats


class ShardGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Shards of one split of a dataset, as the store lists them."""

    prefix: str
    """Its folder when that holds one group, else the literal prefix before the shard number."""
    stem: str
    """Names are this, then a number; `*`: the names of the folder that belong to no series."""
    split: str | None
    """train, val or test, where a name says so."""
    num_objects: int
    total_bytes: int
    median_bytes: float
    format: str | None
    """None: no format reads these names."""
    score: float
    """In [0, 1]; hold-outs score below every other group, groups that fail decoding below those."""
    factors: dict[str, float]
    """What the score is made of, each in [0, 1]."""
    reasons: tuple[str, ...]
    """Why it scored so, and why it does not qualify; text for people."""
    ignored: int
    """Objects of its folder that are not data."""
    qualifies: bool
    """Enough objects of enough size, or a manifest."""
    complete_listing: bool
    """False: the store holds more of it than was listed; counts and bytes are lower bounds."""
    objects_shown: str
    """The count for people: `8`, or `≥ 1,000, not all listed`."""
    holdout: bool
    """Offered as validation, never chosen for training."""
    decodes: bool | None = None
    """False: records of a few shards could not be decoded; None: not tried."""
    missing: tuple[int, ...] = ()
    """Shard numbers that the numbering leaves out (the first 100)."""
    has_manifest: bool = False

    @property
    def folder(self) -> str:
        """The folder that holds the shards; ends in `/`, or is empty for the bucket itself."""
        return _folder_of(self.prefix)

    @property
    def is_choice(self) -> bool:
        """Whether it counts when choosing what to train on."""
        return self.qualifies and not self.holdout and self.decodes is not False


def _folder_of(prefix: str) -> str:
    return prefix[: prefix.rfind("/") + 1]


def _byte_order(info: ObjectInfo) -> bytes:
    return info.key.encode("utf-8", "surrogateescape")


def group_objects(
    store: ObjectStore, prefix: str, stem: str | None = None, *, format_name: str | None = None
) -> list[ObjectInfo]:
    """Return the data objects of a prefix in key byte order; what is not data is left out.

    A prefix ending in `/` is a folder: everything below it. Any other is a literal key prefix; one
    that is itself the key of a readable object means that object alone. With `stem` (a
    ShardGroup's), only the shards of that series in the prefix's folder. Where some names have a
    format that is known, names of none are left out; `format_name` keeps only that format.
    """
    if stem is None:
        found = _below(store, prefix)
    elif stem == LOOSE:
        found = _loose(store, _folder_of(prefix), format_name)
    else:
        found = _series(store, _folder_of(prefix), stem)
    kinds = {info.key: kind_of(info.key) for info in found}
    wanted = {format_name} if format_name else set(shard_formats()) & set(kinds.values())
    if wanted:
        found = [info for info in found if kinds[info.key] in wanted]
    return sorted(found, key=_byte_order)


def list_group(store: ObjectStore, group: ShardGroup) -> list[ObjectInfo]:
    """Return all data objects of a group, listed in full, in key byte order."""
    return group_objects(store, group.prefix, group.stem, format_name=group.format)


def _below(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    start = len(_folder_of(prefix))
    found = [info for info in store.list(prefix) if junk_reason(info.key[start:]) is None]
    exact = [info for info in found if info.key == prefix]
    return exact if exact and kind_of(prefix) in shard_formats() else found


def _series(store: ObjectStore, folder: str, stem: str) -> list[ObjectInfo]:
    start = len(folder)
    members = [
        info
        for info in store.list(folder + stem)
        if in_series(info.key[start:], stem) and junk_reason(info.key[start:]) is None
    ]
    # Files win over shard folders of the same stem: one group never counts both.
    return [info for info in members if "/" not in info.key[start:]] or members


def _loose(store: ObjectStore, folder: str, format_name: str | None) -> list[ObjectInfo]:
    start = len(folder)
    direct = [
        info
        for page in store.list_folder(folder)
        for info in page.objects
        if junk_reason(info.key[start:]) is None
    ]
    if format_name:
        direct = [info for info in direct if kind_of(info.key) == format_name]
    stems = assign_stems(info.key[start:] for info in direct)
    return [info for info in direct if stems[info.key[start:]] == LOOSE]
