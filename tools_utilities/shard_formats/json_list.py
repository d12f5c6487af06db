"""A `.json` file: one list of objects, each element a sample; or, since many are, JSON lines.

The first byte that is no white space decides: `[` begins a list, anything else is read as `jsonl`
reads it. Either way the file is one split.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO

import msgspec
import numpy as np

from tools_utilities.errors import RecordError
from tools_utilities.json_records import BadJsonError, ExactJson, decode_objects, encode_line
from tools_utilities.line_index import BOM, whole_object
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

_SPACE = b" \t\r\n"
_LOOK_BYTES = 4096

_raw_list = msgspec.json.Decoder(list[msgspec.Raw])


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
        if _first_byte(view[base:]) == b"[":
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
        spans = list(self._spans(base))
        dtype = np.uint32 if len(self._view) < 1 << 32 else np.uint64
        self._starts = np.array([start for start, _ in spans], dtype)
        self._ends = np.array([end for _, end in spans], dtype)
        self.num_samples = len(spans)
        self.num_bytes = self._starts.nbytes + self._ends.nbytes + content.held_bytes

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
        starts, ends = self._starts[wanted].tolist(), self._ends[wanted].tolist()
        self._content.touched(len(wanted), sum(ends) - sum(starts))
        return [self._view[start:end] for start, end in zip(starts, ends, strict=True)]

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

    def _spans(self, base: int) -> Iterator[tuple[int, int]]:
        """Yield where each element begins and ends."""
        try:
            elements = _raw_list.decode(self._view[base:])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            yield from self._slow_spans(base)
            return
        position = _after(self._view, base, b"[")
        for element in elements:
            position = _after(self._view, position, b",")
            yield position, position + len(memoryview(element))
            position += len(memoryview(element))

    def _slow_spans(self, base: int) -> Iterator[tuple[int, int]]:
        """Walk the list with Python's parser, which takes NaN and can say where it stops.

        As Latin-1 every byte is one character, so positions are offsets; the text inside strings
        does not matter here.
        """
        text = str(self._view, "latin-1")
        scan = json.JSONDecoder().raw_decode
        position, index = _after(self._view, base, b"["), 0
        while text[position : position + 1] != "]":
            try:
                end = scan(text, position)[1]
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", str(error))
                at = getattr(error, "pos", position)
                if at >= len(text.rstrip()):
                    reason = f"unterminated: the object ends inside the list ({reason})"
                raise self._bad(index, at, f"not JSON: {reason} (at byte {at})") from error
            yield position, end
            index += 1
            position = _after(self._view, end, b"")
            if text[position : position + 1] == ",":
                position = _after(self._view, position, b",")
                if text[position : position + 1] != "]":
                    continue
            elif text[position : position + 1] == "]":
                break
            what = "unterminated list" if position >= len(text) else "no , or ] after an element"
            raise self._bad(index, position, f"not JSON: {what} (at byte {position})")
        if _first_byte(self._view[position + 1 :]):
            raise self._bad(index, position, "more behind the list's end")


def _first_byte(view: memoryview) -> bytes:
    """Return the first byte that is no white space; empty when there is none."""
    for start in range(0, len(view), _LOOK_BYTES):
        text = bytes(view[start : start + _LOOK_BYTES]).lstrip(_SPACE)
        if text:
            return text[:1]
    return b""


def _after(view: memoryview, position: int, mark: bytes) -> int:
    """Return the first place behind white space, `mark` (if it is there) and white space."""
    for skipped in (b"", mark):
        if skipped and bytes(view[position : position + 1]) == skipped:
            position += 1
        while position < len(view) and view[position] in _SPACE:
            position += 1
    return position


SHARD_FORMAT: ShardFormat = JsonList()
