"""The open splits of LitData chunks: items by offset, zstd frames, token rows, Arrow rows."""

import struct
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from tools_utilities.compression import decompress_to_spill, decompressed
from tools_utilities.errors import UsageError
from tools_utilities.litdata_index import LitDataConfig, Structure
from tools_utilities.litdata_values import Decode, LitDataValueError, decoder_of
from tools_utilities.object_store import ObjectInfo
from tools_utilities.sample_ranges import check_offsets
from tools_utilities.shard_bytes import MemoryShardBytes
from tools_utilities.shard_format import ReadOptions, Sample, ShardBytes, Split
from tools_utilities.shard_formats.arrow_ipc import SHARD_FORMAT as ARROW
from tools_utilities.shard_formats.arrow_ipc import ArrowIpcSplit
from tools_utilities.spill import Spill
from tools_utilities.split_content import SplitContent

ITEM_FIELD = "item"
TOKEN_FIELD = "input_ids"  # noqa: S105 - a column of token ids, not a secret
_ARROW_MAGIC = b"LDARW01\0"
_TAIL_BYTES = 12
_FOOTERS = (_ARROW_MAGIC, b"QUARKLD\1")
_PREFIX_BYTES = 24
_FRAME = struct.Struct("<IIQII")


class Layout(Enum):
    """How a chunk is made."""

    ITEMS = "items"
    """A number, offsets, items."""
    FRAMED = "framed"
    """zstd frames of several items each, and a directory of them."""
    PACKED = "packed"
    """ITEMS, as one zstd object."""
    ARROW = "arrow"
    """Items of no bytes, then an Arrow file of the rows."""
    TOKENS = "tokens"
    """ITEMS whose bytes are token ids from first to last."""


class ItemSplit:
    """Items by index: 4 bytes of offset each."""

    def __init__(
        self,
        content: SplitContent,
        offsets: npt.NDArray[Any],
        read: Callable[[int, int], memoryview],
        decode: "ItemDecoder",
        *,
        first: int = 0,
        spill: Spill | None = None,
    ) -> None:
        self.key = content.key
        self.skipped: dict[str, int] = {}
        self.num_samples = len(offsets) - 1
        held = content.held_bytes if spill is None else spill.held_bytes
        self.num_bytes = offsets.nbytes + held
        self._content, self._offsets, self._read = content, offsets, read
        self._decoder, self._first, self._spill = decode, first, spill

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return the items at `indices` as samples.

        Raises:
            RecordError: one cannot be decoded.
        """
        return [
            self._decode(piece, index)
            for piece, index in zip(self._pieces(indices), indices, strict=True)
        ]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return each item's own bytes: sizes, then leaves."""
        return [bytes(piece) for piece in self._pieces(indices)]

    def close(self) -> None:
        """Free the decoded bytes."""
        if self._spill is not None:
            self._spill.close()
        self._content.close()

    def _pieces(self, indices: Sequence[int]) -> list[memoryview]:
        offsets = self._offsets
        pieces = [self._read(int(offsets[i]), int(offsets[i + 1])) for i in indices]
        (self._spill or self._content).touched(len(pieces), sum(map(len, pieces)))
        return pieces

    def _decode(self, piece: memoryview, index: int) -> Sample:
        try:
            return self._decoder.sample(piece, self.key)
        except (ValueError, struct.error, RecursionError) as error:  # a RecordError is a ValueError
            record = self._first + index + 1
            raise self._content.bad_record(
                str(error),
                place=f"item {record}",
                record=record,
                offset=int(self._offsets[index]),
                index=index,
            ) from error


class ItemDecoder:
    """Turns an item's bytes into a sample, as an index says."""

    def __init__(self, content: SplitContent, config: LitDataConfig, options: ReadOptions) -> None:
        num_leaves = len(config.data_format)
        self._sizes = struct.Struct(f"<{num_leaves}I")
        self._zstd = config.compression_level == "sample" and config.compression is not None
        self._structure: Structure | None = None
        try:
            if config.data_spec is not None:
                self._structure = Structure(config.data_spec, num_leaves)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise content.bad_record(f"the index's data_spec cannot be read: {error}") from error
        if self._structure is None and num_leaves != 1:
            raise content.bad_record("the index has no data_spec", hint="Copy index.json again.")
        chosen = self._chosen(content, options)
        self._names = None if self._structure is None else self._structure.fields
        self._kept = chosen
        self._decode: list[Decode | None] = []
        fields = (0,) if self._structure is None else self._structure.leaf_field
        for leaf, (field, name) in enumerate(zip(fields, config.data_format, strict=True)):
            if chosen is not None and self._names and self._names[field] not in chosen:
                self._decode.append(None)
                continue
            try:
                self._decode.append(decoder_of(name))
            except LitDataValueError as error:
                label = self._names[field] if self._names else f"leaf {leaf}"
                raise content.bad_record(f"{label}: {error}") from error

    def sample(self, piece: bytes | memoryview, key: str) -> Sample:
        """Return the sample of an item's bytes.

        Raises:
            ValueError, struct.error: it is damaged.
        """
        if self._zstd:
            piece = b"".join(decompressed([piece], "zstd", key=key))
        sizes = self._sizes.unpack_from(piece)
        position = self._sizes.size
        if position + sum(sizes) != len(piece):
            raise LitDataValueError(f"leaves of {sum(sizes)} bytes in {len(piece) - position}")
        leaves = []
        for size, decode in zip(sizes, self._decode, strict=True):
            value = bytes(piece[position : position + size]) if decode is not None else b""
            leaves.append(decode(value) if decode is not None else None)
            position += size
        item: Any = leaves[0] if self._structure is None else self._structure.item(leaves)
        if self._names is None:
            return {ITEM_FIELD: item}
        fields: Sample = dict(item)
        if self._kept is None:
            return fields
        return {name: value for name, value in fields.items() if name in self._kept}

    def _chosen(self, content: SplitContent, options: ReadOptions) -> tuple[str, ...] | None:
        names = self._structure.fields if self._structure is not None else None
        if names is None:
            names = (ITEM_FIELD,)
        wanted = options.columns
        if options.first_of:
            wanted = tuple(name for name in options.first_of if name in names)[:1]
        missing = sorted(set(wanted or ()) - set(names))
        if missing or (options.first_of and not wanted):
            absent = ", ".join(missing) or " or ".join(options.first_of)
            raise content.bad_record(f"no field {absent}; found {', '.join(names)}")
        return wanted


def open_items(
    shard: ShardBytes,
    split: Split,
    options: ReadOptions,
    config: LitDataConfig,
    *,
    packed: bool,
) -> ItemSplit:
    """Open a range of a chunk of items; `packed`: the whole of one that is a zstd object.

    Raises:
        RecordError: it is cut or damaged, or its index cannot be used.
    """
    content = SplitContent(shard, split)
    inside, first, end, spill = shard, split.start, split.end, None
    if packed:
        spill = _unpack(shard, split.key)
        inside = MemoryShardBytes(split.key, spill.view())
        head = bytes(inside.read(0, 4))
        first, end = 0, int.from_bytes(head, "little") if len(head) == 4 else 0  # noqa: PLR2004
    size = inside.info.size_bytes
    total = int.from_bytes(bytes(inside.read(0, 4)), "little")
    table_end = 8 + 4 * total
    if size < table_end or bytes(inside.read(4, 8)) != struct.pack("<I", table_end):
        raise content.bad_record("not a LitData chunk, or damaged", offset=4)
    _check_end(content, inside, total)
    offsets = np.frombuffer(inside.read(4 + 4 * first, 8 + 4 * end), "<u4").copy()
    check_offsets(content, offsets, at=4 + 4 * first, limit=size)
    if int(offsets[0]) < table_end:
        raise content.bad_record("damaged: an item inside the table of offsets", offset=4)
    decoder = ItemDecoder(content, config, options)
    return ItemSplit(content, offsets, inside.read, decoder, first=first, spill=spill)


def _unpack(shard: ShardBytes, key: str) -> Spill:
    return decompress_to_spill(shard.read(0, shard.info.size_bytes), "zstd", key=key)


def _check_end(content: SplitContent, shard: ShardBytes, total: int) -> None:
    """Make sure that the items end where the object, or a footer, begins."""
    size = shard.info.size_bytes
    last = int.from_bytes(bytes(shard.read(4 + 4 * total, 8 + 4 * total)), "little")
    if last == size:
        return
    if last > size:
        raise content.bad_record(f"truncated: {size} bytes, and {last} by its offsets", offset=size)
    tail = bytes(shard.read(max(last, size - _TAIL_BYTES), size))
    footer = int.from_bytes(tail[:4], "little") if len(tail) == _TAIL_BYTES else -1
    if tail[4:] not in _FOOTERS or last + footer + _TAIL_BYTES != size:
        raise content.bad_record(
            f"damaged, or truncated: {size - last} bytes follow the last item", offset=last
        )


def open_framed(
    shard: ShardBytes,
    split: Split,
    options: ReadOptions,
    config: LitDataConfig,
    *,
    packed: bool,  # noqa: ARG001 - as `open_items`
) -> ItemSplit:
    """Open a range of a chunk of zstd frames: those of the range are decoded.

    Raises:
        RecordError: it is cut or damaged, or its index cannot be used.
    """
    content = SplitContent(shard, split)
    size = shard.info.size_bytes
    version, _, total, unit, num_frames = struct.unpack("<HHIII", shard.read(8, _PREFIX_BYTES))
    table = _PREFIX_BYTES + 4 * (total + 1)
    directory_end = table + _FRAME.size * num_frames
    if version != 1 or num_frames != -(-total // unit) or directory_end > size:
        raise content.bad_record("damaged, or truncated: no directory of frames", offset=8)
    start = _PREFIX_BYTES + 4 * split.start
    offsets = np.frombuffer(shard.read(start, start + 4 * (split.end - split.start) + 4), "<u4")
    check_offsets(content, offsets, at=start, limit=(1 << 32) - 1)
    numbers = range(split.start // unit, -(-split.end // unit))
    frames = shard.read(table + _FRAME.size * numbers.start, table + _FRAME.size * numbers.stop)
    last = _FRAME.unpack(shard.read(directory_end - _FRAME.size, directory_end)) if total else None
    if last is not None and last[2] + last[3] != size:
        raise content.bad_record(
            f"damaged, or truncated: {size} bytes, and {last[2] + last[3]} by its frames",
            offset=size,
        )
    spill = Spill()
    try:
        for at, low, high, decoded in _frame_bounds(content, frames, size):
            piece = _inflate(content, shard.read(low, high), decoded, at)
            spill.write(piece)
    except BaseException:
        spill.close()
        raise
    base, view = int(offsets[0]), spill.view()
    if int(offsets[-1]) - base != len(view):
        spill.close()
        raise content.bad_record(
            f"damaged: frames of {len(view)} bytes for items of {int(offsets[-1]) - base}",
            offset=start,
        )
    decoder = ItemDecoder(content, config, options)
    return ItemSplit(
        content,
        offsets - np.uint32(base),
        lambda low, high: view[low:high],
        decoder,
        first=split.start,
        spill=spill,
    )


def _frame_bounds(
    content: SplitContent, frames: memoryview, size: int
) -> list[tuple[int, int, int, int]]:
    found = []
    for _, _, low, num_stored, num_decoded in _FRAME.iter_unpack(frames):
        if low + num_stored > size:
            raise content.bad_record("damaged, or truncated: a frame past the end", offset=low)
        found.append((low, low, low + num_stored, num_decoded))
    return found


def _inflate(content: SplitContent, stored: memoryview, num_decoded: int, offset: int) -> bytes:
    """Decode a frame; never more than it is said to hold."""
    pieces, length = [], 0
    for piece in decompressed([stored], "zstd", key=content.key):
        length += len(piece)
        pieces.append(piece)
        if length > num_decoded:
            break
    if length != num_decoded:
        raise content.bad_record(
            f"damaged: a frame of {length} bytes, not {num_decoded}", offset=offset
        )
    return b"".join(pieces)


class TokenChunk:
    """Token rows of `seq_len` ids out of a chunk for TokensLoader, by index; the last may be short."""

    def __init__(
        self,
        shard: ShardBytes,
        split: Split,
        options: ReadOptions,
        kind: "np.dtype[Any]",
        *,
        packed: bool = False,
    ) -> None:
        """Open the rows of a range; a chunk that is a zstd object is decoded, and opened whole."""
        if options.seq_len < 1:
            raise UsageError(f"seq_len={options.seq_len}: a sample needs at least one token")
        content = SplitContent(shard, split)
        self._spill: Spill | None = None
        end = split.end
        if packed:
            self._spill, end = _unpack(shard, split.key), 1 << 62
            shard = MemoryShardBytes(split.key, self._spill.view())
        self.key = content.key
        self.skipped: dict[str, int] = {}
        self._content, self._seq_len = content, options.seq_len
        size = shard.info.size_bytes
        total = int.from_bytes(bytes(shard.read(0, 4)), "little")
        start = 8 + 4 * total
        if size < start:
            raise content.bad_record("truncated: the object ends inside its offsets", offset=size)
        _check_end(content, shard, total)
        num_tokens, rest = divmod(size - start, kind.itemsize)
        if rest:
            raise content.bad_record(
                f"truncated: not a whole number of {kind.itemsize}-byte tokens", offset=size - rest
            )
        tokens = np.frombuffer(shard.read(start, size), kind)
        self._tokens = tokens[split.start * self._seq_len : end * self._seq_len]
        self._first = split.start
        self.num_samples = min(end, -(-num_tokens // self._seq_len)) - split.start
        self.num_bytes = content.held_bytes

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return the rows at `indices`: writable arrays of the chunk's number type."""
        native = self._tokens.dtype.newbyteorder("=")
        return [{TOKEN_FIELD: self._row(index).astype(native)} for index in indices]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return each row's own bytes, little-endian."""
        return [self._row(index).tobytes() for index in indices]

    def close(self) -> None:
        """Let go of the bytes."""
        self._tokens = self._tokens[:0].copy()
        if self._spill is not None:
            self._spill.close()
        self._content.close()

    def _row(self, index: int) -> npt.NDArray[Any]:
        return self._tokens[index * self._seq_len : (index + 1) * self._seq_len]


class ArrowChunk(ArrowIpcSplit):
    """The rows of a chunk that keeps them as an Arrow file behind its (empty) items."""

    def __init__(self, shard: ShardBytes, key: str, options: ReadOptions, num_items: int) -> None:
        """Find the rows, and open them.

        Raises:
            RecordError: they are cut or damaged, or not as many as there are items.
        """
        whole = Split(key=key, start=0, end=0, num_bytes=shard.info.size_bytes)
        content = SplitContent(shard, whole)
        _check_end(content, shard, num_items)
        size, start = shard.info.size_bytes, 8 + 4 * num_items
        if size == start:
            raise content.bad_record("damaged: items of no bytes", offset=8)
        rows = shard.read(start, size - _TAIL_BYTES)
        info = ObjectInfo(key=key, size_bytes=len(rows))
        inner = MemoryShardBytes(key, rows, info=info)
        splits = ARROW.plan_splits(info, lambda low, high: bytes(rows[low:high]), 1 << 62, options)
        super().__init__(inner, splits[0], options)
        if self.num_samples != num_items:
            raise content.bad_record(f"damaged: {self.num_samples} rows for {num_items} items")
