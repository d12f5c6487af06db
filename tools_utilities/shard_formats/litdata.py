"""LitData chunks, as `optimize()` writes them: `chunk-R-N.bin`, with an `index.json` in their folder.

`.bin` is also the suffix of token files, so a chunk is told by its name and then by its first bytes
(a number of items, and offsets that begin right behind their table): what is named like a chunk and
is none is a token file, unless an index says that it must be one. A chunk does not say how its items
are serialised: that comes from the index (`with_litdata_index`), or from the footer that `write` adds.

Samples are the dicts that were optimized; anything else is `{"item": …}`. Chunks for `TokensLoader`
are token rows of `ReadOptions.seq_len`, `{"input_ids": array}`, the last one shorter. zstd inside a
chunk, by item or by batch, around it, and rows kept as Arrow are read; encrypted chunks are not.
"""

import re
import struct
from collections.abc import Callable, Iterable
from itertools import starmap
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np

from tools_utilities.errors import RecordError
from tools_utilities.json_text import decode_json
from tools_utilities.line_index import whole_object
from tools_utilities.litdata_index import (
    TOKENS_LOADER,
    LitDataConfig,
    config_for,
    dict_spec,
    index_problem,
)
from tools_utilities.litdata_items import (
    ArrowChunk,
    ItemSplit,
    Layout,
    TokenChunk,
    open_framed,
    open_items,
)
from tools_utilities.litdata_values import (
    LitDataValueError,
    encode_value,
    serializer_for,
    token_type,
)
from tools_utilities.object_store import ObjectInfo
from tools_utilities.sample_ranges import cut_samples
from tools_utilities.shard_format import (
    OpenSplit,
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
)
from tools_utilities.shard_formats.tokens import SHARD_FORMAT as TOKENS
from tools_utilities.spill import SPILL_BYTES, Spill

FOOTER_MAGIC = b"QUARKLD\1"
_NAME = re.compile(r"chunk-[0-9]+-[0-9]+(?:\.zstd(?::[0-9]+)?)?\.bin")
_PACKED_NAME = re.compile(r".*\.zstd(?::[0-9]+)?\.bin", re.DOTALL)
_FRAMED_MAGIC = b"LDFZ01\0\0"
_HEAD_BYTES = 24
_FEWEST_BYTES = 8
_WRITE_BYTES = 1 << 20
_MAX_CHUNK_BYTES = (1 << 32) - 1


class LitData:
    """The format `litdata`."""

    name = "litdata"
    suffixes: tuple[str, ...] = ()
    names = _NAME
    compressible = False

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],
        target_bytes: int,
        options: ReadOptions,
    ) -> list[Split]:
        """Cut into ranges of items, from the first bytes; Arrow rows and packed chunks are one split.

        Raises:
            RecordError: the object is too short, or is no chunk though an index says so.
        """
        if not info.size_bytes:
            return [whole_object(info)]
        config = config_for(info.key, options)
        chunk = _look(info.key, info.size_bytes, read, config)
        if chunk is None:
            return TOKENS.plan_splits(info, read, target_bytes, options)
        if chunk.layout in {Layout.PACKED, Layout.ARROW}:
            return [whole_object(info)]
        if chunk.layout is Layout.TOKENS and config is not None:
            itemsize = _token_type(info.key, config).itemsize
            num_tokens = (info.size_bytes - 8 - 4 * chunk.num_items) // itemsize
            return cut_samples(info, -(-num_tokens // max(1, options.seq_len)), target_bytes)
        return cut_samples(info, chunk.num_items, target_bytes, unit=chunk.unit)

    def open_split(self, shard: ShardBytes, split: Split, options: ReadOptions) -> OpenSplit:
        """Open a range of items.

        Raises:
            RecordError: the chunk is cut or damaged, has no index beside it, is encrypted, or holds
                what is pickled or of an unknown kind.
        """
        size = shard.info.size_bytes
        if not size:
            return TOKENS.open_split(shard, split, options)
        config = config_for(split.key, options)
        chunk = _look(split.key, size, shard.read, config)
        if chunk is None:
            return TOKENS.open_split(shard, split, options)
        if config is not None and config.encryption is not None:
            raise _bad(split.key, "the chunk is encrypted and is not read")
        if config is not None and config.item_loader == TOKENS_LOADER:
            packed = chunk.layout is Layout.PACKED
            return TokenChunk(shard, split, options, _token_type(split.key, config), packed=packed)
        if chunk.layout is Layout.ARROW:
            return ArrowChunk(shard, split.key, options, chunk.num_items)
        if config is None and chunk.layout is Layout.ITEMS:
            config = _footer_config(shard)
        if config is None:
            raise _bad(
                split.key,
                "a LitData chunk, and nothing says how its items are stored: "
                + index_problem(split.key, options),
                hint="Copy index.json beside it; if these are tokens, give the file another name.",
            )
        opened = open_framed if chunk.layout is Layout.FRAMED else open_items
        found: ItemSplit = opened(
            shard, split, options, config, packed=chunk.layout is Layout.PACKED
        )
        return found

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write one chunk of dicts; the first sample settles the fields and their serializers.

        A footer, which litdata passes over, says how; `index_of` makes the index that litdata needs.

        Raises:
            RecordError: a later sample does not fit, a value would be pickled, or the chunk would
                pass 4 GiB.
        """
        return write_chunk(samples, file)[0]

    def write_within(self, samples: Iterable[Sample], file: BinaryIO, memory_bytes: int) -> int:
        """Keep at most `memory_bytes` of samples in memory; the rest waits in a temporary file."""
        return write_chunk(samples, file, memory_bytes=min(SPILL_BYTES, memory_bytes))[0]


class _Chunk(NamedTuple):
    """What the first bytes of a chunk show."""

    layout: Layout
    num_items: int
    unit: int = 1
    """Items in one zstd frame."""


def _look(
    key: str,
    size_bytes: int,
    read: Callable[[int, int], bytes | memoryview],
    config: LitDataConfig | None,
) -> _Chunk | None:
    """Return what a chunk is made like; None when the object is none."""
    if _PACKED_NAME.fullmatch(key):
        return _Chunk(Layout.PACKED, 0)
    head = bytes(read(0, min(size_bytes, _HEAD_BYTES)))
    if len(head) < _FEWEST_BYTES:
        raise _bad(key, f"truncated: {size_bytes} bytes are no chunk", offset=size_bytes)
    if head.startswith(_FRAMED_MAGIC):
        if len(head) < _HEAD_BYTES:
            raise _bad(key, "truncated: the object ends inside its header", offset=size_bytes)
        num_items, unit = struct.unpack_from("<II", head, 12)
        if not unit > 0 or size_bytes < _HEAD_BYTES + 4 * num_items:
            raise _bad(key, f"damaged: {num_items} items, {unit} a frame", offset=12)
        return _Chunk(Layout.FRAMED, num_items, unit)
    num_items, first = struct.unpack_from("<II", head)
    if first != 4 * (num_items + 2):
        if config is not None:
            raise _bad(key, "not a LitData chunk, though there is a LitData index beside it")
        return None
    if size_bytes < first:
        raise _bad(key, f"truncated: {size_bytes} bytes, {first} of them before the first item")
    if config is not None and config.item_loader == TOKENS_LOADER:
        return _Chunk(Layout.TOKENS, num_items)
    second = struct.unpack_from("<I", head, 8)[0] if num_items else -1
    return _Chunk(Layout.ARROW if second == first else Layout.ITEMS, num_items)


def _token_type(key: str, config: LitDataConfig) -> "np.dtype[np.generic]":
    try:
        return token_type(config.data_format[0] if config.data_format else "")
    except LitDataValueError as error:
        raise _bad(key, str(error)) from error


def _footer_config(shard: ShardBytes) -> LitDataConfig | None:
    """Return what `write` left at the chunk's end, if it did."""
    size = shard.info.size_bytes
    tail = bytes(shard.read(max(0, size - 12), size))
    if tail[4:] != FOOTER_MAGIC:
        return None
    start = size - 12 - struct.unpack_from("<I", tail)[0]
    try:
        return decode_json(bytes(shard.read(max(0, start), size - 12)), type=LitDataConfig)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _bad(shard.info.key, f"damaged: its footer cannot be read: {error}") from error


def _bad(key: str, reason: str, *, hint: str = "", offset: int = 0) -> RecordError:
    return RecordError(f"{key}: {reason}", hint=hint, key=key, reason=reason, offset=offset)


def write_chunk(
    samples: Iterable[Sample], file: BinaryIO, *, memory_bytes: int = SPILL_BYTES
) -> tuple[int, LitDataConfig]:
    """Write a chunk, and return the number of samples and what its index must say."""
    fields: dict[str, str] = {}
    sizes: list[int] = []
    with Spill(memory_bytes=memory_bytes) as bodies:
        for sample in samples:
            fields = fields or _fields_of(sample)
            body = _encode(sample, fields, len(sizes))
            bodies.write(body)
            sizes.append(len(body))
        base = 8 + 4 * len(sizes)
        if base + sum(sizes) > _MAX_CHUNK_BYTES:
            raise _unwritable(len(sizes) - 1, "the chunk would be larger than 4 GiB")
        offsets = base + np.cumsum([0, *sizes], dtype=np.int64)
        file.write(struct.pack("<I", len(sizes)) + offsets.astype("<u4").tobytes())
        file.writelines(bodies.pieces(_WRITE_BYTES))
    config = LitDataConfig(data_format=tuple(fields.values()), data_spec=dict_spec(list(fields)))
    footer = msgspec.json.encode(config)
    file.write(footer + struct.pack("<I", len(footer)) + FOOTER_MAGIC)
    return len(sizes), config


def _fields_of(sample: Sample) -> dict[str, str]:
    try:
        fields = {name: serializer_for(value) for name, value in sample.items()}
    except LitDataValueError as error:
        raise _unwritable(0, f"{error} would be pickled") from error
    if not fields:
        raise _unwritable(0, "it has no fields")
    return fields


def _encode(sample: Sample, fields: dict[str, str], index: int) -> bytes:
    if sample.keys() != fields.keys():
        raise _unwritable(index, f"the fields {', '.join(sample)}, not {', '.join(fields)}")
    try:
        values = list(
            starmap(encode_value, ((kind, sample[name]) for name, kind in fields.items()))
        )
    except (ValueError, TypeError, struct.error, RecursionError) as error:
        raise _unwritable(index, str(error)) from error
    return struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


def _unwritable(index: int, why: str) -> RecordError:
    return RecordError(f"sample {index} cannot be written to LitData: {why}", record=index + 1)


SHARD_FORMAT: ShardFormat = LitData()
