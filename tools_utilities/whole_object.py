"""Opens one object for a single pass: mapped in place, in memory while small, else in a nameless file."""

import os
import tempfile
from pathlib import Path

from tools_utilities.fetch import Fetcher
from tools_utilities.object_store import ObjectInfo, ObjectStore
from tools_utilities.shard_bytes import FileShardBytes, MemoryShardBytes
from tools_utilities.shard_format import ShardBytes

MEMORY_BYTES = 64 << 20


class _FileSink:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, offset: int, piece: bytes) -> None:
        """Write a piece at its place."""
        view = memoryview(piece)
        while view:
            written = os.pwrite(self._descriptor, view, offset)
            view, offset = view[written:], offset + written

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes that were written before."""
        return os.pread(self._descriptor, num_bytes, offset)


def open_whole_object(store: ObjectStore, info: ObjectInfo) -> ShardBytes:
    """Return the verified bytes of one object; nothing is kept after `close`.

    Raises:
        StoreError, AccessError, IntegrityError: as `Fetcher.fetch`.
    """
    if store.spec.uri.startswith("file://"):
        root = Path(store.spec.uri.removeprefix("file://"))
        return FileShardBytes(root / info.key, info=info)
    fetcher = Fetcher(store)
    if info.size_bytes <= MEMORY_BYTES:
        data, _ = fetcher.fetch_bytes(info)
        return MemoryShardBytes(info.key, memoryview(data), info=info)
    descriptor, name = tempfile.mkstemp(prefix="quark-object-")
    try:
        fetcher.fetch(info, _FileSink(descriptor))
        return FileShardBytes(Path(name), info=info)
    finally:
        # The mapping keeps the bytes; the name goes at once, so that a kill leaves nothing.
        os.close(descriptor)
        Path(name).unlink()
