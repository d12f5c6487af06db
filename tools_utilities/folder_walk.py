"""Looks through the folders below a prefix with few requests: one page a folder, then jumps.

A folder of a million shards costs two requests: a page of the first thousand, and a jump beyond
the last number that the series can have, to see what else lies there. What was jumped over is
remembered as truncated; `list_group` lists it in full when it is chosen. Folders are listed in
parallel, level by level.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import msgspec

from tools_utilities.data_objects import (
    folder_stem,
    hive_stem,
    is_junk_folder,
    junk_reason,
    parse_name,
)
from tools_utilities.errors import AccessError
from tools_utilities.object_store import ObjectInfo, ObjectStore

PAGE = 1000
MAX_JUMPS = 20
"""Requests spent in one folder after its first page."""
FOLDER_PAGES = 5
"""Pages of a folder that mostly holds folders."""
MAX_FOLDERS = 4096
MAX_SIBLINGS = 64
"""Shard or partition folders of one series that are all looked into; of more, a sample."""
MAX_PARTITION_LEVELS = 4
_THREADS = 16
_LAST = "\U0010ffff"  # sorts after every character that a key can hold


class FolderListing(msgspec.Struct, frozen=True, kw_only=True):
    """What lies directly in one folder, as far as it was looked at."""

    prefix: str
    objects: tuple[ObjectInfo, ...] = ()
    """With those that are not data."""
    folders: tuple[str, ...] = ()
    truncated: frozenset[str] = frozenset()
    """Stems of series that hold more than was listed."""
    complete: bool = True
    """False: what comes after the last key was not looked at."""
    denied: AccessError | None = None

    @property
    def data(self) -> list[ObjectInfo]:
        """The objects that may be data."""
        return [info for info in self.objects if self.junk(info.key) is None]

    def junk(self, key: str) -> str | None:
        """Return why a key of this folder is not data, or None."""
        return junk_reason(key[len(self.prefix) :])

    def name(self, folder: str) -> str:
        """Return the bare name of one of its folders."""
        return folder[len(self.prefix) : -1]


class Walk(msgspec.Struct, frozen=True, kw_only=True):
    """All folders that were looked into."""

    root: str
    folders: dict[str, FolderListing]
    """By prefix, in breadth-first order."""
    not_visited: int
    """Folders within the depth that were left out because there are too many."""
    sampled: frozenset[str]
    """Folders of which only some shard or partition folders were looked into."""


def walk_folders(store: ObjectStore, root: str, depth: int, *, in_full: bool = False) -> Walk:
    """List the folders from `root` (ends in `/`, or empty) down to `depth` levels below it.

    Shard and partition folders (`shard_003/`, `date=2019-01-01/`) belong to their parent and are
    looked into below the depth too. With `in_full`, every folder is listed to its end.

    Raises:
        AccessError: the root may not be listed.
        DataNotFoundError: no such bucket.
    """
    found: dict[str, FolderListing] = {}
    sampled: set[str] = set()
    not_visited = 0
    level = [root]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="walk") as pool:
        for _ in range(depth + 1 + MAX_PARTITION_LEVELS):
            room = MAX_FOLDERS - len(found)
            not_visited += max(0, len(level) - room)
            listings = pool.map(
                lambda prefix: list_one(store, prefix, in_full=in_full), level[:room]
            )
            level = []
            for listing in listings:
                found[listing.prefix] = listing
                below, some = _children(listing, root, depth, in_full=in_full)
                level.extend(below)
                if some:
                    sampled.add(listing.prefix)
            if not level:
                break
    denied = found[root].denied
    if denied is not None:
        raise denied
    return Walk(root=root, folders=found, not_visited=not_visited, sampled=frozenset(sampled))


def _children(
    listing: FolderListing, root: str, depth: int, *, in_full: bool
) -> tuple[list[str], bool]:
    """Return the folders to look into next, and whether some of a series were left out."""
    at = listing.prefix[len(root) :].count("/")
    chosen: list[str] = []
    series: dict[str, list[str]] = {}
    for folder in listing.folders:
        name = listing.name(folder)
        stem = folder_stem(name)
        if is_junk_folder(name) or not name:
            continue
        if stem is not None and at <= depth + (MAX_PARTITION_LEVELS - 1 if hive_stem(name) else 0):
            series.setdefault(stem, []).append(folder)
        elif at < depth:
            chosen.append(folder)
    some = False
    for siblings in series.values():
        kept = siblings if in_full else _sample(siblings)
        some = some or len(kept) < len(siblings)
        chosen.extend(kept)
    return chosen, some


def _sample(siblings: list[str]) -> list[str]:
    if len(siblings) <= MAX_SIBLINGS:
        return siblings
    step = len(siblings) / MAX_SIBLINGS
    return [siblings[int(i * step)] for i in range(MAX_SIBLINGS - 1)] + siblings[-1:]


def list_one(store: ObjectStore, prefix: str, *, in_full: bool = False) -> FolderListing:
    """List one folder; a folder that may not be listed comes back with `denied`."""
    objects: list[ObjectInfo] = []
    folders: list[str] = []
    entries = 0
    try:
        for page in store.list_folder(prefix, max_pages=None if in_full else FOLDER_PAGES):
            objects.extend(page.objects)
            folders.extend(page.prefixes)
            entries = len(page.objects) + len(page.prefixes)
            # Unlike folders are all looked into; objects, and folders of one series, are jumped over.
            unlike = bool(page.prefixes) and _stem_of(prefix, page.prefixes[-1]) is None
            if not in_full and not (unlike and 2 * len(page.prefixes) > entries):
                break
        more = entries >= PAGE and not in_full
        truncated, complete = (
            _look_beyond(store, prefix, objects, folders) if more else (set(), True)
        )
    except AccessError as error:
        return FolderListing(prefix=prefix, denied=error, complete=False)
    return FolderListing(
        prefix=prefix,
        objects=tuple(objects),
        folders=tuple(folders),
        truncated=frozenset(truncated),
        complete=complete,
    )


def _look_beyond(
    store: ObjectStore, prefix: str, objects: list[ObjectInfo], folders: list[str]
) -> tuple[set[str], bool]:
    """Extend a full first page by jumps; return the stems jumped over, and whether the end was seen."""
    truncated: set[str] = set()
    page_start = 0
    last = max(objects[-1].key if objects else "", folders[-1] if folders else "")
    for _ in range(MAX_JUMPS):
        stem = _stem_of(prefix, last)
        filled = sum(_stem_of(prefix, info.key) == stem for info in objects[page_start:])
        start_after = last
        if last.endswith("/"):
            start_after, jumped = _beyond_folder(prefix, last, stem)
        elif jumped := stem is not None and filled >= PAGE // 2:
            # After `9`, no number of the series can follow.
            start_after = f"{prefix}{stem}9{_LAST}"
        if jumped and stem is not None:
            truncated.add(stem)
        page_start = len(objects)
        seen = _take(
            prefix, islice(store.list(prefix, start_after=start_after), PAGE), objects, folders
        )
        if seen is None:
            return truncated, True
        last = seen
    return truncated, False


def _stem_of(prefix: str, key: str) -> str | None:
    name = key[len(prefix) :]
    if name.endswith("/"):
        return folder_stem(name[:-1])
    parsed = parse_name(name)
    return parsed.stem if parsed is not None else None


def _beyond_folder(prefix: str, folder: str, stem: str | None) -> tuple[str, bool]:
    if stem is None:
        return folder + _LAST, False
    return prefix + stem + ("" if stem.endswith("=") else "9") + _LAST, True


def _take(
    prefix: str, infos: Iterable[ObjectInfo], objects: list[ObjectInfo], folders: list[str]
) -> str | None:
    """Add what lies directly in the folder, up to the first key of a folder; return the last entry."""
    last = None
    for info in infos:
        name, slash, _ = info.key[len(prefix) :].partition("/")
        if slash:
            last = f"{prefix}{name}/"
            folders.append(last)
            return last
        objects.append(info)
        last = info.key
    return last
