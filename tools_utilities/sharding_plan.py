"""What a sharded dataset is to be: shards, chunks, format, names. With the source it decides every byte."""

import msgspec

from tools_utilities.holdout_split import HoldoutSplit
from tools_utilities.sample_source import Source
from tools_utilities.shard_format import COMPRESSIONS, shard_formats
from tools_utilities.sharding_progress import Header
from tools_utilities.token_width import FORMAT as TOKENS
from tools_utilities.token_width import NARROW

VAL = "val"


class ShardingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is made: together with the source it decides every byte."""

    num_shards: int = 8
    chunk_bytes: int = 100_000_000
    """About the bytes of records in a chunk, as the format writes them, before compression."""
    format: str = "jsonl"
    compression: str | None = None
    max_samples: int | None = None
    layout: str = "folders"
    """`folders`: `shard_NNN/chunk_NNNN.*` as documented; `flat`: files side by side; `file`: one."""
    name: str = "train"
    """Flat: what file names begin with."""
    samples_per_shard: int | None = None
    """Flat: consecutive records, this many a file, instead of num_shards dealt in turn."""
    val_fraction: float | None = None
    """Hold out so much of the samples, decided by their content."""
    val_key: str | None = None
    """Decide by this field alone."""
    shuffle: bool = False
    seed: int = 42
    """Of the shuffle."""
    token_dtype: str = NARROW
    """Token files: `uint16` or `uint32`."""
    first_shard: int = 0
    """Number of the first shard of what is added to a dataset."""

    @property
    def val_shards(self) -> int:
        """Shards of the held-out side."""
        if self.val_fraction is None:
            return 0
        return max(1, round(self.num_shards * self.val_fraction))

    def key(self, shard: int, round_number: int) -> str:
        """Return the name of a shard's file of a round; shards from num_shards on are held out."""
        held_out = shard >= self.num_shards and self.val_fraction is not None
        number, total = shard, self.num_shards
        if held_out:
            number, total = shard - self.num_shards, self.val_shards
        if self.layout == "file":
            return self.name
        number += self.first_shard
        if self.layout == "folders":
            side = "" if self.val_fraction is None else f"{VAL if held_out else 'train'}/"
            chunk = f"chunk_{round_number:04d}{self.suffix}"
            if self.format == "litdata":
                chunk = f"chunk-{number}-{round_number}.bin"
            return f"{side}shard_{number:03d}/{chunk}"
        if self.format == "litdata":
            return f"chunk-{shard}-{round_number}.bin"
        if self.samples_per_shard is not None:
            return f"{self.name}-{round_number:05d}{self.suffix}"
        name = VAL if held_out else self.name
        number -= self.first_shard  # a flat file's name says whose it is
        return f"{name}-{number:05d}-of-{total:05d}{self.suffix}"

    def sides(self) -> dict[str, range]:
        """Return the folders of datasets in a layout of folders, with the shards of each."""
        if self.val_fraction is None:
            return {"": range(self.num_shards)}
        held_out = range(self.num_shards, self.num_shards + self.val_shards)
        return {"train/": range(self.num_shards), f"{VAL}/": held_out}

    def owns(self, name: str) -> bool:
        """Say whether a file of this name, relative to the output, is one that the plan makes."""
        parts = [part for part in name.split("/") if part not in {"train", VAL}]
        head, tail = parts[0], parts[-1]
        if self.layout == "folders":
            return len(parts) > 1 and head.startswith("shard_") and tail.startswith("chunk")
        return len(parts) == 1 and tail.startswith((self.name, f"{VAL}-", "chunk-"))

    @property
    def writers(self) -> int:
        """Files that grow side by side."""
        if self.samples_per_shard is not None:
            return 1
        return self.num_shards + self.val_shards

    @property
    def suffix(self) -> str:
        """The chunks' suffix, compression included."""
        packed = {name: suffix for suffix, name in COMPRESSIONS.items()}
        stem: str = [*shard_formats()[self.format].suffixes, ".bin"][0]
        return stem + (packed[self.compression] if self.compression else "")

    @property
    def token_width(self) -> str | None:
        """What the index says of token files; None for other formats."""
        return self.token_dtype if self.format == TOKENS else None

    @property
    def token_bytes(self) -> int:
        """Bytes of an id in token files."""
        return int(self.token_dtype.removeprefix("uint")) // 8

    @property
    def holdout(self) -> HoldoutSplit | None:
        """How samples are held out."""
        if self.val_fraction is None:
            return None
        return HoldoutSplit(fraction=self.val_fraction, key=self.val_key)

    def header(self, source: Source) -> Header:
        """Return what a resumed run must share with the one that began."""
        settings: dict[str, str | float | bool | None] = msgspec.to_builtins(self)
        for later in ("first_shard", "token_dtype"):  # datasets made before there were these
            if getattr(self, later) == getattr(_USUAL, later):
                del settings[later]
        return Header(
            source=source.uri,
            fingerprint=source.fingerprint,
            objects=dict(source.objects),
            settings=settings,
        )


_USUAL = ShardingPlan()
