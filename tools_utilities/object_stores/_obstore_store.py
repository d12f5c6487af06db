"""A store that obstore carries alone: Google Cloud Storage and Azure.

Without an exact side, a key that obstore cannot carry is refused by name, and a forked process is
refused whole (obstore would hang in it). Folder markers are told from empty objects by one HEAD;
Azure's listing of a folder leaves out the folder's own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tools_utilities.errors import AccessError, QuarkError, StoreError, UsageError
from tools_utilities.object_store import Body, Folder, ObjectInfo, StoreSpec
from tools_utilities.object_stores._bodies import BytesBody, folder_pages
from tools_utilities.object_stores._failures import Asked, Failure, explain
from tools_utilities.object_stores._process import is_forked, process_id
from tools_utilities.object_stores._s3_bodies import fast_get, plain_etag, quoted_etag
from tools_utilities.object_stores._s3_clients import (
    CONNECT_SECONDS,
    READ_SECONDS,
    obstore_carries,
)
from tools_utilities.object_stores._s3_failures import of_obstore_error
from tools_utilities.object_stores._s3_listing import literal_start, repeated_page
from tools_utilities.object_stores._web_addresses import names_loopback

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Client

_Result = TypeVar("_Result")
_BEYOND_THE_END = 416
_GENERATIONS_KEPT = 4096
_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 3
_PERMISSION = {
    "list": "the right to list",
    "head": "the right to read",
    "get": "the right to read",
    "put": "the right to write",
    "delete": "the right to delete",
}


_MOST_OLD_KEYS = 10_000
"""That a listing may repeat, as after a page that came twice."""


@dataclass(frozen=True)
class Provider:
    """What differs between the two."""

    name: str
    make: Callable[[StoreSpec, str], "Client"]
    by_generation: bool
    """Conditional puts compare the generation, which only a HEAD tells."""
    sign_in: str
    """What to do when there are no credentials."""
    hosts: tuple[str, ...]
    """Its own domains: where its tokens are for."""
    own_variable: str
    """The provider's variable for an endpoint of one's own."""
    signs: Callable[[], bool] = lambda: False
    """Whether the credentials here are a key that signs requests, and is never sent."""


def http_options(spec: StoreSpec) -> Any:
    """Return obstore's client options."""
    return {
        "allow_http": (spec.endpoint_url or "").startswith("http://"),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=READ_SECONDS),
        "timeout": timedelta(days=1),
    }


def refuse_strangers(spec: StoreSpec, provider: Provider) -> None:
    """Refuse an endpoint that would be handed a token: whoever gets one can use it anywhere.

    The endpoint may stand in a file of somebody else's project or run. The provider's own hosts get
    tokens, over TLS, and this machine; what a person sets in the environment is not seen here.

    Raises:
        AccessError: it is another host.
    """
    parts = urlsplit(spec.endpoint_url or "")
    host = (parts.hostname or "").lower()
    if not host or spec.anonymous or names_loopback(host):
        return
    own = any(host == one or host.endswith(f".{one}") for one in provider.hosts)
    if (own and parts.scheme == "https") or provider.signs():
        return
    raise AccessError(
        f"{spec.uri}: a token of {provider.name} is not sent to {host}",
        hint=f"Say anonymous=true where it needs none; if the host is your own, set {provider.own_variable}"
        " in its place.",
        phase="open",
    )


class ObstoreStore:
    """A bucket or container."""

    def __init__(self, spec: StoreSpec, provider: Provider) -> None:
        self.spec = spec
        self.writable = not spec.anonymous
        self.endpoint_id = spec.uri
        if spec.endpoint_url:
            self.endpoint_id += "@" + spec.endpoint_url.partition("://")[2]
        self._provider = provider
        self._bucket = spec.uri.partition("://")[2]
        self._client: tuple[int, Client] | None = None
        self._generations: dict[tuple[str, str | None], str] = {}

    # Listing.

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """Yield objects in the store's order, which is that of their keys' bytes."""
        import obstore

        folder, start = literal_start(prefix)
        pages = self._call(
            "list",
            prefix,
            lambda client: obstore.list(
                client, prefix=folder or None, offset=max(start_after, start or "") or None
            ),
        )
        last, num_old = start_after, 0
        while page := self._call("list", prefix, lambda _: next(pages, None)):
            for entry in page:
                info = self._listed(entry)
                if info.key.startswith(prefix) and info.key > last:
                    last, num_old = info.key, 0
                    yield info
                elif info.key <= last:
                    num_old += 1
                    if num_old > _MOST_OLD_KEYS:
                        raise repeated_page(prefix)
                elif info.key > prefix and not info.key.startswith(prefix):
                    return

    def _listed(self, entry: Any) -> ObjectInfo:
        key, size = entry["path"], entry["size"]
        if not size and self._is_marker(key):
            key += "/"  # obstore tells the folder marker `a/` as `a`
        return ObjectInfo(key=key, size_bytes=size, etag=plain_etag(entry["e_tag"]))

    def _is_marker(self, key: str) -> bool:
        try:
            self.head(key)
        except FileNotFoundError:
            return True
        return False

    def list_folder(self, prefix: str, *, max_pages: int | None = None) -> Iterator[Folder]:
        """Yield pages of a delimiter listing."""
        import obstore

        if prefix and not prefix.endswith("/"):
            raise UsageError(f"{prefix!r} is not a folder: it does not end in a slash")
        found = self._call(
            "list",
            prefix,
            lambda client: obstore.list_with_delimiter(client, prefix=prefix.rstrip("/") or None),
        )
        entries: list[ObjectInfo | str] = [self._listed(entry) for entry in found["objects"]]
        entries += [f"{name}/" for name in found["common_prefixes"]]
        entries.sort(key=lambda entry: entry if isinstance(entry, str) else entry.key)
        return islice(folder_pages(entries), max_pages)

    # Reading.

    def head(self, key: str) -> ObjectInfo:
        """Return size and version."""
        return self._info(key, self._meta(key))

    def _meta(self, key: str) -> Any:
        import obstore

        return self._call("head", key, lambda client: obstore.head(client, key))

    def _info(self, key: str, meta: Any) -> ObjectInfo:
        return ObjectInfo(key=key, size_bytes=meta["size"], etag=plain_etag(meta["e_tag"]))

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, if_etag: str | None = None
    ) -> Body:
        """Open a body."""
        if end is None or end > start:
            try:
                body = self._call(
                    "get", key, lambda client: fast_get(client, key, start, end, if_etag)
                )
            except QuarkError as error:
                if error.detail.get("status") != _BEYOND_THE_END:
                    raise
            else:
                self._note_generation(key, body.info.etag, body.version)
                return body
        info = self.head(key)
        if if_etag is not None and info.etag != if_etag:
            raise explain(Failure(412, "PreconditionFailed"), self._asked("get", key))
        return BytesBody(info, b"")

    # Writing.

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object in one request."""
        return self._put(key, data, "overwrite", conditional=False)

    def put_file(self, key: str, path: Path) -> ObjectInfo:
        """Write an object from a file; obstore sends large ones in parts."""
        import obstore

        size_bytes = path.stat().st_size
        done = self._call(
            "put",
            key,
            lambda client: obstore.put(
                client, key, path, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            ),
        )
        return ObjectInfo(key=key, size_bytes=size_bytes, etag=plain_etag(done["e_tag"]))

    def abandon_uploads(self, prefix: str, is_ours: Callable[[str], bool]) -> int:
        """Return 0: obstore cannot list unfinished uploads; a rule of the bucket has to end them."""
        del prefix, is_ours
        return 0

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        """Create an object."""
        return self._put(key, data, "create", conditional=True)

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectInfo:
        """Replace one version."""
        mode = {"e_tag": quoted_etag(etag)}
        if self._provider.by_generation:
            mode["version"] = self._generation(key, etag)
        return self._put(key, data, mode, conditional=True)

    def _note_generation(self, key: str, etag: str | None, generation: str | None) -> None:
        if not self._provider.by_generation or generation is None:
            return
        if len(self._generations) >= _GENERATIONS_KEPT:
            self._generations.clear()
        self._generations[key, etag] = generation

    def _generation(self, key: str, etag: str) -> str:
        """Return the generation of a version: as it was last read or written here, else by a HEAD.

        Those of old versions are kept, so that the store itself refuses them, not we in its place.
        """
        known = self._generations.get((key, etag))
        if known is not None:
            return known
        lost = explain(
            Failure(412, "PreconditionFailed"), self._asked("put", key, conditional=True)
        )
        try:
            meta = self._meta(key)
        except FileNotFoundError:
            raise lost from None
        if plain_etag(meta["e_tag"]) != etag:
            raise lost
        return str(meta["version"])

    def _put(self, key: str, data: bytes, mode: Any, *, conditional: bool) -> ObjectInfo:
        import obstore

        done = self._call(
            "put",
            key,
            lambda client: obstore.put(client, key, data, mode=mode, use_multipart=False),
            conditional=conditional,
        )
        etag = plain_etag(done["e_tag"])
        self._note_generation(key, etag, done["version"])
        return ObjectInfo(key=key, size_bytes=len(data), etag=etag)

    def delete(self, key: str) -> None:
        """Remove an object."""
        import obstore

        try:
            self._call("delete", key, lambda client: obstore.delete(client, key))
        except FileNotFoundError:
            return

    # Calls.

    def _call(
        self,
        action: str,
        key: str,
        ask: Callable[["Client"], _Result],
        *,
        conditional: bool = False,
    ) -> _Result:
        if action != "list" and not obstore_carries(key):
            raise UsageError(
                f"{self.spec.uri}: the key {key!r} cannot be used with this store",
                hint="Keys here have no control characters, and no empty, `.` or `..` parts.",
            )
        client = self._open()
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            return ask(client)
        except AlreadyExistsError:
            failure = Failure(412, "PreconditionFailed")
        except (BaseError, FileNotFoundError, ValueError) as error:
            if isinstance(error, QuarkError):
                raise
            failure = of_obstore_error(error)
            if failure.status is None and isinstance(error, FileNotFoundError):
                failure = Failure(404, "NoSuchKey")  # Azure deletes in batches, told in other words
            if failure.status is None and "token" in str(error).partition("\n")[0].lower():
                failure = Failure(401, "NoCredentials", self._provider.sign_in)
        raise explain(failure, self._asked(action, key, conditional=conditional)) from None

    def _asked(self, action: str, key: str, *, conditional: bool = False) -> Asked:
        return Asked(
            action=action,
            key=key,
            bucket=self._bucket,
            where=self.endpoint_id,
            conditional=conditional,
            permission=_PERMISSION[action],
        )

    def _open(self) -> "Client":
        if is_forked():
            raise StoreError(
                f"{self.spec.uri}: {self._provider.name} cannot be used in a forked process",
                hint="Start workers with multiprocessing_context='forkserver' or 'spawn'.",
                phase="open",
            )

        from obstore.exceptions import BaseError

        held = self._client
        if held is None or held[0] != process_id():
            refuse_strangers(self.spec, self._provider)
            try:
                held = process_id(), self._provider.make(self.spec, self._bucket)
            except (BaseError, ValueError, TypeError) as error:
                raise UsageError(
                    f"{self.spec.uri}: {str(error).partition(chr(10))[0]}",
                    hint=self._provider.sign_in,
                ) from None
            self._client = held
        return held[1]
