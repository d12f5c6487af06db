"""npy: one numpy array in a file; a sample is one row, its entry along the first axis.

A row is `{"array": row}`; rows of a two-dimensional array of whole numbers (of 2 bytes or more) are
token sequences, `{"input_ids": row}`. The rows of a one-dimensional array are numpy scalars. Numbers
come in the machine's byte order, other than that as stored. The header is read with a pattern, never
evaluated; arrays of objects are pickles and are refused, and so are structured types and arrays
without an axis. Uncompressed arrays in C order are cut into byte ranges on rows.
"""

import math
import re
import struct
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from tools_utilities.errors import RecordError
from tools_utilities.line_index import whole_object
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import (
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
    split_suffix,
)
from tools_utilities.spill import Spill
from tools_utilities.split_content import SplitContent

ROW_FIELD = "array"
TOKEN_FIELD = "input_ids"  # noqa: S105 - a column of token ids, not a secret
_MAGIC = b"\x93NUMPY"
_HEAD_BYTES = 4096
_MAX_HEADER_BYTES = 64 << 10
_ALIGNMENT = 64
_WRITE_BYTES = 1 << 20

_DESCR = re.compile(r"'descr'\s*:\s*('[^']*'|\[)")
_ORDER = re.compile(r"'fortran_order'\s*:\s*(True|False)\b")
_SHAPE = re.compile(r"'shape'\s*:\s*\(([0-9,\sL]*)\)")
_PLAIN_TYPE = re.compile(r"[<>|=]?(?:[biufcSU][0-9]{1,9}|[mM]8(?:\[[0-9]{0,9}[A-Za-z]{1,2}\])?)")


class NpyHeader(NamedTuple):
    """What the header says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    num_bytes: int
    """Of the header itself: where the rows begin."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self.dtype.itemsize * math.prod(self.shape[1:])

    @property
    def field(self) -> str:
        """The field that a row is delivered as."""
        return field_of(self.dtype, len(self.shape))


def field_of(dtype: np.dtype[Any], num_axes: int) -> str:
    """Return `input_ids` for a two-dimensional array of whole numbers, else `array`.

    Bytes (8-bit numbers) are pixels or flags more often than tokens.
    """
    is_tokens = num_axes == 2 and dtype.kind in "iu" and dtype.itemsize > 1  # noqa: PLR2004
    return TOKEN_FIELD if is_tokens else ROW_FIELD


class Npy:
    """The format `npy`."""

    name = "npy"
    suffixes: tuple[str, ...] = (".npy",)
    names = None
    compressible = True

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],
        target_bytes: int,
        options: ReadOptions,  # noqa: ARG002 - the contract's
    ) -> list[Split]:
        """Cut at rows, from the header; a compressed object, or one in Fortran order, is one split.

        Raises:
            RecordError: the header cannot be read, or the object's size is not what it says.
        """
        if split_suffix(info.key)[1] is not None or not info.size_bytes:
            return [whole_object(info)]
        header = read_header(info.key, read, info.size_bytes)
        num_rows = header.shape[0]
        pieces = max(1, min(num_rows, round(info.size_bytes / max(1, target_bytes))))
        pieces = 1 if header.fortran_order else pieces
        rows = [num_rows * i // pieces for i in range(pieces + 1)]
        ends = [header.num_bytes + row * header.row_bytes for row in rows]
        return [
            Split(
                key=info.key,
                start=ends[i] if i else 0,
                end=ends[i + 1],
                num_bytes=ends[i + 1] - (ends[i] if i else 0),
                num_samples=rows[i + 1] - rows[i],
            )
            for i in range(pieces)
        ]

    def open_split(
        self,
        shard: ShardBytes,
        split: Split,
        options: ReadOptions,  # noqa: ARG002 - the contract's
    ) -> "NpySplit":
        """Open a range of rows; costs nothing.

        Raises:
            RecordError: the header cannot be read, or the (decoded) size is not what it says.
        """
        return NpySplit(SplitContent(shard, split))

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write rows of one type and shape; they are kept aside until their number is known.

        Raises:
            RecordError: a sample is not one row, differs from the first, or would come back under
                another field.
        """
        return _write(samples, file)


def read_header(
    key: str, read: Callable[[int, int], bytes | memoryview], size_bytes: int
) -> NpyHeader:
    """Read and check the header of an array that is `size_bytes` long.

    Raises:
        RecordError: it is none, holds objects or records, or promises another size.
    """
    head = bytes(read(0, min(_HEAD_BYTES, size_bytes)))
    if head[:6] != _MAGIC[: len(head)] or not head:
        raise _bad(key, "not an npy file: it does not begin with \\x93NUMPY")
    length_format = {1: "<H", 2: "<I", 3: "<I"}.get(head[6]) if len(head) > 6 else "<I"  # noqa: PLR2004
    if length_format is None:
        raise _bad(key, f"npy version {head[6]} is not known", offset=6)
    start = 8 + struct.calcsize(length_format)
    if len(head) < start:
        raise _bad(key, "truncated: the object ends inside the header", offset=len(head))
    end = start + struct.unpack_from(length_format, head, 8)[0]
    if end > size_bytes:
        raise _bad(key, f"truncated: {size_bytes} bytes, and a header of {end}", offset=size_bytes)
    if end - start > _MAX_HEADER_BYTES:
        raise _bad(key, f"a header of {end - start} bytes", offset=8)
    text = head[start:end] if end <= len(head) else bytes(read(start, end))
    header = _parse_header(key, text.decode("utf-8", "replace"), end)
    promised = end + header.shape[0] * header.row_bytes
    if promised != size_bytes:
        what = "truncated" if promised > size_bytes else "something follows the array"
        raise _bad(
            key,
            f"{what}: {size_bytes} bytes, and {promised} for the shape {header.shape}",
            offset=min(promised, size_bytes),
        )
    return header


def _parse_header(key: str, text: str, num_bytes: int) -> NpyHeader:
    descr, order, shape = _DESCR.search(text), _ORDER.search(text), _SHAPE.search(text)
    if descr is None or order is None or shape is None:
        raise _bad(key, f"not an npy header: {text[:80]!r}", offset=8)
    dtype = _plain_dtype(key, descr[1].strip("'"))
    sizes = [size.strip().rstrip("L") for size in shape[1].split(",")]
    if any(len(size) > 18 for size in sizes):  # noqa: PLR2004 - digits of 2**63
        raise _bad(key, f"not a shape: ({shape[1][:80]})", offset=8)
    try:
        dims = tuple(int(size) for size in sizes if size)
    except ValueError as error:
        raise _bad(key, f"not a shape: ({shape[1][:80]})", offset=8) from error
    if not dims or len(dims) > 64:  # noqa: PLR2004 - numpy's own limit
        raise _bad(key, f"an array with {len(dims)} axes has no rows to read", offset=8)
    header = NpyHeader(dtype, dims, order[1] == "True", num_bytes)
    if not header.row_bytes and dims[0]:
        raise _bad(key, f"rows of no bytes: {dtype} of shape {dims}", offset=8)
    return header


def _plain_dtype(key: str, text: str) -> np.dtype[Any]:
    if text.lstrip("<>|=").startswith("O"):
        raise _bad(
            key,
            "an array of Python objects is pickled and is not read",
            hint="Save it with a number or text type.",
        )
    if not _PLAIN_TYPE.fullmatch(text):
        raise _bad(key, f"the type {text[:80]!r} is not read", hint="Use numbers or text.")
    try:
        return np.dtype(text)
    except (TypeError, ValueError) as error:
        raise _bad(key, f"the type {text[:80]!r} is not known: {error}") from error


def _bad(key: str, reason: str, *, hint: str = "", **detail: Any) -> RecordError:
    return RecordError(f"{key}: {reason}", hint=hint, key=key, reason=reason, **detail)


class NpySplit:
    """The rows of one byte range, by index."""

    def __init__(self, content: SplitContent) -> None:
        self.key = content.key
        self.skipped: dict[str, int] = {}
        self._content = content
        shard, split = content.shard, content.split
        self._rows: npt.NDArray[Any] = np.zeros((0,), np.uint8)
        self._field = ROW_FIELD
        if shard.info.size_bytes:
            header = read_header(content.key, shard.read, shard.info.size_bytes)
            self._field = header.field
            self._rows = self._map_rows(header, split)
        self.num_samples = len(self._rows)
        self.num_bytes = content.held_bytes

    def read_block(self, indices: Sequence[int]) -> npt.NDArray[Any]:
        """Return rows as one array in native byte order, copied once.

        Raises:
            RecordError: a text has a number that is no character.
        """
        self._content.touched(len(indices), len(indices) * self._rows[:1].nbytes)
        block = take_rows(self._rows, indices)
        wrong = first_bad_text(block)
        if wrong is not None:
            index = indices[wrong]
            reason = (
                f"row {index + 1} of the split is no text: it has numbers that are no character"
            )
            raise self._content.bad_record(reason, index=index)
        return block

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return the rows at `indices`: writable arrays, or numpy scalars."""
        return [{self._field: row} for row in self.read_block(indices)] if len(indices) else []

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return each row's own bytes, as stored, in C order."""
        return [np.asarray(self._rows[index]).tobytes() for index in indices]

    def close(self) -> None:
        """Free the decoded bytes."""
        self._rows = self._rows[:0].copy()
        self._content.close()

    def _map_rows(self, header: NpyHeader, split: Split) -> npt.NDArray[Any]:
        start = max(split.start, header.num_bytes)
        view = self._content.shard.read(start, split.end)
        num_rows, rest = divmod(len(view), header.row_bytes or 1)
        if rest or (start - header.num_bytes) % (header.row_bytes or 1):
            raise self._content.bad_record("the range is not a whole number of rows", offset=start)
        if header.fortran_order:
            return _shaped(header, view)
        return np.frombuffer(view, header.dtype).reshape((num_rows, *header.shape[1:]))


def map_rows(header: NpyHeader, file: memoryview) -> npt.NDArray[Any]:
    """Return the array of a whole npy file, where it lies."""
    return _shaped(header, file[header.num_bytes :])


def _shaped(header: NpyHeader, data: memoryview) -> npt.NDArray[Any]:
    flat = np.frombuffer(data, header.dtype)
    return flat.reshape(header.shape, order="F" if header.fortran_order else "C")


def take_rows(rows: npt.NDArray[Any], indices: Sequence[int]) -> npt.NDArray[Any]:
    """Return rows as one array in native byte order, copied once."""
    block: npt.NDArray[Any] = rows[list(indices)]
    return block.astype(block.dtype.newbyteorder("="), copy=False)


def first_bad_text(block: npt.NDArray[Any]) -> int | None:
    """Return the first row of text with numbers beyond Unicode, which crash numpy's conversion."""
    if block.dtype.kind != "U" or not block.size:
        return None
    numbers = np.ascontiguousarray(block).view(np.uint32).reshape(len(block), -1)
    wrong = np.flatnonzero((numbers > sys.maxunicode).any(axis=1))
    return int(wrong[0]) if len(wrong) else None


def _write(samples: Iterable[Sample], file: BinaryIO) -> int:
    first: npt.NDArray[Any] | None = None
    count = 0
    with Spill() as rows:
        for sample in samples:
            row = _row_of(sample, count)
            first = row if first is None else first
            if row.dtype != first.dtype or row.shape != first.shape:
                raise _unwritable(
                    count, f"{row.dtype} of shape {row.shape}, not {first.dtype} of {first.shape}"
                )
            rows.write(row.tobytes())
            count += 1
        file.write(header_bytes(count, first))
        file.writelines(rows.pieces(_WRITE_BYTES))
    return count


def _row_of(sample: Sample, index: int) -> npt.NDArray[Any]:
    name = next(iter(sample), "")
    if len(sample) != 1 or name not in {ROW_FIELD, TOKEN_FIELD}:
        raise _unwritable(index, f"it needs the one field {ROW_FIELD} or {TOKEN_FIELD}")
    row = np.asarray(sample[name])
    if row.dtype.kind not in "biufcSUmM" or not row.nbytes:
        raise _unwritable(index, f"rows of {row.dtype} and shape {row.shape} are not written")
    if field_of(row.dtype, row.ndim + 1) != name:
        raise _unwritable(
            index, f"{row.dtype} of shape {row.shape} would not be read back as {name}"
        )
    return row


def header_bytes(num_rows: int, row: npt.NDArray[Any] | None) -> bytes:
    """Return the header of a file of so many rows like `row`."""
    dtype = np.dtype(np.float64) if row is None else row.dtype
    shape = (num_rows, *(() if row is None else row.shape))
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape}, }}"
    padding = -(len(_MAGIC) + 4 + len(text) + 1) % _ALIGNMENT
    body = text.encode() + b" " * padding + b"\n"
    return _MAGIC + b"\x01\x00" + struct.pack("<H", len(body)) + body


def _unwritable(index: int, why: str) -> RecordError:
    return RecordError(f"sample {index} cannot be written to npy: {why}", record=index + 1)


SHARD_FORMAT: ShardFormat = Npy()
