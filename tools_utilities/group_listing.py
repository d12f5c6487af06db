"""Lists the data objects of a prefix: everything below it, one series of it, or its loose names."""

from array import array
from collections.abc import Iterable, Iterator

from tools_utilities.data_objects import LOOSE, assign_stems, in_series, junk_reason, kind_of
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.packed_objects import PackedObjects
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
    return list(pack_members(store, prefix, stem, format_name))


def pack_members(
    store: ObjectStore, prefix: str, stem: str | None, format_name: str | None
) -> PackedObjects:
    """Return the same as `list_members`, in little memory however many there are."""
    if stem is None:
        found: Iterable[ObjectInfo] = _below(store, prefix)
    elif stem == LOOSE:
        found = _loose(store, folder_of(prefix), format_name)
    else:
        found = _series(store, folder_of(prefix), stem)
    codes: dict[str, int] = {}
    kinds, exact = array("I"), list[ObjectInfo]()

    def noted() -> Iterator[ObjectInfo]:
        for info in found:
            kinds.append(codes.setdefault(kind_of(info.key), len(codes)))
            if info.key == prefix:
                exact.append(info)
            yield info

    packed = PackedObjects(noted())
    if stem is None and exact and kind_of(prefix) in shard_formats():
        packed, kinds = PackedObjects(exact), array("I", [codes[kind_of(prefix)]])
    wanted = {format_name} if format_name else set(shard_formats()) & codes.keys()
    if wanted:
        keep = {code for kind, code in codes.items() if kind in wanted}
        if not keep.issuperset(kinds):
            both = zip(packed, kinds, strict=True)
            packed = PackedObjects(info for info, kind in both if kind in keep)
    return _in_order(packed)


def _in_order(packed: PackedObjects) -> PackedObjects:
    """Return objects by key; stores list them so, nearly always."""
    before = b""
    for info in packed:
        key = _byte_order(info)
        if key < before:
            return PackedObjects(sorted(packed, key=_byte_order))
        before = key
    return packed


def _below(store: ObjectStore, prefix: str) -> Iterator[ObjectInfo]:
    start = len(folder_of(prefix))
    return (info for info in store.list(prefix) if junk_reason(info.key[start:]) is None)


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
