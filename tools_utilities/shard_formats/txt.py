"""Plain text: every line is a sample `{"text": line}`, empty lines too, so that nothing is dropped.

Only LF ends a line; a CR before it goes with it. The number of samples is what `wc -l` counts, plus
one for a last line without LF. Text is UTF-8; a byte order mark at the start is dropped.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import BinaryIO

from tools_utilities.errors import RecordError
from tools_utilities.line_index import (
    count_lines_before,
    line_starts,
    own_lines,
    plan_byte_ranges,
    whole_object,
)
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_format import (
    ReadOptions,
    Sample,
    ShardBytes,
    ShardFormat,
    Split,
    split_suffix,
)
from tools_utilities.split_content import SplitContent

FIELD = "text"


class Text:
    """The format `txt`."""

    name = "txt"
    suffixes: tuple[str, ...] = (".txt",)
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

    def open_split(
        self,
        shard: ShardBytes,
        split: Split,
        options: ReadOptions,  # noqa: ARG002 - the contract's
    ) -> "TextSplit":
        """Index the lines of a range."""
        return TextSplit(SplitContent(shard, split))

    def write(self, samples: Iterable[Sample], file: BinaryIO) -> int:
        """Write the one field `text` of each sample as a line.

        Raises:
            RecordError: a sample has other fields, or text that a line cannot hold.
        """
        count = 0
        for sample in samples:
            file.write(_line_of(sample, count))
            count += 1
        return count


class TextSplit:
    """The lines of one byte range, by index."""

    def __init__(self, content: SplitContent) -> None:
        self.key = content.key
        self.skipped: dict[str, int] = {}
        self._content = content
        self._view, self._base = own_lines(content.shard, content.split)
        self._starts = line_starts(self._view, content.passed)
        self.num_samples = len(self._starts) - 1
        self.num_bytes = self._starts.nbytes + content.held_bytes

    def read(self, indices: Sequence[int]) -> list[Sample]:
        """Decode the lines at `indices`.

        Raises:
            RecordError: one is not UTF-8.
        """
        lines = self.read_raw(indices)
        try:
            return [{FIELD: str(line, "utf-8")} for line in lines]
        except UnicodeDecodeError:
            for index, line in zip(indices, lines, strict=True):
                self._check(index, line)
            raise

    def read_raw(self, indices: Sequence[int]) -> list[bytes]:
        """Return each line's own bytes, without its LF or CRLF."""
        lines = [
            bytes(self._view[self._starts[index] : self._starts[index + 1]]) for index in indices
        ]
        self._content.touched(len(lines), sum(map(len, lines)))
        return [_without_end(line) for line in lines]

    def close(self) -> None:
        """Free the decoded bytes."""
        self._view = memoryview(b"")
        self._content.close()

    def _check(self, index: int, line: bytes) -> None:
        try:
            line.decode("utf-8")
        except UnicodeDecodeError as error:
            offset = self._base + int(self._starts[index])
            number = count_lines_before(self._content.shard, offset) + 1
            raise self._content.bad_record(
                f"invalid UTF-8: byte 0x{line[error.start]:02x} at byte {error.start} of the line",
                place=f"line {number}", record=number, line=number, offset=offset, index=index,
            ) from error  # fmt: skip


def _without_end(line: bytes) -> bytes:
    if line.endswith(b"\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(b"\n") else line


def _line_of(sample: Sample, index: int) -> bytes:
    text = sample.get(FIELD)
    if len(sample) != 1 or not isinstance(text, str):
        why = f"it has the fields {', '.join(sample) or 'none'}, not just {FIELD} (a string)"
    elif "\n" in text or text.endswith("\r"):
        why = "its text holds a line end"
    elif not index and text.startswith("\ufeff"):
        why = "a byte order mark at the start would not be read back"
    else:
        try:
            return text.encode("utf-8") + b"\n"
        except UnicodeEncodeError as error:
            why = str(error)
    raise RecordError(
        f"sample {index} cannot be written as a line of text: {why}",
        hint="Write jsonl instead.",
        record=index + 1,
    )


SHARD_FORMAT: ShardFormat = Text()
