"""JSON lines: one object a line, only LF ends a line (so U+2028 inside a string is just text).

Blank and white-space-only lines are no samples. Uncompressed objects are cut into byte ranges; a
line belongs to the range its first byte lies in. NaN and infinities are errors unless `allow_nan`;
of repeated keys the last wins (`strict`: an error).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tools_utilities.json_line_sidecar import known_lines
from tools_utilities.json_pieces import (
    BATCH_BYTES,
    BATCH_RECORDS,
    LineBatch,
    regular_lines,
)
from tools_utilities.json_records import (
    BadJsonError,
    ExactJson,
    decode_objects,
    encode_line,
    index_json_lines,
)
from tools_utilities.line_index import (
    Offsets,
    count_lines,
    count_lines_before,
    own_lines,
    plan_byte_ranges,
    whole_object,
)
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import (
    ReadOptions,
    RecordSpans,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
    split_suffix,
)
from tools_utilities.split_content import SplitContent

_FIRST_RECORDS = 16


class JsonLines:
    """The format `jsonl`."""

    name = "jsonl"
    suffixes: tuple[str, ...] = (".jsonl", ".ndjson")
    names = None
    compressible = True

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],  # noqa: ARG002 - the contract's; lines need no footer
        target_bytes: int,
        options: ReadOptions,  # noqa: ARG002 - the contract's
    ) -> list[Split]:
        """Cut into byte ranges; a compressed object is one."""
        if split_suffix(info.key)[1] is not None:
            return [whole_object(info)]
        return plan_byte_ranges(info, target_bytes)

    def open_split(self, shard: ShardBytes, split: Split, options: ReadOptions) -> "JsonlSplit":
        """Index the lines of a range; nothing is decoded yet."""
        return JsonlSplit(SplitContent(shard, split), options)

    def lines_in_order(
        self, shard: ShardBytes, split: Split, options: ReadOptions, first: int = 0
    ) -> Iterator[LineBatch]:
        """Yield the lines of a range from record `first` on, each decoded once to check it.

        An index is made only to find `first`, or once there is something that is not one plain
        record a line.

        Raises:
            RecordError: as `JsonlSplit.read`.
        """
        content = SplitContent(shard, split)
        try:
            view = own_lines(content.shard, content.split)[0]
            end_byte = 0
            if not (first or options.strict):
                for batch in regular_lines(view):
                    content.touched(1, batch.end_byte - batch.start_byte)
                    end_byte, first = batch.end_byte, batch.first + len(batch.lines)
                    yield batch
            if end_byte < len(view):
                yield from JsonlSplit(content, options).lines_from(first)
        finally:
            content.close()

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write one compact line a sample; a float that is not finite is refused."""
        count = 0
        for sample in samples:
            file.write(encode_line(sample, count))
            count += 1
        return count


class JsonlSplit:
    """The records of one byte range, by index."""

    def __init__(self, content: SplitContent, options: ReadOptions) -> None:
        self.key = content.key
        self._content = content
        self._options = options
        self._view, self._base, self._starts, self._irregular = _lines_of(content)
        self._lines_before: int | None = None
        self.num_samples = len(self._starts) - 1 if len(self._view) else 0
        self.num_bytes = self._starts.nbytes + content.held_bytes
        self.skipped: dict[str, int] = {}
        # A spilled split lets go of pages as it is read, record by record counted.
        plain = self._irregular is None and not options.strict and content.compression is None
        self.record_spans = RecordSpans(self._view, self._starts, decode_objects) if plain else None

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Decode the records at `indices`: all at once, or one by one where that would not be exact."""
        pieces = self._slices(indices)
        regular = not self._options.strict and (
            self._irregular is None or not self._irregular[list(indices)].any()
        )
        samples = decode_objects(pieces) if regular else None
        if samples is not None:
            return samples
        exact = ExactJson(self._options)
        return [
            self._decode_one(exact, bytes(piece), index)
            for piece, index in zip(pieces, indices, strict=True)
        ]

    def lines_from(self, first: int) -> Iterator[LineBatch]:
        """Yield the lines from record `first` on, as `read_raw`, having decoded them as `read` does."""
        count = _FIRST_RECORDS
        while first < self.num_samples:
            indices = range(first, min(first + count, self.num_samples))
            self.read(indices)  # a bad record is found here, with its place
            lines = self.read_raw(indices)
            begin, end = int(self._starts[first]), int(self._starts[indices.stop])
            yield LineBatch(
                first=first,
                lines=lines,
                start_byte=begin,
                end_byte=end,
                range_bytes=len(self._view),
            )
            first = indices.stop
            each = max(1, (end - begin) // len(indices))
            count = max(1, min(BATCH_RECORDS, 8 * count, BATCH_BYTES // each))

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return each line's own bytes, without its LF or CRLF."""
        return [own_bytes(piece) for piece in self._slices(indices)]

    def close(self) -> None:
        """Free the decoded bytes."""
        self.record_spans = None
        self._view = memoryview(b"")
        self._content.close()

    def _slices(self, indices: Sequence[int]) -> list[memoryview]:
        wanted = np.asarray(indices, np.int64)
        begins, ends = self._starts[wanted].tolist(), self._starts[wanted + 1].tolist()
        view = self._view
        pieces = [view[begin:end] for begin, end in zip(begins, ends, strict=True)]
        self._content.touched(len(pieces), sum(ends) - sum(begins))
        return pieces

    def _decode_one(self, exact: ExactJson, piece: bytes, index: int) -> Sample:
        try:
            return exact.decode(own_bytes(piece))
        except BadJsonError as error:
            offset = self._base + int(self._starts[index])
            line = self._line_number(offset)
            reason = error.reason
            if error.unterminated and self._ends_the_object(piece, index):
                reason = f"unterminated: the object ends inside this record ({reason})"
            raise self._content.bad_record(
                reason, hint=error.hint, place=f"line {line}",
                record=line, line=line, offset=offset, index=index,
            ) from error  # fmt: skip

    def _ends_the_object(self, piece: bytes, index: int) -> bool:
        end = self._base + len(self._view)
        last = index == self.num_samples - 1 and end == self._content.shard.info.size_bytes
        return last and not piece.endswith(b"\n")

    def _line_number(self, offset: int) -> int:
        """Return the physical line (from 1) at an offset; reads what lies before, once a split."""
        if self._lines_before is None:
            self._lines_before = count_lines_before(self._content.shard, self._base)
        return self._lines_before + count_lines(self._view[: offset - self._base]) + 1


def _lines_of(
    content: SplitContent,
) -> tuple[memoryview, int, Offsets, npt.NDArray[np.bool_] | None]:
    """Return a split's lines, where they begin in the object and in themselves, and which are irregular."""
    known = known_lines(content.shard, content.split)
    if known is not None:
        return *known, None
    view, base = own_lines(content.shard, content.split)
    return view, base, *index_json_lines(view, content.passed)


def own_bytes(piece: bytes | memoryview) -> bytes:
    """Return the first line of a slice without its line end."""
    line = bytes(piece).partition(b"\n")[0]
    return line[:-1] if line.endswith(b"\r") else line


SHARD_FORMAT: ShardFormat = JsonLines()
