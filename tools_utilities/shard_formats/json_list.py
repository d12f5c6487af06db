"""A `.json` file: one list of objects, each element a sample; or, since many are, JSON lines.

The first byte that is no white space decides: `[` begins a list, anything else is read as `jsonl`
reads it. Either way the file is one split.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from tools_utilities.errors import RecordError
from tools_utilities.json_elements import BadListError, element_spans, first_byte
from tools_utilities.json_records import BadJsonError, ExactJson, decode_objects, encode_line
from tools_utilities.line_index import BOM, Offsets, whole_object
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import (
    OpenSplit,
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
)
from tools_utilities.shard_formats.jsonl import JsonlSplit
from tools_utilities.split_content import SplitContent


class JsonList:
    """The format `json`."""

    name = "json"
    suffixes: tuple[str, ...] = (".json",)
    names = None
    compressible = True

    def plan_splits(
        self,
        info: ObjectInfo,
        read: Callable[[int, int], bytes],  # noqa: ARG002 - the contract's; a list has no index
        target_bytes: int,  # noqa: ARG002 - the contract's; a list cannot be cut unread
        options: ReadOptions,  # noqa: ARG002 - the contract's
    ) -> list[Split]:
        """Return one split."""
        return [whole_object(info)]

    def open_split(self, shard: ShardBytes, split: Split, options: ReadOptions) -> OpenSplit:
        """Find the elements, or the lines.

        Raises:
            RecordError: it begins like a list and is none.
        """
        content = SplitContent(shard, split)
        view = content.shard.read(0, content.shard.info.size_bytes)
        base = len(BOM) if view[: len(BOM)] == BOM else 0
        if first_byte(view[base:]) == b"[":
            return JsonListSplit(content, base, options)
        return JsonlSplit(content, options)

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write a list, one element a line; a float that is not finite is refused."""
        count = 0
        file.write(b"[")
        for sample in samples:
            file.write(b",\n" if count else b"\n")
            file.write(encode_line(sample, count)[:-1])
            count += 1
        file.write(b"\n]\n")
        return count


class JsonListSplit:
    """The elements of a list, by index: where each begins and ends."""

    def __init__(self, content: SplitContent, base: int, options: ReadOptions) -> None:
        self.key = content.key
        self.skipped: dict[str, int] = {}
        self._content = content
        self._options = options
        self._view = content.shard.read(0, content.shard.info.size_bytes)
        self._starts, self._gaps = self._find_elements(base)
        self.num_samples = len(self._gaps)
        self.num_bytes = self._starts.nbytes + self._gaps.nbytes + content.held_bytes

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Decode the elements at `indices`: all at once, or one by one where that would not be exact."""
        pieces = self._slices(indices)
        # Every piece is one whole JSON value, so objects joined by LF decode to one a piece.
        samples = None if self._options.strict else decode_objects(pieces, separator=b"\n")
        if samples is not None:
            return samples
        exact = ExactJson(self._options)
        return [
            self._decode_one(exact, bytes(piece), index)
            for piece, index in zip(pieces, indices, strict=True)
        ]

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return each element's own bytes."""
        return [bytes(piece) for piece in self._slices(indices)]

    def close(self) -> None:
        """Free the decoded bytes."""
        self._view = memoryview(b"")
        self._content.close()

    def _slices(self, indices: Sequence[int]) -> list[memoryview]:
        wanted = list(indices)
        starts = self._starts[wanted].tolist()
        behind = self._starts[[index + 1 for index in wanted]] if wanted else self._starts[:0]
        ends = (behind - self._gaps[wanted]).tolist()
        self._content.touched(len(wanted), sum(ends) - sum(starts))
        return [self._view[start:end] for start, end in zip(starts, ends, strict=True)]

    def _find_elements(self, base: int) -> tuple[Offsets, Offsets]:
        """Return where each element begins (and the last one ends), and what lies behind each."""
        dtype = np.uint32 if len(self._view) < 1 << 32 else np.uint64
        starts, gaps, end = list[Offsets](), list[Offsets](), 0
        try:
            for spans in element_spans(self._view, base, self._content.passed):
                found = np.array(spans, np.int64)
                if starts:
                    gaps.append(_narrow(found[:1, 0] - end))
                starts.append(found[:, 0].astype(dtype))
                gaps.append(_narrow(found[1:, 0] - found[:-1, 1]))
                end = spans[-1].end
        except BadListError as error:
            raise self._bad(error.index, error.offset, error.reason) from error
        if not starts:
            return np.zeros(1, dtype), np.zeros(0, np.uint8)
        last = np.array([end], dtype)
        return np.concatenate([*starts, last]), np.concatenate([*gaps, np.zeros(1, np.uint8)])

    def _decode_one(self, exact: ExactJson, piece: bytes, index: int) -> Sample:
        try:
            return exact.decode(piece)
        except BadJsonError as error:
            raise self._bad(index, int(self._starts[index]), error.reason, error.hint) from error

    def _bad(self, index: int, offset: int, reason: str, hint: str = "") -> RecordError:
        return self._content.bad_record(
            reason, hint=hint, place=f"element {index + 1}",
            record=index + 1, offset=offset, index=index,
        )  # fmt: skip


def _narrow(values: npt.NDArray[np.int64]) -> Offsets:
    """Return values as the smallest unsigned type that holds them: mostly a byte each."""
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


SHARD_FORMAT: ShardFormat = JsonList()
