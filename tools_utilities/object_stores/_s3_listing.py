"""Listings of S3: boto3's exact pages, obstore's fast ones where those tell the whole key.

obstore takes prefixes of whole path segments only, drops slashes at either end of a key, and gives
up a listing that holds one key it cannot carry. Whatever may be one of these ends a fast run; boto3
lists the page from there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from tools_utilities.errors import StoreError
from tools_utilities.object_store import Folder, ObjectInfo
from tools_utilities.object_stores import _s3_clients
from tools_utilities.object_stores._deadline import within
from tools_utilities.object_stores._failures import printable
from tools_utilities.object_stores._s3_bodies import plain_etag
from tools_utilities.object_stores._s3_calls import WHOLE_ANSWER
from tools_utilities.object_stores._s3_clients import S3Clients, obstore_carries

if TYPE_CHECKING:
    from obstore.store import S3Store

PAGE_KEYS = 1000
HOLD_KEYS = 2000
_FEW_KEYS = 10
# After so many exact pages in one listing, odd keys are the rule: fast runs cost more than they save.
_FAST_RUNS = 4


def keys_page(
    clients: S3Clients, params: Mapping[str, Any], prefix: str, *, after: str, token: str | None
) -> tuple[tuple[ObjectInfo, ...], str | None]:
    """Return one page in the store's order, and the token of the next page or None."""
    place: dict[str, Any] = {}
    if token is not None:
        place["ContinuationToken"] = token
    elif after:
        place["StartAfter"] = after
    page = clients.exact.list_objects_v2(Prefix=prefix, MaxKeys=PAGE_KEYS, **params, **place)
    infos = tuple(_info(entry) for entry in page.get("Contents", ()))
    if after and infos and infos[-1].key == after:
        raise repeated_page(prefix)
    return infos, page.get("NextContinuationToken") if page.get("IsTruncated") else None


def repeated_page(prefix: str) -> StoreError:
    """Return the error of a store that answers with a page it has sent; asked again, it may go on."""
    return StoreError(
        f"the listing of {printable(prefix)!r} does not get on: the store sends the same page again",
        hint="The store or a proxy before it is in trouble; try again.",
        key=prefix,
        phase="list",
        transient=True,
    )


def folder_page(
    clients: S3Clients,
    params: Mapping[str, Any],
    prefix: str,
    token: str | None,
    before: Folder | None,
) -> tuple[Folder, str | None]:
    """Return one page of a delimiter listing, and the token of the next page or None.

    Raises:
        StoreError: it is the page `before` once more.
    """
    place: dict[str, Any] = {} if token is None else {"ContinuationToken": token}
    page = clients.exact.list_objects_v2(
        Prefix=prefix, Delimiter="/", MaxKeys=PAGE_KEYS, **params, **place
    )
    folder = Folder(
        objects=tuple(_info(entry) for entry in page.get("Contents", ())),
        prefixes=tuple(entry["Prefix"] for entry in page.get("CommonPrefixes", ())),
    )
    if folder == before:
        raise repeated_page(prefix)
    return folder, page.get("NextContinuationToken") if page.get("IsTruncated") else None


def _info(entry: Mapping[str, Any]) -> ObjectInfo:
    return ObjectInfo(
        key=entry["Key"], size_bytes=entry["Size"], etag=plain_etag(entry.get("ETag"))
    )


def fast_run(
    clients: S3Clients, prefix: str, *, after: str, exact_pages: int
) -> Iterator[ObjectInfo | None]:
    """Yield objects in the store's order as long as obstore tells them exactly.

    None at the end says that the listing is complete; without it, boto3 goes on from the last key.
    """
    folder, offset = literal_start(prefix)
    if exact_pages > _FAST_RUNS or _may_lose_a_slash(prefix, after):
        return
    if offset is None:
        return
    start = after or offset
    if not all(obstore_carries(path) for path in (folder, start) if path):
        return
    store = clients.fast("-", listing=True)
    if store is not None:
        for info in _certain(_listed(store, folder, start), prefix):
            clients.proven = True
            yield info


def _certain(listed: Iterable[ObjectInfo | None], prefix: str) -> Iterator[ObjectInfo | None]:
    """Pass on objects while their keys are beyond doubt; one is held back to see its successor."""
    held: ObjectInfo | None = None
    for info in listed:
        if info is None:
            return  # what is held may be what obstore stumbled over next to
        beyond = info.key > prefix and not info.key.startswith(prefix)
        marker = held is not None and info.key.startswith(held.key + "/")
        if held is not None and not marker:
            yield held
            held = None
        if beyond:
            yield None
            return
        # Without bytes it may be a folder's marker, `a/` told as `a`; so may what its keys follow.
        if marker or not info.size_bytes or not info.key.startswith(prefix):
            return
        held = info
    if held is not None:
        yield held
    yield None


def literal_start(prefix: str) -> tuple[str, str | None]:
    """Return the folder to list and the key to begin after, for a literal prefix."""
    folder, _, name = prefix.rpartition("/")
    if not name:
        return folder, ""
    # The prefix itself may be a key.
    below = _char_below(prefix[-1])
    return folder, prefix[:-1] + below if below else None


def _char_below(char: str) -> str:
    """Return what sorts just below a character: its predecessor with the largest one behind."""
    below = chr(ord(char) - 1) if char else ""
    return below + "\U0010fffd" if below.isprintable() and below else ""


def _may_lose_a_slash(prefix: str, after: str) -> bool:
    # Keys that begin with a slash sort before "0" and look as if they did not.
    return prefix.startswith("/") or (not prefix and after < "0")


def _listed(store: "S3Store", folder: str, after: str) -> Iterator[ObjectInfo | None]:
    """Yield what obstore lists; None when it fails (boto3 asks again, and names the reason)."""
    import obstore
    from obstore.exceptions import BaseError

    pages = iter(
        obstore.list(store, prefix=folder or None, offset=after or None, chunk_size=PAGE_KEYS)
    )
    seconds = _s3_clients.READ_SECONDS * WHOLE_ANSWER
    first = ""
    try:
        while page := within(seconds, lambda: next(pages, None)):
            if page[0]["path"] == first:  # the same page again; boto3 asks on from its last key
                yield None
                return
            first = page[0]["path"]
            for entry in page:
                yield ObjectInfo(
                    key=entry["path"], size_bytes=entry["size"], etag=plain_etag(entry["e_tag"])
                )
    except (BaseError, OSError, ValueError):
        yield None


class _Run:
    """The keys from `first` on that lie in the folder `stem/` or sort beside it; then `left`."""

    def __init__(self, stem: str, first: ObjectInfo, rest: Iterator[ObjectInfo]) -> None:
        self._stem = stem
        self._rest = rest
        self._first: ObjectInfo | None = first
        self.left: ObjectInfo | None = None

    def __iter__(self) -> Iterator[ObjectInfo]:
        return self

    def __next__(self) -> ObjectInfo:
        info, self._first = self._first or self.left or next(self._rest, None), None
        self.left = None
        if info is None or not _is_beside(info.key, self._stem, "/"):
            self.left = info
            raise StopIteration
        return info


def _is_beside(key: str, stem: str, last: str) -> bool:
    """Say whether a key goes on after `stem` with a character up to `last`."""
    return key.startswith(stem) and "" < key[len(stem) : len(stem) + 1] <= last


def in_byte_order(
    infos: Iterable[ObjectInfo],
    prefix: str,
    has_neighbours: Callable[[str], bool],
    *,
    hold_keys: int = HOLD_KEYS,
) -> Iterator[ObjectInfo]:
    """Put the listing of a store that may sort folder by folder (SeaweedFS) into byte order of keys.

    Such a store lists `a/x` before `a-b`; `a/x` after `a-b` proves byte order. Objects directly under
    the prefix pass at once. Of a folder, `hold_keys` are held; a larger one passes too, once
    `has_neighbours` (one small request) says that no name like `a-b` goes before it. Otherwise it is
    held whole.
    """
    rest = iter(infos)
    info = next(rest, None)
    previous = ""
    while info is not None:
        name, slash, _ = info.key[len(prefix) :].partition("/")
        stem = prefix + name
        if not slash or _is_beside(previous, stem, "."):
            yield info
            if slash:
                yield from rest
                return
            previous, info = info.key, next(rest, None)
            continue
        run = _Run(stem, info, rest)
        held = list(islice(run, hold_keys))
        if len(held) == hold_keys and not has_neighbours(stem):
            below = chain(held, run)
            yield from in_byte_order(below, stem + "/", has_neighbours, hold_keys=hold_keys)
        else:
            yield from sorted(chain(held, run), key=lambda one: one.key)
        previous, info = stem + "/", run.left


def has_neighbours(clients: S3Clients, params: Mapping[str, Any], stem: str) -> bool:
    """Say whether names go on after `stem` with what sorts before a slash."""
    page = clients.exact.list_objects_v2(Prefix=stem, Delimiter="/", MaxKeys=_FEW_KEYS, **params)
    names = [entry["Key"] for entry in page.get("Contents", ())]
    names += [entry["Prefix"] for entry in page.get("CommonPrefixes", ())]
    return any(_is_beside(name, stem, ".") for name in names)


def passed_over(after: str, prefix: str) -> list[str]:
    """Return the folders that a folder-wise store may pass over when it starts after a key.

    To it, `a/` is before `a-b`; and a start that is a folder's name skips that folder.
    """
    begins = [after[:place] for place, char in enumerate(after) if char < "/"]
    folders = {begin.rstrip("/") + "/" for begin in (*begins, after) if begin.strip("/")}
    return sorted(folder for folder in folders if folder.startswith(prefix))
