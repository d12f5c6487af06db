"""The contract of an object store: list, head, get, put, and conditional put.

A store is made from a `StoreSpec`, which is plain data without secrets: it may be pickled, sent to
another process and written to a file. The live store is made lazily, once a process, and holds the
client. Keys are carried byte for byte: never normalised, URL-coded or treated as a pattern.
All calls block and may be used from several threads at once. `tools_utilities/object_stores/`
holds one scheme a file, each ending in `STORE_SCHEME`.
"""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tools_utilities.errors import UsageError
from tools_utilities.plugins import load_plugins


class StoreSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a store is and how to reach it; holds no secret."""

    uri: str
    """`scheme://bucket` without a closing slash; `file:///absolute/folder` for a local folder."""
    endpoint_url: str | None = None
    profile: str | None = None
    region: str | None = None
    anonymous: bool = False
    requester_pays: bool = False
    keys: str | None = None
    """What the names of the variables begin with that hold its keys (`…_ACCESS_KEY_ID`,
    `…_SECRET_ACCESS_KEY`, `…_SESSION_TOKEN`); None: boto3's own chain. Of S3 alone."""


class ObjectInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One object as its store lists it."""

    key: str
    size_bytes: int
    etag: str | None = None
    """The store's version token, without surrounding quotes; for local files inode, size, mtime."""
    crc32c: str | None = None
    """Base64 of the big-endian CRC-32C of the whole object, where the store or a manifest says."""


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a delimiter listing: the objects directly in a folder, and the folders below."""

    objects: tuple[ObjectInfo, ...]
    prefixes: tuple[str, ...]
    """Each ends in a slash and is relative to the bucket, as object keys are."""


class Body(Protocol):
    """The bytes of one get, arriving in pieces."""

    info: ObjectInfo
    """The object's *whole* size and the etag of the version being read."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield pieces in order; ends when the range is complete.

        Raises:
            StoreError: the connection broke, stalled or ended early; detail has `received_bytes`.
        """
        ...

    def close(self) -> None:
        """Give the connection back; safe to call twice."""
        ...


class ObjectStore(Protocol):
    """A bucket (or a folder standing for one). Missing keys raise ObjectNotFoundError.

    Permission, credentials, region and clock errors are AccessError; a bucket that does not exist
    is DataNotFoundError naming it; anything worth trying again is StoreError with
    `detail["transient"]` true. A store never retries a body by itself: `fetch.py` does.
    """

    spec: StoreSpec
    writable: bool

    @property
    def endpoint_id(self) -> str:
        """Names the store for cache entries and messages: `s3://bucket@endpoint`, no secrets.

        Sends nothing; S3 reads the AWS configuration for it.
        """
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with the literal `prefix`, in UTF-8 byte order.

        Directory markers (zero bytes, key ending in `/`) are yielded too; the caller decides.
        """
        ...

    def list_folder(self, prefix: str, *, max_pages: int | None = None) -> Iterator[Folder]:
        """Yield pages (≤ 1,000 entries) of what lies directly under `prefix` (ends in `/` or empty).

        Stops after `max_pages`; the caller that got that many knows there may be more.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Return what the store says of one object."""
        ...

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> Body:
        """Open the half-open byte range [start, end) of an object (`end=None`: to its end).

        A range beyond the end is cut, as Python slices are; an empty object gives an empty body. With `if_etag`, raises ObjectReplacedError when the
        object is another version now.
        """
        ...

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object whole, atomically, replacing what was there."""
        ...

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        """Write an object from a file, atomically, in bounded memory; large ones go in parts.

        When it fails, or is interrupted, no part stays behind and what was there before is untouched.
        """
        ...

    def abandon_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> int:
        """Remove the parts that killed uploads left for keys below `prefix`; returns how many uploads.

        Only keys that `is_ours` owns to. A store that keeps no such parts, or shows none, answers 0.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        """Create an object; raises ConditionFailedError when it exists."""
        ...

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectInfo:
        """Replace the version `etag`; raises ConditionFailedError when it is another one."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; a missing one is not an error."""
        ...


class StoreScheme(Protocol):
    """How one URI scheme is opened. `open` imports its SDK itself, so that nothing else pays."""

    name: str
    """The scheme before `://`."""

    def open(self, spec: StoreSpec) -> ObjectStore:
        """Return a store; makes no request."""
        ...


def read_object(store: ObjectStore, key: str, **span: Any) -> tuple[bytes, ObjectInfo]:
    """Return the bytes of a small object and what the store says of it; `start`, `end`: a part alone.

    Raises:
        ObjectNotFoundError: it is not there.
        StoreError: the connection broke, or the store is in trouble.
    """
    body = store.get(key, **span)
    try:
        return b"".join(body), body.info
    finally:
        body.close()


@cache
def store_schemes() -> dict[str, Any]:
    """Return every known scheme by name."""
    return load_plugins("tools_utilities.object_stores", "STORE_SCHEME")


def open_store(spec: StoreSpec) -> ObjectStore:
    """Return the store a spec names; makes no request.

    Raises:
        UsageError: nobody knows the scheme.
    """
    scheme = spec.uri.partition("://")[0]
    schemes = store_schemes()
    if scheme not in schemes:
        raise UsageError(
            f"{spec.uri}: unknown store {scheme!r}", hint=f"Known: {', '.join(sorted(schemes))}."
        )
    store: ObjectStore = schemes[scheme].open(spec)
    return store
