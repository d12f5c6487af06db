"""The contract of a shard format: cut objects into splits, open a split, read samples from it.

A *split* is the unit the order is made of: a byte range, a row group, or a whole file. Opening one
gives random access to its samples, so that a window of splits can be read in any order.
`tools_utilities/shard_formats/` holds one format a file (reader and writer together), each ending
in `SHARD_FORMAT`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol, runtime_checkable

import msgspec

from tools_utilities.errors import UsageError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.plugins import load_plugins
from tools_utilities.read_compressions import READ_COMPRESSIONS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Sample = dict[str, Any]
Columns = tuple[tuple[str, str], ...]
"""Name and type, in words, of every column."""


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How records are read; part of what a run records, since it can change the samples."""

    allow_nan: bool = False
    strict: bool = False
    """Refuse what is merely suspicious (duplicate keys, columns that differ between shards)."""
    columns: tuple[str, ...] | None = None
    """Parquet: only these columns (WebDataset: only these fields); None: all."""
    first_of: tuple[str, ...] = ()
    """Parquet: only the first of these columns that a file has; a file with none is an error."""
    seq_len: int = 1024
    """Token files: tokens in one sample."""
    token_dtype: str | None = None
    """Token files: `uint16` or `uint32`, little-endian; None: as the index of their dataset says …"""
    likely_token_dtype: str = "uint16"  # noqa: S105 - a number format, not a secret
    """… and where none does, this."""
    optional_columns: tuple[str, ...] = ()
    """Of `columns`, those that a file need not have; set where folders have them, not by users."""
    folder_columns: tuple[tuple[str, str], ...] = ()
    """Columns in folder names (`name=value/`) → `int` or `text`; filled by the index, not by users."""
    token_widths: tuple[tuple[str, str], ...] = ()
    """Token files: folder → `token_dtype` of its index; filled by `with_token_widths`, not by users."""
    litdata_indexes: tuple[tuple[str, str], ...] = ()
    """LitData: folder → what its `index.json` says; filled by `with_litdata_index`, not by users."""


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of one object. Bounds depend only on the object's bytes and the split rule."""

    key: str
    start: int
    """First byte, or first row group; 0 for a whole file."""
    end: int
    """One past the last byte or row group; the object's size for a whole file."""
    num_bytes: int
    """Stored bytes, for budgets."""
    num_samples: int | None = None
    """Known only where the format says (footer, index); None is learned when the split is opened."""


class ShardBytes(Protocol):
    """The verified bytes of one object, with random access; the cache or a local file behind it."""

    info: ObjectInfo
    path: Path | None
    """A file holding exactly these bytes, if there is one; read only, valid until `close`."""

    def read(self, start: int, end: int) -> memoryview:
        """Return bytes [start, end), clipped to the object's end; zero-copy where mapped."""
        ...

    def close(self) -> None:
        """Let go of the bytes (a cache entry may be evicted again); safe to call twice."""
        ...


class DecodeSpans(Protocol):
    """Decodes records that are spans of bytes."""

    def __call__(
        self, pieces: list[memoryview], *, count: int | None = None
    ) -> "list[Sample] | None":
        """Return the samples of pieces that hold `count` records, one each unless given.

        None: one of them is not right, and the split's `read` says which.
        """
        ...


class RecordSpans(NamedTuple):
    """Records that are spans of bytes: those of many splits can be decoded together.

    An OpenSplit that has an attribute `record_spans` (which may be None) offers that beside `read`.
    """

    view: memoryview
    starts: "npt.NDArray[np.unsignedinteger]"
    """Where each record begins in `view`, and where the last one ends."""
    decode: DecodeSpans
    """Decodes records of any splits, one after another."""


class RecordRows(NamedTuple):
    """Records that are rows of one array, each the only field of its sample.

    An OpenSplit that has an attribute `record_rows` (which may be None) offers that beside `read`.
    """

    rows: "npt.NDArray[Any]"
    """Shape (records, length); read-only. The last record may be missing if it is shorter."""
    field: str


class OpenSplit(Protocol):
    """One split, open: its samples by index, in file order.

    Thread-compatible: one thread at a time. `num_bytes` is what it holds in memory. One of a format
    that is not a DescribedFormat may have `columns`: Columns, or None where they are not known.
    """

    num_samples: int
    num_bytes: int
    skipped: dict[str, int]
    """Records that are not samples by the format's own rules, by reason (`null`, `empty`)."""

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Decode the samples at `indices`, in that order.

        Raises:
            RecordError: one cannot be decoded; detail: key, record (from 1 in the file where
                known, else in the split), offset, index (into the split).
        """
        ...

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return each record's own bytes, undecoded, for `deserialize=`.

        Raises:
            UsageError: the format has no record bytes (Parquet).
        """
        ...

    def close(self) -> None:
        """Free what is held; the ShardBytes is closed by whoever opened it."""
        ...


class ShardFormat(Protocol):
    """One format. Stateless; all methods may be called from any thread."""

    name: str
    suffixes: tuple[str, ...]
    """Without compression: `.jsonl`. `.gz` and `.zst` are handled for `compressible` formats."""
    compressible: bool

    @property
    def names(self) -> re.Pattern[str] | None:
        """Whole file names that are this format's whatever their suffix: LitData's `chunk-0-0.bin`."""
        ...

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],
        target_bytes: int,
        options: ReadOptions,
    ) -> list[Split]:
        """Cut an object into splits of about `target_bytes`.

        `read(start, end)` fetches a byte range, for footers; never used to read the whole object.
        An empty object gives one empty split. A compressed object is one split.
        """
        ...

    def open_split(self, shard: ShardBytes, split: Split, options: ReadOptions) -> OpenSplit:
        """Open a split; cost is at most the split's own bytes (plus the record that crosses its end).

        Raises:
            RecordError: the split cannot be indexed at all (truncated, not this format).
        """
        ...

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write samples in order and return how many; the reader gives the same samples back."""
        ...


@runtime_checkable
class BoundedWriter(Protocol):
    """A format whose writer holds samples back, and can be told how many bytes of them at most."""

    def write_within(self, samples: Iterable[Sample], file: BinaryIO, memory_bytes: int) -> int:
        """Write as `ShardFormat.write` does; the bytes written may depend on `memory_bytes`."""
        ...


@runtime_checkable
class DescribedFormat(Protocol):
    """A format that reads an object's columns where it plans its splits (a footer holds both)."""

    def plan_described(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],
        target_bytes: int,
        options: ReadOptions,
    ) -> tuple[list[Split], Columns | None]:
        """Return what `plan_splits` does, and the columns that `options` ask for; None: not known."""
        ...


def plan_described(
    info: ObjectInfo,
    read: Callable[[int, int], bytes],
    target_bytes: int,
    options: ReadOptions,
) -> tuple[list[Split], Columns | None]:
    """Return an object's splits, and its columns where planning reads them.

    Raises:
        UsageError: no format reads the key.
        RecordError: the object cannot be read.
    """
    found = require_format(info.key)
    if isinstance(found, DescribedFormat):
        return found.plan_described(info, read, target_bytes, options)
    return found.plan_splits(info, read, target_bytes, options), None


@cache
def shard_formats() -> dict[str, Any]:
    """Return every known format by name."""
    return load_plugins("tools_utilities.shard_formats", "SHARD_FORMAT")


COMPRESSIONS = {".gz": "gzip", ".zstd": "zstd", ".zst": "zstd"}
"""Suffix → compression that is read and written; of several suffixes the last one is written."""


def split_suffix(key: str) -> tuple[str, str | None]:
    """Return (key without a compression suffix, compression name or None)."""
    lower = key.lower()
    for suffix, name in COMPRESSIONS.items():
        if lower.endswith(suffix):
            return key[: -len(suffix)], name
    for suffix, name in READ_COMPRESSIONS.items():
        if lower.endswith(suffix):
            return key[: key.rindex(".")], name
    if lower.endswith(".tgz"):
        return key[:-4] + ".tar", "gzip"
    return key, None


def format_of(key: str) -> ShardFormat | None:
    """Return the format that a key names, by its whole file name or its suffix; or None."""
    stem, compression = split_suffix(key)
    lower = stem.lower()
    name = lower.rpartition("/")[2]
    for shard_format in shard_formats().values():
        if shard_format.names and shard_format.names.fullmatch(name) and compression is None:
            named: ShardFormat = shard_format
            return named
    for shard_format in shard_formats().values():
        if lower.endswith(shard_format.suffixes) and (
            compression is None or shard_format.compressible
        ):
            found: ShardFormat = shard_format
            return found
    return None


def require_format(key: str) -> ShardFormat:
    """Return the format of a key.

    Raises:
        UsageError: no format reads it.
    """
    found = format_of(key)
    if found is None:
        known = ", ".join(s for f in shard_formats().values() for s in f.suffixes)
        raise UsageError(f"{key}: no format reads this name", hint=f"Known suffixes: {known}.")
    return found
