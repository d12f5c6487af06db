"""Lists the data objects of a prefix: everything below it, one series of it, or its loose names."""

from tools_utilities.data_objects import LOOSE, assign_stems, in_series, junk_reason, kind_of
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.shard_format import shard_formats


def folder_of(prefix: str) -> str:
    """Return the folder a prefix names or lies in; ends in `/`, or is empty."""
    return prefix[: prefix.rfind("/") + 1]


def _byte_order(info: ObjectInfo) -> bytes:
    return info.key.encode("utf-8", "surrogateescape")


def list_members(
    store: ObjectStore, prefix: str, stem: str | None, format_name: str | None
) -> list[ObjectInfo]:
    """Return data objects in key byte order; see `group_objects`, which is this."""
    if stem is None:
        found = _below(store, prefix)
    elif stem == LOOSE:
        found = _loose(store, folder_of(prefix), format_name)
    else:
        found = _series(store, folder_of(prefix), stem)
    kinds = {info.key: kind_of(info.key) for info in found}
    wanted = {format_name} if format_name else set(shard_formats()) & set(kinds.values())
    if wanted:
        found = [info for info in found if kinds[info.key] in wanted]
    return sorted(found, key=_byte_order)


def _below(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    start = len(folder_of(prefix))
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
