"""Puts finished chunk files where they belong: moved in a folder, uploaded and verified in a store."""

import random
import time
from collections.abc import Callable
from pathlib import Path

from tools_utilities.checksum import crc32c, encode_crc32c
from tools_utilities.chunk_writer import WrittenChunk
from tools_utilities.errors import (
    DataNotFoundError,
    IntegrityError,
    ObjectNotFoundError,
    StoreError,
)
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.object_stores._local_files import make_folders, sync_folder
from tools_utilities.object_stores._s3_uploads import etags_of

TRIES = 5
_PAUSE_SECONDS = 0.2


def move_into(folder: Path, chunk: WrittenChunk, key: str) -> None:
    """Rename a chunk into `folder`, atomically and durably."""
    target = folder / key
    make_folders(target.parent)
    chunk.path.replace(target)
    sync_folder(target.parent)


def upload_to(store: ObjectStore, prefix: str, chunk: WrittenChunk, key: str) -> None:
    """Upload one chunk as `Uploader` does."""
    Uploader(store, prefix)(chunk, key)


class Uploader:
    """Uploads chunks to a prefix; may be called from several threads."""

    def __init__(
        self, store: ObjectStore, prefix: str, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._sleep = sleep

    def __call__(self, chunk: WrittenChunk, key: str) -> None:
        """Upload a chunk, check what the store holds, and only then delete the local file.

        What is there already, with the chunk's size and checksum, is not sent again.

        Raises:
            IntegrityError: the store holds other bytes; the local file is kept.
            StoreError: it failed several times.
        """
        full_key = self._prefix + key
        if not self._holds(full_key, chunk):
            self._send(full_key, chunk.path)
            stored = self._store.head(full_key)
            if not self._same(stored, chunk):
                raise IntegrityError(
                    f"{full_key}: the store holds {stored.size_bytes} bytes (etag {stored.etag}, "
                    f"crc32c {stored.crc32c}) that are not the {chunk.num_bytes} bytes "
                    f"(crc32c {chunk.crc32c}) that were sent",
                    hint="Run the same command again: it goes on from the last finished chunk.",
                    key=full_key,
                )
        chunk.path.unlink()

    def _send(self, full_key: str, path: Path) -> None:
        for tries_left in reversed(range(TRIES)):
            try:
                self._store.put_file(full_key, path)
            except StoreError as error:
                if not tries_left or not error.detail.get("transient"):
                    raise
                done = TRIES - tries_left
                self._sleep(random.uniform(0.5, 1.5) * _PAUSE_SECONDS * 3**done)  # noqa: S311 - spreads load, hides nothing
            else:
                return

    def _holds(self, full_key: str, chunk: WrittenChunk) -> bool:
        try:
            stored = self._store.head(full_key)
        except (ObjectNotFoundError, DataNotFoundError):  # a local folder comes with its first file
            return False
        return stored.size_bytes == chunk.num_bytes and self._same(stored, chunk)

    def _same(self, stored: ObjectInfo, chunk: WrittenChunk) -> bool:
        if stored.size_bytes != chunk.num_bytes:
            return False
        if stored.crc32c is not None:
            return stored.crc32c == chunk.crc32c
        if stored.etag is not None and stored.etag in etags_of(chunk.path):
            return True
        # An etag that is no MD5 (other stores, encrypted buckets) says nothing: the bytes do.
        return self._read_back(stored) == chunk.crc32c

    def _read_back(self, stored: ObjectInfo) -> str:
        body = self._store.get(stored.key)
        checksum = 0
        try:
            for piece in body:
                checksum = crc32c(piece, checksum)
        finally:
            body.close()
        return encode_crc32c(checksum)
