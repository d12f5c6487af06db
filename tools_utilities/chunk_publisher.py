"""Puts finished chunk files where they belong: moved in a folder, uploaded and verified in a store."""

import os
from pathlib import Path

from tools_utilities.chunk_writer import WrittenChunk
from tools_utilities.errors import IntegrityError
from tools_utilities.object_store import ObjectStore


def move_into(folder: Path, chunk: WrittenChunk, key: str) -> None:
    """Rename a chunk into `folder`, atomically and durably."""
    target = folder / key
    target.parent.mkdir(parents=True, exist_ok=True)
    chunk.path.replace(target)
    for changed in (target.parent, target.parent.parent):
        descriptor = os.open(changed, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def upload_to(store: ObjectStore, prefix: str, chunk: WrittenChunk, key: str) -> None:
    """Upload a chunk, check what the store holds, and only then delete the local file.

    Raises:
        IntegrityError: the store says another size or checksum; the local file is kept.
    """
    full_key = prefix + key
    store.put(full_key, chunk.path.read_bytes())
    stored = store.head(full_key)
    differs = stored.crc32c is not None and stored.crc32c != chunk.crc32c
    if stored.size_bytes != chunk.num_bytes or differs:
        raise IntegrityError(
            f"{full_key}: the store holds {stored.size_bytes} bytes (crc32c {stored.crc32c}), "
            f"{chunk.num_bytes} (crc32c {chunk.crc32c}) were sent",
            hint="Run the same command again: it goes on from the last finished chunk.",
            key=full_key,
        )
    chunk.path.unlink()
