"""Token files (`.bin`): little-endian uint16 or uint32 and nothing else, as many trainers write them.

A sample is `{"input_ids": array}` of `ReadOptions.seq_len` tokens of the file's own type; the last one
of a file may be shorter and is never dropped. Arrays of one `read` are rows of one block.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tools_utilities.errors import RecordError, UsageError
from tools_utilities.line_index import plan_byte_ranges, whole_object
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import (
    ReadOptions,
    RecordRows,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
    split_suffix,
)
from tools_utilities.split_content import SplitContent
from tools_utilities.token_width import NARROW, WIDTHS, checked_width, width_of

FIELD = "input_ids"
_MOST_UINT16 = 1 << 16
_TELLING = 8
"""Zeros between other ids that cannot be chance."""
_DTYPES = {width: np.dtype(width).newbyteorder("<") for width in WIDTHS}


class Tokens:
    """The format `tokens`."""

    name = "tokens"
    suffixes: tuple[str, ...] = (".bin",)
    names = None
    compressible = True

    def __init__(self, width: str = NARROW) -> None:
        """Writes numbers of `width`."""
        self.width = checked_width(width)

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],  # noqa: ARG002 - the contract's; there is no footer
        target_bytes: int,
        options: ReadOptions,
    ) -> list[Split]:
        """Cut into byte ranges on multiples of a sample; a compressed object is one.

        Raises:
            RecordError: the size is not a whole number of tokens.
        """
        if split_suffix(info.key)[1] is not None:
            return [whole_object(info)]
        itemsize = token_dtype(info.key, options).itemsize
        _check_size(info.key, info.size_bytes, itemsize)
        unit = itemsize * options.seq_len
        return [
            Split(
                key=split.key,
                start=split.start,
                end=split.end,
                num_bytes=split.num_bytes,
                num_samples=-(-split.num_bytes // unit),
            )
            for split in plan_byte_ranges(info, target_bytes, unit_bytes=unit)
        ]

    def open_split(self, shard: ShardBytes, split: Split, options: ReadOptions) -> "TokenSplit":
        """Open a range; costs nothing.

        Raises:
            RecordError: the decoded size is not a whole number of tokens.
        """
        return TokenSplit(SplitContent(shard, split), options)

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write the one field `input_ids` of each sample, as wide as `as_wide` says.

        All samples but the last must have one length, or they could not be told apart again.
        """
        return write_tokens(samples, file, self.width)

    def as_wide(self, width: str) -> "Tokens":
        """Return the format that writes numbers of this type; how it reads is up to its options."""
        return Tokens(width)


def likely_dtype(vocab_size: int | None) -> str:
    """Return the number type of token files of which nothing is said: what a vocabulary's ids need."""
    return "uint32" if (vocab_size or 0) > _MOST_UINT16 else "uint16"


def refuse_wide(sample: Sample, where: str) -> None:
    """Refuse tokens read as uint16 whose every second number is 0: they are ids of four bytes.

    Nothing else would show it where ids are small: half of what is trained on would be 0.

    Raises:
        UsageError: so it is.
    """
    ids = np.asarray(sample.get(FIELD, ()))
    lows, highs = ids[::2], ids[1::2]
    if len(highs) >= _TELLING and ids.dtype.itemsize == 2 and lows.any() and not highs.any():  # noqa: PLR2004 - uint16
        raise UsageError(
            f"{where}: every second number is 0, so these seem to be uint32 tokens read as uint16",
            hint="Add token_dtype=uint32, or token_dtype=uint16 if they are just that.",
        )


def token_dtype(key: str, options: ReadOptions) -> np.dtype[Any]:
    """Return the number type of a token file.

    Raises:
        UsageError: it is neither uint16 nor uint32, or a sample would have no token.
    """
    width = width_of(key, options)
    if options.seq_len < 1:
        raise UsageError(f"seq_len={options.seq_len}: a sample needs at least one token")
    return _DTYPES[width]


class TokenSplit:
    """Token sequences of one byte range, by index."""

    def __init__(self, content: SplitContent, options: ReadOptions) -> None:
        self.key = content.key
        self.skipped: dict[str, int] = {}
        self._content = content
        dtype = token_dtype(content.key, options)
        view = content.shard.read(content.split.start, content.split.end)
        _check_size(content.key, len(view), dtype.itemsize)
        self._seq_len = options.seq_len
        self._tokens = np.frombuffer(view, dtype)
        num_full = len(self._tokens) // self._seq_len
        self._full = self._tokens[: num_full * self._seq_len].reshape(num_full, self._seq_len)
        self.num_samples = -(-len(self._tokens) // self._seq_len)
        self.num_bytes = content.held_bytes
        # A spilled split lets go of pages as it is read, row by row counted.
        plain = num_full and content.compression is None
        self.record_rows = RecordRows(self._full, FIELD) if plain else None

    def read_block(self, indices: Sequence[int]) -> npt.NDArray[Any]:
        """Return full sequences as one array of shape (len(indices), seq_len), copied once."""
        self._content.touched(len(indices), len(indices) * self._seq_len * self._tokens.itemsize)
        block: npt.NDArray[Any] = self._full.take(np.asarray(indices, np.intp), axis=0)
        return block

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return the sequences at `indices`: writable arrays of uint16 or uint32."""
        if max(indices, default=0) < len(self._full):
            return [{FIELD: row} for row in self.read_block(indices)]
        return [{FIELD: self._sequence(index).copy()} for index in indices]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return each sequence's own bytes, little-endian."""
        return [self._sequence(index).tobytes() for index in indices]

    def close(self) -> None:
        """Free the decoded bytes."""
        self.record_rows = None
        self._tokens = self._tokens[:0].copy()
        self._full = self._full[:0].copy()
        self._content.close()

    def _sequence(self, index: int) -> npt.NDArray[Any]:
        return self._tokens[index * self._seq_len : (index + 1) * self._seq_len]


def write_tokens(samples: Iterable[Sample], file: BinaryIO, dtype_name: str) -> int:
    """Write token sequences; returns how many.

    Raises:
        RecordError: an id does not fit, a sample is empty or has other fields, or one that is not
            the last has another length than the first.
    """
    dtype = _DTYPES[dtype_name]
    count, length, short = 0, None, False
    for sample in samples:
        ids = np.asarray(sample.get(FIELD, ()))
        why = _why_unwritable(sample, ids, np.iinfo(dtype).max)
        if not why and (short or (length is not None and len(ids) > length)):
            why = "only the last sample may have another length, and a shorter one"
        if why:
            raise RecordError(
                f"sample {count} cannot be written as tokens: {why}", record=count + 1
            )
        length = len(ids) if length is None else length
        short = len(ids) < length
        file.write(ids.astype(dtype).tobytes())
        count += 1
    return count


def _why_unwritable(sample: Sample, ids: npt.NDArray[Any], largest: int) -> str:
    if set(sample) != {FIELD} or ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        return f"it needs the one field {FIELD}, a list of token ids"
    if ids.min() < 0 or ids.max() > largest:
        return f"ids from {ids.min()} to {ids.max()} do not fit in [0, {largest}]"
    return ""


def _check_size(key: str, size_bytes: int, itemsize: int) -> None:
    if size_bytes % itemsize:
        raise RecordError(
            f"{key}: {size_bytes} bytes are not a whole number of {itemsize}-byte tokens",
            hint="The file is cut, or token_dtype is another.",
            key=key,
            offset=size_bytes - size_bytes % itemsize,
            reason="truncated",
        )


SHARD_FORMAT: ShardFormat = Tokens()
