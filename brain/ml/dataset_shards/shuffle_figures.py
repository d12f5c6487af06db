"""The figures of an order, as a plan keeps them; `shuffle_quality.py` takes them."""

import msgspec


class ShuffleQuality(msgspec.Struct, frozen=True, kw_only=True):
    """How an epoch's order mixes the shards."""

    shuffled: bool = True
    """False: in file order."""
    lanes: int
    window_splits: int
    open_splits: int
    """Splits that samples are taken from at a time."""
    open_bytes: int
    """Stored bytes of those, about."""
    same_shard: float
    """Share of neighbours in the order that come from one shard; a full shuffle has 1 / shards."""
    displacement: float
    """Mean distance between a sample's places in the order and in the files, over a third of all
    samples: 0 in file order, about 1 after a full shuffle."""
    batch_size: int
    batch_shards: float
    """Different shards in a batch, on average …"""
    full_batch_shards: float
    """… and in one of a full shuffle."""

    @property
    def mixing(self) -> float:
        """How many of the shards that a full shuffle would bring into a batch there are."""
        return self.batch_shards / self.full_batch_shards if self.full_batch_shards else 1.0
