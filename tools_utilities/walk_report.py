"""What a walk says to people: the depth listing, what was ignored and why, what was not looked at."""

import msgspec

from tools_utilities.data_objects import junk_reason
from tools_utilities.errors import DataNotFoundError
from tools_utilities.folder_walk import FolderListing, Walk, list_one
from tools_utilities.object_store import ObjectStore

_SHOWN = 5


class FolderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One folder of the depth listing."""

    prefix: str
    depth: int
    """Levels below the root."""
    num_objects: int
    """Data objects directly in it."""
    total_bytes: int
    complete: bool
    note: str = ""


def require_objects(store: ObjectStore, walk: Walk) -> None:
    """Raise DataNotFoundError when nothing lies below the root; the hint names what lies beside it."""
    listing = walk.folders[walk.root]
    if listing.folders or any(info.key != walk.root for info in listing.objects):
        return
    where = f"{store.spec.uri}/{walk.root}"
    if not walk.root:
        raise DataNotFoundError(f"{store.spec.uri}: the bucket is empty", phase="discovery")
    above = walk.root.rstrip("/").rpartition("/")[0]
    beside = list_one(store, f"{above}/" if above else "").folders
    names = ", ".join(beside[:_SHOWN]) + (", …" if len(beside) > _SHOWN else "")
    raise DataNotFoundError(
        f"{where}: nothing there",
        hint=f"Beside it: {names}"
        if beside
        else f"Check the prefix; {above or 'the bucket'} is empty too.",
        prefix=walk.root,
        phase="discovery",
    )


def ignored_in(listing: FolderListing) -> list[tuple[str, str]]:
    """Return (reason, key) of what is not data in a folder; a folder never looked into counts once."""
    found = [
        (reason, info.key)
        for info in listing.objects
        if (reason := listing.junk(info.key)) is not None
    ]
    for folder in listing.folders:
        reason = junk_reason(listing.name(folder) + "/x")
        if reason is not None:
            found.append((reason, folder))
    return found


def by_reason(ignored: dict[str, list[tuple[str, str]]]) -> dict[str, tuple[str, ...]]:
    """Return reason → the ignored keys, both sorted."""
    keys: dict[str, list[str]] = {}
    for found in ignored.values():
        for reason, key in found:
            keys.setdefault(reason, []).append(key)
    return {reason: tuple(sorted(named)) for reason, named in sorted(keys.items())}


def tree_of(walk: Walk) -> tuple[FolderSummary, ...]:
    """Return the depth listing, in prefix order."""
    return tuple(
        FolderSummary(
            prefix=listing.prefix,
            depth=listing.prefix[len(walk.root) :].count("/"),
            num_objects=len(listing.data),
            total_bytes=sum(info.size_bytes for info in listing.data),
            complete=listing.complete and not listing.truncated,
            note="access denied" if listing.denied is not None else "",
        )
        for listing in sorted(walk.folders.values(), key=lambda listing: listing.prefix)
    )


def notes_of(walk: Walk) -> tuple[str, ...]:
    """Return what was not looked at, and why."""
    notes = [
        f"{listing.prefix}: access denied"
        for listing in walk.folders.values()
        if listing.denied is not None
    ]
    notes += [
        f"{listing.prefix}: too many names to look at all"
        for listing in walk.folders.values()
        if not listing.complete and listing.denied is None
    ]
    if walk.not_visited:
        notes.append(f"{walk.not_visited:,} folders were not looked into; point closer")
    return tuple(notes)
