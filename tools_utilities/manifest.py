"""What a sharded dataset says of itself: Manifest, Shard, Chunk.

Two layouts on the store, one type here: the documented folder layout (`master_metadata.json` and
`shard_NNN/metadata.json`) and a flat group's `manifest.json` beside its shards. A manifest may name
only what lies in its own folder.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import msgspec

from tools_utilities.errors import DataError, ObjectNotFoundError
from tools_utilities.json_text import decode_json
from tools_utilities.object_store import ObjectStore
from tools_utilities.patience import patiently
from tools_utilities.prepared_types import prepared

MASTER = "master_metadata.json"
SHARD = "metadata.json"
FLAT = "manifest.json"
MAX_BYTES = 64 << 20
_THREADS = 16

_ODD = {"\\", "\0"}
Count = Annotated[int, msgspec.Meta(ge=0)]


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a shard."""

    key: str
    """Relative to the manifest's folder."""
    num_samples: Count
    num_bytes: Count | None = None
    crc32c: str | None = None
    """Base64 of the big-endian CRC-32C of the file."""
    sha256: str | None = None


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """The unit given to a rank or claimed by a worker."""

    shard_id: Count
    chunks: tuple[Chunk, ...]

    @property
    def num_samples(self) -> int:
        """Samples in all chunks."""
        return sum(chunk.num_samples for chunk in self.chunks)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset's shards; its presence means that every one of them arrived."""

    prefix: str
    """The folder it describes, relative to the bucket, ending in `/`."""
    shards: tuple[Shard, ...]
    schema: dict[str, str] = {}
    """Field → type, of the first records; empty where nobody wrote it."""
    token_dtype: str | None = None
    """How wide the numbers of its token files are; None: it has none, or nobody wrote it."""

    @property
    def num_samples(self) -> int:
        """Samples in all shards."""
        return sum(shard.num_samples for shard in self.shards)

    @property
    def chunks(self) -> dict[str, Chunk]:
        """Every chunk by its whole key."""
        return {self.prefix + chunk.key: chunk for shard in self.shards for chunk in shard.chunks}


class _MasterShard(msgspec.Struct, frozen=True):
    shard_id: Count
    directory: str


@prepared
class _Master(msgspec.Struct, frozen=True):
    shards: tuple[_MasterShard, ...]
    token_dtype: str | None = None


class _ChunkEntry(msgspec.Struct, frozen=True):
    """A chunk as `shard_NNN/metadata.json` writes it."""

    file: str
    num_tasks: Count
    bytes: Count | None = None
    num_bytes: Count | None = None
    crc32c: str | None = None
    sha256: str | None = None


@prepared
class _ShardEntry(msgspec.Struct, frozen=True):
    shard_id: Count
    chunks: tuple[_ChunkEntry, ...]


@prepared
class _Flat(msgspec.Struct, frozen=True):
    shards: tuple[Shard, ...]
    schema: dict[str, str] | int = {}
    """A number in manifests of earlier versions, whose `version` it was."""
    token_dtype: str | None = None


def load_manifest(store: ObjectStore, prefix: str, *, patient: bool = False) -> Manifest | None:
    """Return the manifest of a folder (ends in `/`), or None when it has none of ours.

    A `manifest.json` of another program is none of ours. `patient`: each read that fails in passing
    is tried again for half a minute; they are many, so that trying the whole again may never end.

    Raises:
        DataError: it is damaged, incomplete, or names something outside its folder.
        AccessError: reading it is refused.
    """
    folder = prefix[: prefix.rfind("/") + 1]

    def read(key: str) -> bytes | None:
        return patiently(lambda: _read(store, key)) if patient else _read(store, key)

    content = read(folder + MASTER)
    if content is not None:
        return _folder_layout(read, folder, content)
    content = read(folder + FLAT)
    if content is None or not _is_ours(content):
        return None
    key = folder + FLAT
    flat = _decode(key, content, _Flat)
    schema = {} if isinstance(flat.schema, int) else flat.schema
    found = Manifest(prefix=folder, shards=flat.shards, schema=schema, token_dtype=flat.token_dtype)
    return _checked(key, found)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the flat `manifest.json` of a folder; write it last, when every shard is there."""
    content = {
        "version": 1,
        "num_samples": manifest.num_samples,
        "num_bytes": sum(chunk.num_bytes or 0 for chunk in manifest.chunks.values()),
        "schema": manifest.schema,
        **({} if manifest.token_dtype is None else {"token_dtype": manifest.token_dtype}),
        "shards": msgspec.to_builtins(manifest.shards),
    }
    return msgspec.json.format(msgspec.json.encode(content), indent=2)


def index_name(store: ObjectStore, prefix: str) -> str:
    """Return the name of a finished dataset's index: of shard folders, or of flat files."""
    try:
        store.head(prefix + MASTER)
    except ObjectNotFoundError:
        return FLAT
    return MASTER


def _read(store: ObjectStore, key: str) -> bytes | None:
    try:
        body = store.get(key)
    except ObjectNotFoundError:
        return None
    try:
        if body.info.size_bytes > MAX_BYTES:
            raise DataError(
                f"{key}: {body.info.size_bytes:,} bytes is no manifest (at most {MAX_BYTES:,})",
                key=key,
            )
        return b"".join(body)
    finally:
        body.close()


def _is_ours(content: bytes) -> bool:
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError):
        return False
    shards = raw.get("shards") if isinstance(raw, dict) else None
    return (
        isinstance(shards, list)
        and bool(shards)
        and all(isinstance(shard, dict) and "chunks" in shard for shard in shards)
    )


def _decode(key: str, content: bytes, type_: type[Any]) -> Any:
    try:
        return decode_json(content, type=type_)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(
            f"{key}: not a manifest: {error}",
            hint="Write it again, or delete it to read the shards without counts.",
            key=key,
        ) from error


def _folder_layout(read: Callable[[str], bytes | None], folder: str, content: bytes) -> Manifest:
    key = folder + MASTER
    master = _decode(key, content, _Master)
    for shard in master.shards:
        _inside(key, shard.directory)

    def read_shard(entry: _MasterShard) -> Shard:
        directory = entry.directory.rstrip("/")
        shard_key = f"{folder}{directory}/{SHARD}"
        data = read(shard_key)
        if data is None:
            raise DataError(
                f"{shard_key} is missing, and {key} names it",
                hint="The dataset is incomplete: write it again, or delete the manifest.",
                key=shard_key,
            )
        found = _decode(shard_key, data, _ShardEntry)
        if found.shard_id != entry.shard_id:
            raise DataError(
                f"{shard_key} is of shard {found.shard_id}, not {entry.shard_id}", key=shard_key
            )
        for chunk in found.chunks:
            _inside(shard_key, chunk.file)
        return Shard(
            shard_id=entry.shard_id,
            chunks=tuple(_chunk(directory, chunk) for chunk in found.chunks),
        )

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="manifest") as pool:
        shards = tuple(pool.map(read_shard, master.shards))
    return _checked(key, Manifest(prefix=folder, shards=shards, token_dtype=master.token_dtype))


def _chunk(directory: str, entry: _ChunkEntry) -> Chunk:
    return Chunk(
        key=f"{directory}/{entry.file}",
        num_samples=entry.num_tasks,
        num_bytes=entry.num_bytes if entry.num_bytes is not None else entry.bytes,
        crc32c=entry.crc32c,
        sha256=entry.sha256,
    )


def _inside(manifest_key: str, path: str) -> None:
    """Refuse a path that is not plainly below its folder."""
    parts = path.rstrip("/").split("/")
    if not parts[0] or "://" in path or _ODD & set(path) or {"", ".", ".."} & set(parts):
        raise DataError(
            f"{manifest_key} names {path!r}, which is not below its folder",
            hint="A manifest may name only what lies in its own folder.",
            key=manifest_key,
            path=path,
        )


def _checked(key: str, manifest: Manifest) -> Manifest:
    seen: set[str] = set()
    ids: set[int] = set()
    for shard in manifest.shards:
        if shard.shard_id in ids:
            raise DataError(f"{key}: shard {shard.shard_id} is there twice", key=key)
        ids.add(shard.shard_id)
        for chunk in _chunks_of(shard):
            _inside(key, chunk if not chunk.endswith("/") else "")
            if chunk in seen:
                raise DataError(f"{key}: {chunk} is there twice", key=key)
            seen.add(chunk)
    return manifest


def _chunks_of(shard: Shard) -> Iterator[str]:
    return (chunk.key for chunk in shard.chunks)
