"""The documented metadata of a sharded dataset: `shard_NNN/metadata.json` and `master_metadata.json`.

The master is written last: its presence means that every shard arrived. Its statuses are written
once and never again; claims have records of their own.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tools_utilities.manifest import Chunk, Manifest, Shard
from tools_utilities.sharding_progress import Round
from tools_utilities.token_width import TOKEN_DTYPE

BYTES_PER_MB = 1_000_000


def shard_chunks(rounds: Sequence[Round], shards: Iterable[int]) -> list[list[Chunk]]:
    """Return the chunks of some shards, each in order."""
    return [
        [finished.chunks[shard] for finished in rounds if shard in finished.chunks]
        for shard in shards
    ]


def shard_metadata(
    shard_id: int, total_shards: int, chunks: Sequence[Chunk], token_dtype: str | None = None
) -> dict[str, Any]:
    """Return the content of one shard's metadata.json; `token_dtype`: of token files."""
    return {
        "shard_id": shard_id,
        "total_shards": total_shards,
        "status": "available",
        "total_tasks": sum(chunk.num_samples for chunk in chunks),
        "num_chunks": len(chunks),
        "chunks": [_chunk_metadata(number, chunk) for number, chunk in enumerate(chunks)],
        "assigned_to": None,
        "started_at": None,
        "completed_at": None,
        **_width(token_dtype),
    }


def _width(token_dtype: str | None) -> dict[str, str]:
    return {} if token_dtype is None else {TOKEN_DTYPE: token_dtype}


def _chunk_metadata(chunk_id: int, chunk: Chunk) -> dict[str, Any]:
    num_bytes = chunk.num_bytes or 0
    return {
        "chunk_id": chunk_id,
        "file": chunk.key.rpartition("/")[2],
        "num_tasks": chunk.num_samples,
        "size_mb": round(num_bytes / BYTES_PER_MB, 6),
        "bytes": num_bytes,
        "crc32c": chunk.crc32c,
        "sha256": chunk.sha256,
    }


def master_metadata(
    shards: Sequence[Sequence[Chunk]],
    chunk_bytes: int,
    schema: Mapping[str, str],
    token_dtype: str | None = None,
) -> dict[str, Any]:
    """Return the content of master_metadata.json: the documented fields, then what we add."""
    size = chunk_bytes / BYTES_PER_MB
    return {
        "total_tasks": sum(chunk.num_samples for chunks in shards for chunk in chunks),
        "num_shards": len(shards),
        "chunk_size_mb": int(size) if size.is_integer() else size,
        "shards": [
            {"shard_id": number, "directory": f"shard_{number:03d}", "status": "available"}
            for number in range(len(shards))
        ],
        "total_bytes": sum(chunk.num_bytes or 0 for chunks in shards for chunk in chunks),
        "schema": dict(schema),
        **_width(token_dtype),
    }


def encode_metadata(content: dict[str, Any]) -> bytes:
    """Return metadata as people read it: indented JSON, the same bytes every time."""
    return msgspec.json.format(msgspec.json.encode(content)) + b"\n"


def flat_manifest(rounds: Sequence[Round], prefix: str, token_dtype: str | None = None) -> Manifest:
    """Return the manifest of a flat layout: every file a shard of its own, in name order."""
    chunks = sorted(
        (chunk for finished in rounds for chunk in finished.chunks.values()),
        key=lambda chunk: chunk.key,
    )
    shards = (Shard(shard_id=number, chunks=(chunk,)) for number, chunk in enumerate(chunks))
    return Manifest(
        prefix=prefix,
        shards=tuple(shards),
        schema=rounds[0].schema,
        token_dtype=token_dtype,
    )
