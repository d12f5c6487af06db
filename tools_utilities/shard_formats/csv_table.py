"""CSV: the first record names the columns, every other is a sample of text values.

As RFC 4180 has it: quoted fields may hold the delimiter, line ends and doubled quotes; blank lines
are no records. A header without a comma may have `;`, tabs or `|` instead; `.tsv` has tabs. Values
stay text (`"1"`, `""`): a CSV file does not say more. A file is one split, because only reading from
the start tells whether a line end is quoted. CSV has no end mark: a cut inside the last record shows
only if its quotes or its number of fields do.
"""

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, BinaryIO

import numpy as np

from tools_utilities.errors import RecordError
from tools_utilities.line_index import BOM, line_starts, whole_object
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import (
    Columns,
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
    split_suffix,
)
from tools_utilities.split_content import SplitContent

_LINES_AT_ONCE = 1024
_DELIMITERS = (";", "\t", "|")
_MAX_FIELD_BYTES = (1 << 31) - 1


class Csv:
    """The format `csv`."""

    name = "csv"
    suffixes: tuple[str, ...] = (".csv", ".tsv")
    names = None
    compressible = True

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],  # noqa: ARG002 - the contract's
        target_bytes: int,  # noqa: ARG002 - the contract's; a quoted line end cannot be told apart
        options: ReadOptions,  # noqa: ARG002 - the contract's
    ) -> list[Split]:
        """Return one split."""
        return [whole_object(info)]

    def open_split(
        self,
        shard: ShardBytes,
        split: Split,
        options: ReadOptions,  # noqa: ARG002 - the contract's
    ) -> "CsvSplit":
        """Find the records.

        Raises:
            RecordError: quotes do not match, or columns are named twice.
        """
        return CsvSplit(SplitContent(shard, split))

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write a header and one quoted record a sample; all values must be text.

        Raises:
            RecordError: a value is not text, or a sample has other columns than the first.
        """
        count = 0
        names: list[str] = []
        for sample in samples:
            if not count:
                names = list(sample)
                file.write(_record(names, 0))
            file.write(_record(_values(sample, names, count), count))
            count += 1
        return count


def _delimiter(key: str, header: bytes) -> str:
    """Return a comma where the header has one outside quotes, else what it has most of `;`, tab, `|`."""
    if split_suffix(key)[0].lower().endswith(".tsv"):
        return "\t"
    bare = re.sub(rb'"[^"]*"', b"", header)
    best = max(_DELIMITERS, key=lambda one: bare.count(one.encode()))
    return best if b"," not in bare and best.encode() in bare else ","


class CsvSplit:
    """The records of a file, by index: the line each begins at."""

    def __init__(self, content: SplitContent) -> None:
        self.key = content.key
        self.skipped: dict[str, int] = {}
        self._content = content
        view = content.shard.read(0, content.shard.info.size_bytes)
        self._base = len(BOM) if view[: len(BOM)] == BOM else 0
        self._view = view[self._base :]
        self._lines = line_starts(self._view, content.passed)
        self._delimiter = _delimiter(self.key, bytes(self._view[: self._lines[:2][-1]]))
        # From an iterator: a list of pairs takes twenty times the memory of the index.
        spans = np.fromiter(chain.from_iterable(self._records()), np.uint32).reshape(-1, 2)
        self.names = self._header(spans)
        self.columns: Columns | None = tuple((name, "text") for name in self.names) or None
        self._first, self._end = spans[1:, 0].copy(), spans[1:, 1].copy()
        self.num_samples = len(self._first)
        self.num_bytes = (
            self._lines.nbytes + self._first.nbytes + self._end.nbytes + content.held_bytes
        )

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Return the records at `indices` as text by column.

        Raises:
            RecordError: one is not UTF-8, or has more or fewer fields than the header.
        """
        return [
            self._sample(index, piece)
            for index, piece in zip(indices, self.read_raw(indices), strict=True)
        ]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return each record's own bytes, with its line end."""
        pieces = [self._piece(self._first[index], self._end[index]) for index in indices]
        self._content.touched(len(pieces), sum(map(len, pieces)))
        return pieces

    def close(self) -> None:
        """Free the decoded bytes."""
        self._view = memoryview(b"")
        self._content.close()

    def _piece(self, first_line: int, end_line: int) -> bytes:
        return bytes(self._view[self._lines[first_line] : self._lines[end_line]])

    def _records(self) -> Iterator[tuple[int, int]]:
        """Yield first and end line of each record, the header too; blank lines are none."""
        csv.field_size_limit(_MAX_FIELD_BYTES)  # the module's own limit is 128 KiB, and global
        reader = csv.reader(self._texts(), delimiter=self._delimiter, strict=True)
        first = 0
        try:
            for record in reader:
                if record:
                    yield first, reader.line_num
                first = reader.line_num
        except csv.Error as error:
            raise self._bad(first, None, f"not CSV: {error}") from error

    def _texts(self) -> Iterator[str]:
        for first in range(0, len(self._lines) - 1, _LINES_AT_ONCE):
            bounds = self._lines[first : first + _LINES_AT_ONCE + 1].tolist()
            for start, end in pairwise(bounds):
                yield str(self._view[start:end], "latin-1")
            self._content.passed(bounds[-1] - bounds[0])

    def _header(self, spans: "np.ndarray[tuple[int, int], np.dtype[np.uint32]]") -> list[str]:
        if not len(spans):
            return []
        names = self._fields(0, None, self._piece(*spans[0]))
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise self._bad(0, None, f"columns named twice: {', '.join(twice)}")
        return names

    def _sample(self, index: int, piece: bytes) -> Sample:
        line = int(self._first[index])
        fields = self._fields(line, index, piece)
        if len(fields) != len(self.names):
            reason = f"{len(fields)} fields, the header has {len(self.names)}"
            raise self._bad(line, index, reason)
        return dict(zip(self.names, fields, strict=True))

    def _fields(self, line: int, index: int | None, piece: bytes) -> list[str]:
        try:
            text = io.StringIO(piece.decode("utf-8"), newline="")
        except UnicodeDecodeError as error:
            reason = f"invalid UTF-8: byte 0x{piece[error.start]:02x} at byte {error.start}"
            raise self._bad(line, index, reason) from error
        return next(csv.reader(text, delimiter=self._delimiter, strict=True))

    def _bad(self, line: int, index: int | None, reason: str) -> RecordError:
        place: dict[str, Any] = {} if index is None else {"index": index}
        offset = self._base + int(self._lines[line])
        return self._content.bad_record(
            reason, place=f"line {line + 1}", record=line + 1, line=line + 1, offset=offset, **place
        )


def _values(sample: Sample, names: list[str], index: int) -> list[str]:
    if set(sample) != set(names):
        raise _unwritable(index, f"its columns are {', '.join(sample)}, not {', '.join(names)}")
    values = [sample[name] for name in names]
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str):
            raise _unwritable(index, f"{name} is {type(value).__name__}, not text")
    return values


def _record(values: list[str], index: int) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerow(values)
    try:
        return text.getvalue().encode("utf-8")
    except UnicodeEncodeError as error:
        raise _unwritable(index, str(error)) from error


def _unwritable(index: int, why: str) -> RecordError:
    return RecordError(
        f"sample {index} cannot be written as CSV: {why}",
        hint="Write jsonl instead.",
        record=index + 1,
    )


SHARD_FORMAT: ShardFormat = Csv()
