"""What a sharded dataset says of itself: Manifest, Shard, Chunk.

Two layouts on the store, one type here: the documented folder layout (`master_metadata.json` and
`shard_NNN/metadata.json`) and a flat group's `manifest.json` beside its shards.
"""

import msgspec


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a shard."""

    key: str
    """Relative to the manifest's folder."""
    num_samples: int
    num_bytes: int | None = None
    crc32c: str | None = None
    """Base64 of the big-endian CRC-32C of the file."""
    sha256: str | None = None


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """The unit given to a rank or claimed by a worker."""

    shard_id: int
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

    @property
    def num_samples(self) -> int:
        """Samples in all shards."""
        return sum(shard.num_samples for shard in self.shards)
