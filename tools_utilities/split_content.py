"""The bytes a split is read from: the object's own, or what a compressed object decodes to."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tools_utilities.cached_file import ReadPages
from tools_utilities.compression import cut_pieces, decompress_to_spill
from tools_utilities.errors import RecordError
from tools_utilities.open_objects import SharedShard
from tools_utilities.shard_bytes import FileShardBytes, MemoryShardBytes
from tools_utilities.shard_format import ShardBytes, Split, split_suffix
from tools_utilities.spare_entry import SpareContent

if TYPE_CHECKING:
    from tools_utilities.spill import Spill

_PASS_BYTES = 4 << 20
_FORGET_BYTES = 16 << 20
_DECODED = "decoded-1"
_KEPT = {"gzip", "bzip2", "brotli", "zstd"}
"""What takes longer to decode than to read decoded from a disk that a cache should lie on."""
_LEAST_STORED_BYTES = 4 << 10
"""Less is decoded in the time that looking for it takes."""
_LEAST_BYTES, _MOST_BYTES = 64 << 10, 1 << 30
"""Decoded: less is not worth an entry; a process that ends waits for what is being written."""
_WRITTEN_BYTES = 4 << 20


def forget_pages(shard: ShardBytes) -> None:
    """Take what was read of a mapped local file out of this process's memory."""
    if isinstance(shard, FileShardBytes | SharedShard):
        shard.forget_pages()


class SplitContent:
    """One split's bytes as a reader wants them: decompressed, with a split over those bytes.

    `shard` and `split` equal what was given, unless the object is compressed: then they stand for
    everything it decodes to. Offsets in errors are offsets into these bytes.
    """

    def __init__(self, shard: ShardBytes, split: Split) -> None:
        """Decode if needed.

        Raises:
            RecordError: the object is compressed and truncated or damaged.
        """
        self.key = split.key
        self.compression = split_suffix(split.key)[1]
        self._spill: Spill | None = None
        self._kept: ReadPages | None = None
        self._passed_bytes = 0
        self.shard, self.split = shard, split
        self.held_bytes = 0 if shard.path is not None else split.num_bytes
        if self.compression is not None:
            view = self._decoded(shard, self.compression)
            self.shard = MemoryShardBytes(split.key, view)
            self.split = Split(key=split.key, start=0, end=len(view), num_bytes=len(view))

    def _decoded(self, shard: ShardBytes, compression: str) -> memoryview:
        """Return what the object decodes to, from the cache where it was kept."""
        worth_it = compression in _KEPT and shard.info.size_bytes >= _LEAST_STORED_BYTES
        beside = shard if worth_it and isinstance(shard, SharedShard) else None
        kept = None if beside is None else beside.open_sidecar(_DECODED)
        if kept is not None:
            self._kept, self.held_bytes = ReadPages(kept), 0
            return kept.view
        spill = self._spill = decompress_to_spill(self._stored(shard), compression, key=self.key)
        view, self.held_bytes = spill.view(), spill.held_bytes
        num_bytes = len(view)
        if beside is not None and _LEAST_BYTES <= num_bytes <= _MOST_BYTES:
            beside.offer_sidecar(
                _DECODED,
                lambda: SpareContent(num_bytes, spill.passing(_WRITTEN_BYTES)),
                about_bytes=num_bytes,
            )
        return view

    def _stored(self, shard: ShardBytes) -> Iterator[memoryview]:
        """Yield a compressed object once, letting go of its pages behind."""
        for piece in cut_pieces(shard.read(0, shard.info.size_bytes), _PASS_BYTES):
            yield piece
            forget_pages(shard)

    def passed(self, num_bytes: int) -> None:
        """Tell that bytes were gone through in order, as an index is made; their pages are let go."""
        if self.compression is not None:
            self.touched(0, num_bytes)
            return
        self._passed_bytes += num_bytes
        if self._passed_bytes >= _FORGET_BYTES:
            self._passed_bytes = 0
            forget_pages(self.shard)

    def touched(self, num_records: int, num_bytes: int) -> None:
        """Tell that records were read, so that mapped pages can be let go."""
        if self._spill is not None:
            self._spill.touched(num_records, num_bytes)
        elif self._kept is not None:
            self._kept.touched(num_records, num_bytes)

    def bad_record(
        self, reason: str, *, hint: str = "", place: str = "", **detail: Any
    ) -> RecordError:
        """Return the error of one record; `place` says where in words (`line 3`)."""
        where = f"{self.key}: {place}" if place else self.key
        return RecordError(f"{where}: {reason}", hint=hint, key=self.key, reason=reason, **detail)

    def close(self) -> None:
        """Free the decoded bytes."""
        if self._spill is not None:
            self._spill.close()
        if self._kept is not None:
            self._kept.close()
