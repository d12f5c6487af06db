"""Amazon S3 and what speaks its language (MinIO, SeaweedFS, R2 … through an endpoint).

boto3 asks; obstore moves bodies, puts and lists, where it can carry the key and once boto3
has had an answer, so that a wrong region or endpoint meets the client that can be held to a host.
A process that was forked after obstore was loaded uses boto3 alone. Requests are sent once, but
listings and HEADs, which are tried up to 4 times.
"""

import time
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tools_utilities.errors import QuarkError, UsageError
from tools_utilities.object_store import (
    Body,
    Folder,
    ObjectInfo,
    ObjectStore,
    StoreScheme,
    StoreSpec,
)
from tools_utilities.object_stores._bodies import BytesBody
from tools_utilities.object_stores._failures import Asked, Failure, explain
from tools_utilities.object_stores._s3_bodies import (
    exact_get,
    fast_get,
    plain_etag,
    quoted_etag,
)
from tools_utilities.object_stores._s3_calls import S3Calls
from tools_utilities.object_stores._s3_clients import S3Clients
from tools_utilities.object_stores._s3_listing import (
    fast_run,
    folder_page,
    has_neighbours,
    in_byte_order,
    keys_page,
    passed_over,
)
from tools_utilities.object_stores._s3_uploads import PART_BYTES, abandoned, upload_in_parts

_BEYOND_THE_END = 416


class S3Store:
    """A bucket."""

    writable = True

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self.bucket = bucket_of(spec)
        self._calls = S3Calls(spec, self.bucket)
        payer = {"RequestPayer": "requester"} if spec.requester_pays else {}
        self._params: dict[str, Any] = {"Bucket": self.bucket, **payer}

    @property
    def endpoint_id(self) -> str:
        """Name the bucket and its endpoint, also one that the environment gives."""
        endpoint = self._calls.clients().endpoint
        host = urlsplit(endpoint).netloc if endpoint else ""
        return f"s3://{self.bucket}" + (f"@{host}" if host else "")

    @property
    def endpoint_url(self) -> str | None:
        """The endpoint in use when it is not Amazon's own."""
        return self._calls.clients().endpoint

    # Listing.

    @property
    def regions(self) -> tuple[str | None, str | None]:
        """The region that was asked for, and the one the bucket answered from."""
        return self._calls.regions()

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects page by page; what a store that is not Amazon's lists is put into order."""
        if self._calls.clients().endpoint is None:
            yield from self._in_store_order(prefix, start_after)
            return
        listings = [self._ordered(prefix, start_after)]
        if start_after:
            listings += [self._ordered(folder, "") for folder in passed_over(start_after, prefix)]
        last = start_after
        for info in merge(*listings, key=lambda one: one.key):
            if info.key > last:
                last = info.key
                yield info

    def _ordered(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        def neighbours(stem: str) -> bool:
            return self._calls.retried(
                "list", stem, lambda clients: has_neighbours(clients, self._params, stem)
            )

        raw = self._in_store_order(prefix, after.rstrip("/"))
        return in_byte_order(raw, prefix, neighbours)

    def _in_store_order(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        token: str | None = None
        exact_pages = 0
        while True:
            began, before = time.monotonic(), after
            for info in fast_run(
                self._calls.clients(), prefix, after=after, exact_pages=exact_pages
            ):
                if info is None:
                    return
                after, token = info.key, None
                yield info
            began = began if after == before else time.monotonic()
            page, token = self._page(prefix, after, token, began)
            exact_pages += 1
            for info in page:
                after = info.key
                yield info
            if token is None:
                return

    def _page(
        self, prefix: str, after: str, token: str | None, began: float
    ) -> tuple[tuple[ObjectInfo, ...], str | None]:
        return self._calls.retried(
            "list",
            prefix,
            lambda clients: keys_page(clients, self._params, prefix, after=after, token=token),
            since=began,
        )

    def list_folder(self, prefix: str, *, max_pages: int | None = None) -> Iterator[Folder]:
        """Yield pages of a delimiter listing, in the store's order."""
        return islice(self._folder_pages(prefix), max_pages)

    def _folder_pages(self, prefix: str) -> Iterator[Folder]:
        token: str | None = None
        page: Folder | None = None
        while True:
            page, token = self._folder_page(prefix, token, page)
            yield page
            if token is None:
                return

    def _folder_page(
        self, prefix: str, token: str | None, before: Folder | None
    ) -> tuple[Folder, str | None]:
        return self._calls.retried(
            "list",
            prefix,
            lambda clients: folder_page(clients, self._params, prefix, token, before),
        )

    # Reading.

    def head(self, key: str) -> ObjectInfo:
        """Return size, version and (where the store says) CRC-32C."""
        return self._calls.retried("head", key, lambda clients: self._head(clients, key))

    def _head(self, clients: S3Clients, key: str) -> ObjectInfo:
        found = clients.exact.head_object(Key=key, ChecksumMode="ENABLED", **self._params)
        whole = found.get("ChecksumType") != "COMPOSITE"
        return ObjectInfo(
            key=key,
            size_bytes=found["ContentLength"],
            etag=plain_etag(found.get("ETag")),
            crc32c=found.get("ChecksumCRC32C") if whole else None,
        )

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> Body:
        """Open a body."""
        if end is not None and end <= start:
            return self._nothing(key, if_etag)

        def ask(clients: S3Clients) -> Body:
            fast = clients.fast(key)
            if fast is not None:
                return fast_get(fast, key, start, end, if_etag)
            return exact_get(clients.exact, self._params, key, (start, end), if_etag)

        try:
            return self._calls.once("get", key, ask)
        except QuarkError as error:
            if error.detail.get("status") != _BEYOND_THE_END:
                raise
        return self._nothing(key, if_etag)

    def _nothing(self, key: str, if_etag: str | None) -> Body:
        # The range begins at or beyond the end; the head says of which version that holds.
        info = self.head(key)
        if if_etag is not None and info.etag != if_etag:
            asked = Asked("get", key, self.bucket, self.spec.uri)
            raise explain(Failure(412, "PreconditionFailed"), asked)
        return BytesBody(info, b"")

    # Writing.

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object in one request."""
        return self._put(key, data, "overwrite", {})

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        """Write an object from a file; larger than a part, it goes in parts."""
        if path.stat().st_size <= PART_BYTES:
            return self.put(key, path.read_bytes())
        return upload_in_parts(self._calls, self._params, key, path)

    def abandon_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> int:
        """Abort the unfinished multipart uploads of our keys below a prefix."""
        return abandoned(self._calls, self._params, prefix, is_ours)

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        """Create an object by `If-None-Match: *`."""
        return self._put(key, data, "create", {"IfNoneMatch": "*"})

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectInfo:
        """Replace one version by `If-Match`."""
        quoted = quoted_etag(etag)
        return self._put(key, data, {"e_tag": quoted}, {"IfMatch": quoted})

    def _put(self, key: str, data: bytes, mode: Any, condition: dict[str, str]) -> ObjectInfo:
        """Put under a condition, said in obstore's words and in boto3's (a tenth of its speed)."""

        def ask(clients: S3Clients) -> ObjectInfo:
            fast = clients.fast(key)
            if fast is None:
                return self._exact_put(clients, key, data, condition)
            import obstore

            done = obstore.put(fast, key, data, mode=mode, use_multipart=False)
            return ObjectInfo(key=key, size_bytes=len(data), etag=plain_etag(done["e_tag"]))

        return self._calls.once("put", key, ask, conditional=bool(condition))

    def _exact_put(
        self, clients: S3Clients, key: str, data: bytes, condition: dict[str, Any]
    ) -> ObjectInfo:
        done = clients.exact.put_object(Key=key, Body=data, **self._params, **condition)
        return ObjectInfo(key=key, size_bytes=len(data), etag=plain_etag(done.get("ETag")))

    def delete(self, key: str) -> None:
        """Remove an object."""
        self._calls.once(
            "delete", key, lambda clients: clients.exact.delete_object(Key=key, **self._params)
        )


def bucket_of(spec: StoreSpec) -> str:
    """Return the bucket of `scheme://bucket`; refuses a path behind it, and secrets in the URL."""
    scheme, _, bucket = spec.uri.partition("://")
    if not bucket or "/" in bucket:
        raise UsageError(
            f"{spec.uri}: not a bucket", hint=f"{scheme}://bucket, without a path behind it."
        )
    if spec.endpoint_url and "@" in urlsplit(spec.endpoint_url).netloc:
        raise UsageError(
            "the endpoint URL holds a name or password",
            hint="Credentials belong into a profile or the AWS_* variables.",
        )
    return bucket


class _S3Scheme:
    name = "s3"

    def open(self, spec: StoreSpec) -> ObjectStore:
        """Return the store of a bucket."""
        return S3Store(spec)


STORE_SCHEME: StoreScheme = _S3Scheme()
