"""Objects on a web server, read-only: `https://host/folder` and keys below it, or one file's URL.

A web server has no listing: `list` finds the one object that the URL (or URL and prefix) names.
The version is the ETag, else the time of the last change with the size. A query in the URL is sent
with its own object alone and shown nowhere, as it may hold a signature.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit
from urllib.request import getproxies, proxy_bypass

from tools_utilities.errors import (
    AccessError,
    ObjectNotFoundError,
    ObjectReplacedError,
    QuarkError,
    StoreError,
    UsageError,
)
from tools_utilities.object_store import Body, Folder, ObjectInfo, ObjectStore, StoreSpec
from tools_utilities.object_stores._bodies import BytesBody
from tools_utilities.object_stores._failures import printable
from tools_utilities.object_stores._process import clients_lock, process_id
from tools_utilities.object_stores._s3_bodies import broken_body, plain_etag
from tools_utilities.object_stores._web_addresses import (
    RefusedAddressError,
    guard,
    guard_proxied,
    refuse_literal,
)

if TYPE_CHECKING:
    from urllib3 import BaseHTTPResponse, PoolManager

_PIECE_BYTES = 256 << 10
_CONNECT_SECONDS = 10
_READ_SECONDS = 10
_REDIRECTS = 5
_URL_SAFE = "/-._~!$&'()*+,;=:@"


class _WebBody:
    """Reads what is wanted of one response."""

    def __init__(
        self, response: "BaseHTTPResponse", info: ObjectInfo, skip: int, expected: int
    ) -> None:
        self.info = info
        self._response = response
        self._skip = skip
        """Bytes before the range, where the server sent the whole object."""
        self._expected = expected

    def __iter__(self) -> Iterator[bytes]:
        from urllib3.exceptions import HTTPError

        skip, received = self._skip, 0
        try:
            while received < self._expected:
                piece = self._response.read(_PIECE_BYTES, decode_content=False)
                if not piece:
                    reason = "it is shorter than announced"
                    raise broken_body(self.info, received, self._expected, reason)
                wanted = piece[skip : skip + self._expected - received]
                skip = max(0, skip - len(piece))
                received += len(wanted)
                if wanted:
                    yield wanted
        except HTTPError as error:
            reason = type(error).__name__
            raise broken_body(self.info, received, self._expected, reason) from error
        finally:
            self.close()

    def close(self) -> None:
        """Give the connection back, or drop it with what was not read of it."""
        # A connection with unread bytes cannot be used again; draining could take hours.
        self._response.close()
        self._response.release_conn()


class WebStore:
    """A web server's folder or file."""

    writable = False

    def __init__(self, spec: StoreSpec) -> None:
        parts = urlsplit(spec.uri)
        if not parts.hostname or parts.username or parts.password:
            raise UsageError(
                f"{parts.scheme}://{parts.hostname or ''}: not a plain URL",
                hint="https://host/path, without a name or password in it.",
            )
        self.spec = spec
        self._parts = parts
        self._host = parts.hostname
        self._name = unquote(parts.path.rpartition("/")[2])
        self.endpoint_id = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
        self._pool: tuple[int, PoolManager] | None = None

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield the one object that the URL and prefix name.

        Raises:
            UsageError: they name none; a web server cannot be listed.
        """
        key = prefix or self._name
        try:
            response = self._send("HEAD", key) if key and not key.endswith("/") else None
        except ObjectNotFoundError:
            if "." in key.rpartition("/")[2]:
                raise  # a file's name: it is missing, not a folder
            response = None
        kind = response.headers.get("content-type", "") if response else ""
        if response is None or (kind.startswith("text/html") and not key.endswith("html")):
            raise UsageError(
                f"{self.endpoint_id}/{printable(prefix)}: a web server's folder cannot be listed",
                hint="Give the URL of one file, or a store that lists: s3://, gs://, az://.",
            )
        if key > start_after:
            yield self._info(key, response)

    def list_folder(self, prefix: str, *, max_pages: int | None = None) -> Iterator[Folder]:
        """Refuse: a web server has no listing."""
        del max_pages
        raise UsageError(
            f"{self.endpoint_id}/{printable(prefix)}: a web server's folder cannot be listed",
            hint="Give the URL of one file, or a store that lists: s3://, gs://, az://.",
        )

    def head(self, key: str) -> ObjectInfo:
        """Return size and version."""
        return self._info(key, self._send("HEAD", key))

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> Body:
        """Open a body; a server that knows no ranges sends everything, and the rest is skipped."""
        if end is not None and end <= start:
            return self._checked(BytesBody(self.head(key), b""), if_etag)
        ranged = start > 0 or end is not None
        last = "" if end is None else str(end - 1)
        headers = {"Range": f"bytes={start}-{last}"} if ranged else {}
        response = self._send("GET", key, headers)
        if response.status == 416:  # noqa: PLR2004 - HTTP's number: the range begins at the end
            response.close()
            return self._checked(BytesBody(self.head(key), b""), if_etag)
        info = self._info(key, response)
        stop = info.size_bytes if end is None else min(end, info.size_bytes)
        skip = start if ranged and response.status != 206 else 0  # noqa: PLR2004 - HTTP's number: a part
        body = _WebBody(response, info, skip, max(0, stop - start))
        return self._checked(body, if_etag)

    def _checked(self, body: Body, if_etag: str | None) -> Body:
        if if_etag is not None and body.info.etag != if_etag:
            body.close()
            raise ObjectReplacedError(
                f"{self.endpoint_id}: {printable(body.info.key)} is no longer what was listed",
                hint="List again; somebody wrote it in the meantime.",
                key=body.info.key,
                status=412,
                phase="get",
            )
        return body

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Refuse."""
        raise self._read_only(key, data)

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        """Refuse."""
        raise self._read_only(key, path)

    def abandon_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> int:
        """Return 0: nothing is written here."""
        del prefix, is_ours
        return 0

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        """Refuse."""
        raise self._read_only(key, data)

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectInfo:
        """Refuse."""
        raise self._read_only(key, data, etag)

    def delete(self, key: str) -> None:
        """Refuse."""
        raise self._read_only(key)

    def _read_only(self, key: str, *_rest: object) -> UsageError:
        return UsageError(
            f"{self.endpoint_id}: {printable(key)} cannot be written: the web is read-only",
            hint="Write to s3://, gs://, az:// or a folder.",
        )

    # Requests.

    def _url(self, key: str) -> str:
        if key == self._name:
            return urlunsplit(self._parts._replace(fragment=""))
        # Bytes that are no UTF-8 are sent as they are.
        coded = quote(key.encode("utf-8", "surrogateescape"), safe=_URL_SAFE)
        path = f"{self._parts.path.rstrip('/')}/{coded}"
        return urlunsplit(self._parts._replace(path=path, query="", fragment=""))

    def _send(
        self, method: str, key: str, headers: dict[str, str] | None = None
    ) -> "BaseHTTPResponse":
        from urllib3.exceptions import HTTPError, NewConnectionError

        asked = {"Accept-Encoding": "identity", **(headers or {})}
        try:
            refuse_literal(self._host, self._host)
            response = self._client().request(
                method, self._url(key), headers=asked, preload_content=method == "HEAD"
            )
        except RefusedAddressError as error:
            raise AccessError(
                f"{self.endpoint_id}: {printable(key)}: not connected: {error}, "
                "an address inside a network that is not public",
                hint="If the host is your own, name it in NO_PROXY.",
                key=key,
                phase="connect",
            ) from None
        except HTTPError as error:
            reason = getattr(error, "reason", None) or error
            if "CERTIFICATE_VERIFY_FAILED" in str(reason):
                raise AccessError(
                    f"{self.endpoint_id}: {printable(key)}: the server's certificate is not trusted",
                    hint="SSL_CERT_FILE names the file of the authorities to trust.",
                    key=key,
                    phase="connect",
                ) from None
            raise StoreError(
                f"could not get {self.endpoint_id}: {printable(key)} ({type(reason).__name__})",
                hint="The server or the network is in trouble; try again.",
                key=key,
                phase="connect" if isinstance(reason, NewConnectionError) else method.lower(),
                transient=True,
            ) from None
        failure = self._failure(key, method, response.status)
        if failure is not None:
            response.close()
            raise failure
        return response

    def _client(self) -> "PoolManager":
        if self._pool is None or self._pool[0] != process_id():
            with clients_lock():
                self._pool = process_id(), self._make_pool()
        return self._pool[1]

    def _make_pool(self) -> "PoolManager":
        import urllib3

        options = {
            "timeout": urllib3.Timeout(connect=_CONNECT_SECONDS, read=_READ_SECONDS),
            "retries": urllib3.Retry(total=_REDIRECTS, connect=0, read=0, status=0, other=0),
            "maxsize": 32,
        }
        proxy = getproxies().get(self._parts.scheme)
        if proxy and not proxy_bypass(self._host):
            proxied = urllib3.ProxyManager(proxy, **options)  # type: ignore[arg-type]  # one dict for both
            return guard_proxied(proxied, self._host)
        pool = urllib3.PoolManager(**options)  # type: ignore[arg-type]  # one dict for both
        return guard(pool, self._host)

    def _failure(self, key: str, method: str, status: int) -> QuarkError | None:
        if status in {200, 206, 416}:
            return None
        target = f"{self.endpoint_id}: {printable(key)}"
        detail: dict[str, Any] = {"key": key, "status": status, "phase": method.lower()}
        if status in {404, 410}:
            return ObjectNotFoundError(f"{target} does not exist", **detail)
        if status in {401, 403}:
            hint = "Check whether the URL needs a login, or has expired."
            return AccessError(f"{target}: access denied ({status})", hint=hint, **detail)
        transient = status in {408, 429} or status >= 500  # noqa: PLR2004 - HTTP's classes
        return StoreError(f"{target}: the server answered {status}", transient=transient, **detail)

    def _info(self, key: str, response: "BaseHTTPResponse") -> ObjectInfo:
        whole = response.headers.get("content-range", "").rpartition("/")[2]
        whole = whole or response.headers.get("content-length", "")
        if not whole.isdigit():
            raise StoreError(
                f"{self.endpoint_id}: {printable(key)}: the server does not tell its size",
                hint="Download it first, then read the local file.",
                key=key,
                phase="head",
            )
        etag = plain_etag(response.headers.get("etag"))
        changed = response.headers.get("last-modified")
        if etag is None and changed:
            etag = f"{changed}; {whole}"
        return ObjectInfo(key=key, size_bytes=int(whole), etag=etag)


@dataclass
class WebScheme:
    """http or https."""

    name: str

    def open(self, spec: StoreSpec) -> ObjectStore:
        """Return the store of a URL."""
        return WebStore(spec)
