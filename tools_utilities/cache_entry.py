"""The names of cache entries: a hash of what they hold, so that nothing of a name comes from a key."""

from hashlib import blake2b

import msgspec

from tools_utilities.checksum import decode_crc32c
from tools_utilities.object_store import ObjectInfo
from tools_utilities.use_order import DIGEST_BYTES


class EntryId(msgspec.Struct, frozen=True, kw_only=True):
    """Which version of which object of which store."""

    digest: str
    size_bytes: int
    crc32c: int | None = None
    """Promised by a manifest or the store; an entry with another one is a bad one."""


def entry_id(endpoint_id: str, info: ObjectInfo) -> EntryId | None:
    """Return the identity of an object's version; None when nothing tells versions apart."""
    version = info.etag or info.crc32c
    if version is None:
        return None
    digest = _digest(endpoint_id, info.key, version, str(info.size_bytes))
    promised = decode_crc32c(info.crc32c) if info.crc32c else None
    return EntryId(digest=digest, size_bytes=info.size_bytes, crc32c=promised)


def sidecar_digest(entry: EntryId, name: str) -> str:
    """Return the digest under which something made of an entry's content is kept."""
    return _digest("sidecar", entry.digest, name)


def _digest(*parts: str) -> str:
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()
