"""MDS: the shards of mosaicml-streaming (`.mds`, compressed `.mds.zstd`), read without their index.

A shard says all that is needed: the number of samples, their offsets, the columns as JSON, the
samples. Values are as the streaming library gives them (numpy scalars and arrays, text, numbers),
except pictures, which are the bytes stored (`pil`: its own raw layout). A `pkl` column is refused by
name: nothing in Quark unpickles data. Uncompressed shards are cut into ranges of samples.
"""

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from tools_utilities.errors import RecordError
from tools_utilities.line_index import whole_object
from tools_utilities.mds_values import (
    Decode,
    MdsValueError,
    decoder_of,
    encode_value,
    encoded_size,
    encoding_for,
)
from tools_utilities.object_store import ObjectInfo
from tools_utilities.sample_ranges import check_offsets, cut_samples
from tools_utilities.shard_format import (
    Columns,
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
    split_suffix,
)
from tools_utilities.spill import SPILL_BYTES, Spill
from tools_utilities.split_content import SplitContent

_U32 = struct.Struct("<I")
_MAX_COLUMNS_BYTES = 16 << 20
_WRITE_BYTES = 1 << 20
_MAX_SHARD_BYTES = (1 << 32) - 1


class Mds:
    """The format `mds`."""

    name = "mds"
    suffixes: tuple[str, ...] = (".mds",)
    names = None
    compressible = True

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],
        target_bytes: int,
        options: ReadOptions,  # noqa: ARG002 - the contract's
    ) -> list[Split]:
        """Cut into ranges of samples; only their number is read. A compressed object is one split.

        Raises:
            RecordError: the object is too short for that many samples.
        """
        if split_suffix(info.key)[1] is not None or not info.size_bytes:
            return [whole_object(info)]
        return cut_samples(info, _count(info.key, read, info.size_bytes), target_bytes)

    def open_split(self, shard: ShardBytes, split: Split, options: ReadOptions) -> "MdsSplit":
        """Read the columns and the offsets of a range.

        Raises:
            RecordError: the shard is cut or damaged, lacks a column asked for, or has a column that
                is pickled or of an unknown encoding.
        """
        return MdsSplit(SplitContent(shard, split), options)

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write one shard, as MDSWriter lays it out; the first sample settles columns and encodings.

        Raises:
            RecordError: a later sample does not fit them, or the shard would pass 4 GiB.
        """
        return _write(samples, file, SPILL_BYTES)

    def write_within(self, samples: Iterable[Sample], file: BinaryIO, memory_bytes: int) -> int:
        """Keep at most `memory_bytes` of samples in memory; the rest waits in a temporary file."""
        return _write(samples, file, min(SPILL_BYTES, memory_bytes))


class _Column(NamedTuple):
    """One column of a shard."""

    name: str
    encoding: str
    size: int | None
    """Bytes of every value; None: each sample says."""
    decode: Decode | None
    """None: not asked for."""


class MdsSplit:
    """The samples of a range, by index: 4 bytes of offset a sample."""

    def __init__(self, content: SplitContent, options: ReadOptions) -> None:
        self.key = content.key
        self.skipped: dict[str, int] = {}
        self._content = content
        self._shard = content.shard
        size, split = content.shard.info.size_bytes, content.split
        self._first, self.num_samples = 0, 0
        self._offsets = np.zeros(1, np.uint32)
        self._columns: list[_Column] = []
        self.columns: Columns | None = None
        if size:
            total = _count(content.key, self._shard.read, size)
            end = total if content.compression is not None else split.end
            self._first = 0 if content.compression is not None else split.start
            self.num_samples = end - self._first
            self._columns = self._read_columns(total, size, options)
            read = [column for column in self._columns if column.decode is not None]
            self.columns = tuple((column.name, column.encoding) for column in read)
            table = self._shard.read(4 + 4 * self._first, 8 + 4 * end)
            self._offsets = np.frombuffer(table, "<u4").copy()
            check_offsets(content, self._offsets, at=4 + 4 * self._first, limit=size)
        self._sizes = struct.Struct(f"<{sum(col.size is None for col in self._columns)}I")
        self.num_bytes = self._offsets.nbytes + content.held_bytes

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return the samples at `indices`.

        Raises:
            RecordError: one cannot be decoded.
        """
        pieces = self._pieces(indices)
        return [self._sample(piece, index) for piece, index in zip(pieces, indices, strict=True)]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return each sample's own bytes: sizes, then values, as MDS stores them."""
        return [bytes(piece) for piece in self._pieces(indices)]

    def close(self) -> None:
        """Free the decoded bytes."""
        self._content.close()

    def _pieces(self, indices: Sequence[int]) -> list[memoryview]:
        offsets, read = self._offsets, self._shard.read
        pieces = [read(int(offsets[i]), int(offsets[i + 1])) for i in indices]
        self._content.touched(len(pieces), sum(map(len, pieces)))
        return pieces

    def _sample(self, piece: memoryview, index: int) -> Sample:
        sample: Sample = {}
        name = ""
        try:
            sizes = iter(self._sizes.unpack_from(piece))
            position = self._sizes.size
            for name, _, fixed, decode in self._columns:
                size = next(sizes) if fixed is None else fixed
                value = piece[position : position + size]
                position += size
                if position > len(piece):
                    raise MdsValueError(f"it ends {position - len(piece)} bytes after its sample")
                if decode is not None:
                    sample[name] = decode(bytes(value))
            if position != len(piece):
                raise MdsValueError(f"{len(piece) - position} bytes follow it")
        except (ValueError, struct.error, ArithmeticError, RecursionError) as error:
            raise self._bad(index, f"column {name!r}: {error}") from error
        return sample

    def _bad(self, index: int, reason: str) -> RecordError:
        record = self._first + index + 1
        offset = int(self._offsets[index])
        return self._content.bad_record(
            reason, place=f"sample {record}", record=record, offset=offset, index=index
        )

    def _read_columns(self, total: int, size: int, options: ReadOptions) -> list[_Column]:
        start = 8 + 4 * total
        first, last = (_U32.unpack(self._shard.read(at, at + 4))[0] for at in (4, 4 + 4 * total))
        if not start <= first <= last or first - start > _MAX_COLUMNS_BYTES:
            raise self._content.bad_record(
                "not an MDS shard, or damaged: no columns before its first sample", offset=4
            )
        if last != size:
            what = "truncated" if last > size else "something follows the last sample"
            raise self._content.bad_record(
                f"{what}: {size} bytes, and {last} by its offsets", offset=min(last, size)
            )
        columns = self._parse_columns(bytes(self._shard.read(start, first)), start)
        return self._choose(columns, options)

    def _parse_columns(self, text: bytes, offset: int) -> list[tuple[str, str, int | None]]:
        try:
            config = json.loads(text)
            columns = list(
                zip(
                    config["column_names"],
                    config["column_encodings"],
                    config["column_sizes"],
                    strict=True,
                )
            )
            known = config["version"] == 2 and config["format"] == "mds"  # noqa: PLR2004
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._content.bad_record(
                f"the columns cannot be read: {error}", offset=offset
            ) from error
        for name, encoding, size in columns:
            known = known and isinstance(name, str) and isinstance(encoding, str)
            known = known and (size is None or (type(size) is int and size >= 0))
        if not known:
            raise self._content.bad_record("not MDS columns, or of another version", offset=offset)
        return columns

    def _choose(
        self, columns: list[tuple[str, str, int | None]], options: ReadOptions
    ) -> list[_Column]:
        wanted = options.columns
        if options.first_of:
            names = [name for name, _, _ in columns]
            wanted = tuple(name for name in options.first_of if name in names)[:1]
        missing = sorted(set(wanted or ()) - {name for name, _, _ in columns})
        if missing or (options.first_of and not wanted):
            found = ", ".join(name for name, _, _ in columns)
            absent = ", ".join(missing) or " or ".join(options.first_of)
            raise self._content.bad_record(f"no column {absent}; found {found}")
        chosen = []
        for name, encoding, size in columns:
            decode = None
            if wanted is None or name in wanted:
                try:
                    decode = decoder_of(encoding, allow_nan=options.allow_nan)
                    fixed = encoded_size(encoding)
                except MdsValueError as error:
                    raise self._content.bad_record(f"column {name!r}: {error}") from error
                if fixed != size:
                    raise self._content.bad_record(
                        f"column {name!r}: {encoding} of {size} bytes, not {fixed}"
                    )
            chosen.append(_Column(name, encoding, size or None, decode))
        return chosen


def _count(key: str, read: Callable[[int, int], bytes | memoryview], size_bytes: int) -> int:
    head = bytes(read(0, 4))
    count = _U32.unpack(head)[0] if len(head) == 4 else 0  # noqa: PLR2004
    if size_bytes < 8 + 4 * count:
        raise RecordError(
            f"{key}: truncated, or not an MDS shard: {size_bytes} bytes for {count} samples",
            key=key,
            reason="truncated",
            offset=size_bytes,
        )
    return count


def _write(samples: Iterable[Sample], file: BinaryIO, memory_bytes: int) -> int:
    columns: dict[str, str] | None = None
    sizes: list[int] = []
    with Spill(memory_bytes=memory_bytes) as bodies:
        for sample in samples:
            if columns is None:
                columns = _columns_of(sample)
            body = _encode(sample, columns, len(sizes))
            bodies.write(body)
            sizes.append(len(body))
        config = _config(columns or {})
        base = 8 + 4 * len(sizes) + len(config)
        if base + sum(sizes) > _MAX_SHARD_BYTES:
            raise _unwritable(len(sizes) - 1, "the shard would be larger than 4 GiB")
        offsets = base + np.cumsum([0, *sizes], dtype=np.int64)
        file.write(_U32.pack(len(sizes)) + offsets.astype("<u4").tobytes() + config)
        file.writelines(bodies.pieces(_WRITE_BYTES))
    return len(sizes)


def _columns_of(sample: Sample) -> dict[str, str]:
    columns = {name: encoding_for(sample[name]) for name in sorted(sample)}
    if not columns:
        raise _unwritable(0, "it has no fields")
    return columns


def _encode(sample: Sample, columns: dict[str, str], index: int) -> bytes:
    if set(sample) != set(columns):
        raise _unwritable(index, f"the fields {', '.join(sample)}, not {', '.join(columns)}")
    sizes, values = b"", []
    for name, encoding in columns.items():
        try:
            value = encode_value(encoding, sample[name])
        except (ValueError, TypeError, struct.error, RecursionError) as error:
            raise _unwritable(index, f"{name}: {error}") from error
        if encoded_size(encoding) is None:
            sizes += _U32.pack(len(value))
        values.append(value)
    return sizes + b"".join(values)


def index_of(shards: Sequence[tuple[str, int, int, bytes]]) -> bytes:
    """Return the `index.json` that mosaicml-streaming needs beside shards.

    Each is (file name, bytes, samples, the columns as its head has them).
    """
    entries = []
    for name, num_bytes, num_samples, columns in shards:
        raw = {"basename": name, "bytes": num_bytes, "hashes": {}}
        entry = {**json.loads(columns), "samples": num_samples}
        entries.append({**entry, "raw_data": raw, "zip_data": None})
    return json.dumps({"version": 2, "shards": entries}, sort_keys=True).encode()


def _config(columns: dict[str, str]) -> bytes:
    """Return the columns as MDSWriter writes them into a shard."""
    config = {
        "version": 2,
        "format": "mds",
        "compression": None,
        "hashes": [],
        "size_limit": None,
        "column_names": list(columns),
        "column_encodings": list(columns.values()),
        "column_sizes": [encoded_size(encoding) for encoding in columns.values()],
    }
    return json.dumps(config, sort_keys=True).encode()


def _unwritable(index: int, why: str) -> RecordError:
    return RecordError(f"sample {index} cannot be written to MDS: {why}", record=index + 1)


SHARD_FORMAT: ShardFormat = Mds()
