"""npz: several numpy arrays of equal length in a zip; sample i has row i of each, by the array's name.

As `numpy.savez` and `savez_compressed` write them. Rows are those of `npy`: writable arrays, or numpy
scalars of one-dimensional arrays. Arrays of objects, and arrays without rows or of another length than
the others, are refused by name. A file is one split. Stored arrays are used where they lie, compressed
ones are decoded into memory or a temporary file; either way the zip's own CRC-32 is checked first.
"""

import errno
import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tools_utilities.compression import cut_pieces, is_bomb
from tools_utilities.errors import QuarkError, RecordError, UsageError
from tools_utilities.line_index import whole_object
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import (
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
)
from tools_utilities.shard_formats.npy import (
    first_bad_text,
    header_bytes,
    map_rows,
    read_header,
    take_rows,
)
from tools_utilities.spill import Spill

_END = b"PK\x05\x06"
_END_BYTES = 22
_LOCAL_BYTES = 30
_MOST_DIRECTORY_BYTES = 4 << 20
_MOST_ARRAYS = 1024
_PIECE_BYTES = 1 << 20
_ENCRYPTED = 0x1
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_DATE = (1980, 1, 1, 0, 0, 0)
_BROKEN = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError,
    ValueError, OverflowError, IndexError, OSError,
)  # fmt: skip
"""What zipfile raises on damaged archives."""


class Npz:
    """The format `npz`."""

    name = "npz"
    suffixes: tuple[str, ...] = (".npz",)
    names = None
    compressible = False

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],  # noqa: ARG002 - the contract's; the arrays lie one after another
        target_bytes: int,  # noqa: ARG002 - the contract's; a row is not in one place
        options: ReadOptions,  # noqa: ARG002 - the contract's
    ) -> list[Split]:
        """Return one split."""
        return [whole_object(info)]

    def open_split(self, shard: ShardBytes, split: Split, options: ReadOptions) -> "NpzSplit":
        """Find the arrays, and decode those that are compressed.

        Raises:
            RecordError: it is no zip of arrays, damaged, or its arrays do not fit together.
        """
        return NpzSplit(shard, split, options)

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write rows of one type and shape a field; they are kept aside until their number is known.

        Raises:
            RecordError: a sample has other fields than the first, or rows of another type or shape.
        """
        return _write(samples, file)


class NpzSplit:
    """The arrays of a file, by row."""

    def __init__(self, shard: ShardBytes, split: Split, options: ReadOptions) -> None:
        self.key = split.key
        self.skipped: dict[str, int] = {}
        self._spills: list[Spill] = []
        self._rows: dict[str, npt.NDArray[Any]] = {}
        try:
            if shard.info.size_bytes:
                self._open(shard.read(0, shard.info.size_bytes), options)
        except _BROKEN as error:
            self.close()
            if isinstance(error, QuarkError):
                raise
            raise _bad(self.key, f"not a zip of arrays, or damaged: {error}") from error
        except BaseException:
            self.close()
            raise
        self.num_samples = len(next(iter(self._rows.values()), ()))
        self.num_bytes = sum(spill.held_bytes for spill in self._spills)
        if shard.path is None:
            self.num_bytes += shard.info.size_bytes

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return samples: each array's rows at `indices`, copied once.

        Raises:
            RecordError: a text has a number that is no character.
        """
        if not len(indices):
            return []
        blocks: dict[str, npt.NDArray[Any]] = {}
        for name, rows in self._rows.items():
            block = blocks[name] = take_rows(rows, indices)
            wrong = first_bad_text(block)
            if wrong is not None:
                index = indices[wrong]
                reason = f"row {index + 1} of array {name!r} has numbers that are no character"
                raise _bad(self.key, reason, record=index + 1, index=index)
        for spill in self._spills:
            spill.touched(len(indices), 0)
        names = list(blocks)
        return [dict(zip(names, row, strict=True)) for row in zip(*blocks.values(), strict=True)]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Refuse: a sample's rows do not lie in one place."""
        raise UsageError(
            f"{self.key}: samples of npz have no bytes of their own ({len(indices)} asked for)",
            hint="Leave out deserialize=.",
        )

    def close(self) -> None:
        """Free the decoded arrays."""
        self._rows = {}
        for spill in self._spills:
            spill.close()

    def _open(self, view: memoryview, options: ReadOptions) -> None:
        for member in self._members(view):
            name = member.filename.removesuffix(".npy")
            if options.columns is not None and name not in options.columns:
                continue
            data = self._bytes_of(view, member)

            def read(start: int, end: int, data: memoryview = data) -> memoryview:
                return data[start:end]

            try:
                header = read_header(self.key, read, len(data))
            except RecordError as error:
                reason = f"array {name!r}: {error.detail.get('reason', error)}"
                raise _bad(self.key, reason, hint=error.hint) from error
            self._rows[name] = map_rows(header, data)
        missing = [name for name in options.columns or () if name not in self._rows]
        missing = [name for name in missing if name not in options.optional_columns]
        if missing:
            raise _bad(self.key, f"no array {', '.join(missing)}")
        lengths = {name: len(rows) for name, rows in self._rows.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name}: {length}" for name, length in lengths.items())
            raise _bad(
                self.key,
                f"its arrays have different numbers of rows ({told})",
                hint="A sample is one row of each; write the others elsewhere, or read fewer columns.",
            )

    def _members(self, view: memoryview) -> list[zipfile.ZipInfo]:
        if bytes(view[-_END_BYTES:][:4]) != _END:
            # zipfile would look for the end further in front, and pass over what follows it.
            raise _bad(self.key, "truncated, no zip, or followed by something else")
        file = _ViewFile(view, _MOST_DIRECTORY_BYTES)
        with zipfile.ZipFile(io.BufferedReader(file)) as archive:
            members = archive.infolist()
        names = [member.filename for member in members]
        odd = [name for name in names if not name.endswith(".npy")]
        if odd or len(set(names)) < len(names) or len(names) > _MOST_ARRAYS:
            what = (
                f"{odd[0]!r} is no array" if odd else f"{len(names)} arrays, or one of them twice"
            )
            raise _bad(self.key, what)
        for member in members:
            if member.compress_type not in _METHODS or member.flag_bits & _ENCRYPTED:
                reason = f"{member.filename} is encrypted, or compressed in a way that numpy is not"
                raise _bad(self.key, reason)
        if is_bomb(sum(member.file_size for member in members), len(view)):
            raise _bad(
                self.key,
                f"a decompression bomb: {len(view):,} bytes would become "
                f"{sum(member.file_size for member in members):,}",
                hint="If it is data, store it uncompressed or in smaller objects.",
            )
        return members

    def _bytes_of(self, view: memoryview, member: zipfile.ZipInfo) -> memoryview:
        """Return an array's file: where it lies, or decoded."""
        if member.compress_type != zipfile.ZIP_STORED:
            return self._decoded(view, member)
        start = member.header_offset
        head = view[start : start + _LOCAL_BYTES]
        name_bytes, extra_bytes = struct.unpack_from("<HH", head, 26)
        start += _LOCAL_BYTES + name_bytes + extra_bytes
        data = view[start : start + member.file_size]
        checksum = 0
        for piece in cut_pieces(data, _PIECE_BYTES):
            checksum = zlib.crc32(piece, checksum)
        if len(data) != member.file_size or checksum != member.CRC:
            raise _bad(self.key, f"{member.filename} differs from its checksum")
        return data

    def _decoded(self, view: memoryview, member: zipfile.ZipInfo) -> memoryview:
        spill = Spill()
        self._spills.append(spill)
        file = _ViewFile(view)
        with zipfile.ZipFile(io.BufferedReader(file)) as archive, archive.open(member) as source:
            while piece := source.read(_PIECE_BYTES):
                spill.write(piece)
        return spill.view()


class _ViewFile(io.RawIOBase):
    """Bytes as a file, of which at most so many may be read."""

    def __init__(self, view: memoryview, most_bytes: int | None = None) -> None:
        self._view, self._place, self._left = view, 0, most_bytes

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go to a place."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: len(self._view)}[whence]
        if base + offset < 0:
            raise OSError(errno.EINVAL, "before the beginning")  # which zipfile expects
        self._place = base + offset
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer.

        Raises:
            BadZipFile: more is read than allowed.
        """
        piece = self._view[self._place : self._place + len(buffer)]
        if self._left is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise zipfile.BadZipFile(f"a directory of more than {_MOST_DIRECTORY_BYTES} bytes")
        buffer[: len(piece)] = piece
        self._place += len(piece)
        return len(piece)


def _bad(key: str, reason: str, *, hint: str = "", **detail: Any) -> RecordError:
    return RecordError(f"{key}: {reason}", hint=hint, key=key, reason=reason, **detail)


def _write(samples: Iterable[Sample], file: BinaryIO) -> int:
    columns: dict[str, tuple[npt.NDArray[Any], Spill]] = {}
    count = 0
    try:
        for sample in samples:
            if not count:
                columns = {name: (np.asarray(value), Spill()) for name, value in sample.items()}
                _check_names(columns)
            _keep(sample, columns, count)
            count += 1
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for name, (first, rows) in columns.items():
                member = zipfile.ZipInfo(f"{name}.npy", _DATE)
                with archive.open(member, "w", force_zip64=True) as target:
                    target.write(header_bytes(count, first))
                    for piece in rows.pieces(_PIECE_BYTES):
                        target.write(piece)
    finally:
        for _, rows in columns.values():
            rows.close()
    return count


def _check_names(columns: dict[str, Any]) -> None:
    odd = [
        name for name in columns if not name or "/" in name or "\0" in name or not name.isascii()
    ]
    if odd or not columns:
        raise _unwritable(0, f"{odd[0]!r} cannot name an array" if odd else "it has no field")


def _keep(sample: Sample, columns: dict[str, tuple[npt.NDArray[Any], Spill]], count: int) -> None:
    if set(sample) != set(columns):
        raise _unwritable(count, f"its fields are {', '.join(sample)}, not {', '.join(columns)}")
    for name, (first, rows) in columns.items():
        row = np.asarray(sample[name])
        if row.dtype.kind not in "biufcSUmM" or not row.nbytes:
            raise _unwritable(count, f"{name} is {row.dtype} of shape {row.shape}")
        if row.dtype != first.dtype or row.shape != first.shape:
            other = f"{first.dtype} of {first.shape}"
            raise _unwritable(count, f"{name} is {row.dtype} of {row.shape}, not {other}")
        rows.write(row.tobytes())


def _unwritable(index: int, why: str) -> RecordError:
    return RecordError(f"sample {index} cannot be written to npz: {why}", record=index + 1)


SHARD_FORMAT: ShardFormat = Npz()
