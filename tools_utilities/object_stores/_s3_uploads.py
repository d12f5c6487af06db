"""Uploads of files to S3: one request while small, else in parts that never stay behind unfinished.

Every part carries its MD5, which the store checks. A failure of any kind (an interruption too)
aborts the upload; what a kill left is found and aborted by `abandoned`.
"""

import base64
import hashlib
from collections.abc import Callable, Generator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools_utilities.errors import QuarkError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.object_stores._s3_bodies import plain_etag

if TYPE_CHECKING:
    from tools_utilities.object_stores._s3_calls import S3Calls
    from tools_utilities.object_stores._s3_clients import S3Clients

PART_BYTES = 8 << 20
"""S3 takes parts from 5 MiB; two of these are held at a time."""
_MOST_PARTS = 10_000


def part_bytes_for(size_bytes: int, part_bytes: int = PART_BYTES) -> int:
    """Return the size of parts: larger than usual only where 10,000 of them would not do."""
    return max(part_bytes, -(-size_bytes // _MOST_PARTS))


def etags_of(path: Path, part_bytes: int = PART_BYTES) -> tuple[str, ...]:
    """Return the etags that S3 gives a file's bytes: their MD5, and that of the MD5s of its parts."""
    whole, parts = hashlib.md5(usedforsecurity=False), []
    size = part_bytes_for(path.stat().st_size, part_bytes)
    for piece in _pieces(path, size):
        whole.update(piece)
        parts.append(hashlib.md5(piece, usedforsecurity=False).digest())
    joined = hashlib.md5(b"".join(parts), usedforsecurity=False).hexdigest()
    return whole.hexdigest(), f"{joined}-{len(parts)}"


def upload_in_parts(
    calls: "S3Calls", params: Mapping[str, Any], key: str, path: Path, part_bytes: int = PART_BYTES
) -> ObjectInfo:
    """Upload a file by multipart upload and return what the store says of it.

    Raises:
        QuarkError: what the store says; the upload is aborted.
    """

    def begin(clients: "S3Clients") -> str:
        return clients.exact.create_multipart_upload(Key=key, **params)["UploadId"]

    upload_id = calls.once("put", key, begin)
    whole = {**params, "Key": key, "UploadId": upload_id}
    size_bytes = path.stat().st_size
    try:
        # Closed here: an error that is kept would keep the file open too.
        with closing(_pieces(path, part_bytes_for(size_bytes, part_bytes))) as pieces:
            parts = [
                _send_part(calls, whole, number, piece) for number, piece in enumerate(pieces, 1)
            ]

        def complete(clients: "S3Clients") -> str | None:
            done = clients.exact.complete_multipart_upload(
                MultipartUpload={"Parts": parts}, **whole
            )
            return done.get("ETag")

        etag = calls.once("put", key, complete)
    except BaseException:  # an interruption must not leave parts either
        with suppress(QuarkError):  # the first failure is the one to tell
            calls.retried("delete", key, partial(_abort, whole=whole))
        raise
    return ObjectInfo(key=key, size_bytes=size_bytes, etag=plain_etag(etag))


def abandoned(
    calls: "S3Calls", params: Mapping[str, Any], prefix: str, is_ours: Callable[[str], bool]
) -> int:
    """Abort unfinished uploads of our keys below a prefix and return how many there were."""

    def look(clients: "S3Clients") -> list[dict[str, str]]:
        found = []
        pages = clients.exact.get_paginator("list_multipart_uploads")
        for page in pages.paginate(Prefix=prefix, **params):
            found += [
                {"Key": one["Key"], "UploadId": one["UploadId"]} for one in page.get("Uploads", [])
            ]
        return found

    left = [one for one in calls.retried("list", prefix, look) if is_ours(one["Key"])]
    for one in left:
        calls.retried("delete", one["Key"], partial(_abort, whole={**params, **one}))
    return len(left)


def _send_part(calls: "S3Calls", whole: dict[str, Any], number: int, piece: bytes) -> Any:
    digest = base64.b64encode(hashlib.md5(piece, usedforsecurity=False).digest()).decode()

    def send(clients: "S3Clients") -> Any:
        done = clients.exact.upload_part(PartNumber=number, Body=piece, ContentMD5=digest, **whole)
        return {"PartNumber": number, "ETag": done["ETag"]}

    # A part sent twice replaces itself: it may be tried again, unlike a whole object's put.
    return calls.retried("put", str(whole["Key"]), send)


def _abort(clients: "S3Clients", whole: dict[str, Any]) -> None:
    clients.exact.abort_multipart_upload(**whole)


def _pieces(path: Path, num_bytes: int) -> Generator[bytes, None, None]:
    with path.open("rb") as file:
        while piece := file.read(num_bytes):
            yield piece
