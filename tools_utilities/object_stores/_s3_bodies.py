"""The bodies of S3 objects, from either client."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tools_utilities.errors import StoreError
from tools_utilities.object_store import ObjectInfo

if TYPE_CHECKING:
    from botocore.response import StreamingBody
    from mypy_boto3_s3.client import S3Client
    from obstore import GetOptions, GetResult
    from obstore.store import ObjectStore

# Small enough that a slow body shows progress to a watchdog, large enough to cost nothing.
_PIECE_BYTES = 256 << 10


def plain_etag(etag: str | None) -> str | None:
    """Return an etag without its quotes."""
    return etag.strip('"') if etag and not etag.startswith("W/") else etag


def quoted_etag(etag: str) -> str:
    """Return an etag as HTTP wants it."""
    return etag if etag.startswith("W/") else f'"{etag}"'


def broken_body(info: ObjectInfo, received: int, expected: int, reason: str) -> StoreError:
    """Return the error of a body that ended early."""
    return StoreError(
        f"{info.key}: the transfer ended after {received} of {expected} bytes ({reason})",
        hint="The store or the network is in trouble; try again.",
        key=info.key,
        received_bytes=received,
        phase="body",
        transient=True,
    )


class FastBody:
    """A body that obstore reads."""

    def __init__(self, result: "GetResult", key: str) -> None:
        meta = result.meta
        self.info = ObjectInfo(key=key, size_bytes=meta["size"], etag=plain_etag(meta["e_tag"]))
        self.version = meta["version"]
        """What the store numbers the version with besides, where it does: Google's generation."""
        first, stop = result.range
        self._expected = stop - first
        self._result: GetResult | None = result

    def __iter__(self) -> Iterator[bytes]:
        import obstore.exceptions

        result, self._result = self._result, None
        received = 0
        if result is None or not self._expected:
            return
        try:
            for piece in result.stream(min_chunk_size=_PIECE_BYTES):
                received += len(piece)
                yield bytes(piece)
        except obstore.exceptions.BaseError as error:
            timed_out = "kind: Timeout" in str(error)
            reason = "no byte came in time" if timed_out else "the connection broke"
            # The text of obstore's error holds request headers.
            raise broken_body(self.info, received, self._expected, reason) from None
        if received != self._expected:
            raise broken_body(self.info, received, self._expected, "it is shorter than announced")

    def close(self) -> None:
        """Let go of the response; an unread rest is dropped with its connection."""
        self._result = None


class ExactBody:
    """A body that boto3 reads."""

    def __init__(self, response: Mapping[str, Any], key: str) -> None:
        self._expected = int(response["ContentLength"])
        # `bytes 2-4/10`: the whole size stands behind the slash.
        whole = str(response.get("ContentRange", "")).rpartition("/")[2]
        self.info = ObjectInfo(
            key=key,
            size_bytes=int(whole) if whole.isdigit() else self._expected,
            etag=plain_etag(response.get("ETag")),
        )
        self._stream: StreamingBody = response["Body"]

    def __iter__(self) -> Iterator[bytes]:
        from botocore.exceptions import BotoCoreError

        received = 0
        try:
            while received < self._expected:
                piece = self._stream.read(min(_PIECE_BYTES, self._expected - received))
                if not piece:
                    reason = "it is shorter than announced"
                    raise broken_body(self.info, received, self._expected, reason)
                received += len(piece)
                yield piece
        except (BotoCoreError, OSError) as error:
            if isinstance(error, StoreError):
                raise
            reason = type(error).__name__
            raise broken_body(self.info, received, self._expected, reason) from error
        finally:
            if received < self._expected:
                self._stream.close()

    def close(self) -> None:
        """Close the connection unless the body was read to its end."""
        self._stream.close()


def fast_get(
    store: "ObjectStore", key: str, start: int, end: int | None, if_etag: str | None
) -> FastBody:
    """Send a GET through obstore."""
    import obstore

    options: GetOptions = {}
    if if_etag is not None:
        options["if_match"] = quoted_etag(if_etag)
    if end is not None:
        options["range"] = (start, end)
    elif start:
        options["range"] = {"offset": start}
    return FastBody(obstore.get(store, key, options=options), key)


def exact_get(
    client: "S3Client",
    params: Mapping[str, Any],
    key: str,
    span: tuple[int, int | None],
    if_etag: str | None,
) -> ExactBody:
    """Send a GET through boto3."""
    rest: dict[str, Any] = {}
    if if_etag is not None:
        rest["IfMatch"] = quoted_etag(if_etag)
    start, end = span
    if end is not None:
        rest["Range"] = f"bytes={start}-{end - 1}"
    elif start:
        rest["Range"] = f"bytes={start}-"
    return ExactBody(client.get_object(Key=key, **params, **rest), key)
