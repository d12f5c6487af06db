"""Where the messages of an Arrow file or stream lie, and some of a file's as a stream.

Messages and a file's footer are flatbuffers (apache/arrow, format/Message.fbs and File.fbs); of them
only places and counts are read here.
"""

import io
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from tools_utilities.arrow_files import RangeFile

Read = Callable[[int, int], bytes | memoryview]
_CONTINUATION = b"\xff\xff\xff\xff"
_SCHEMA_PLACE = 8
"""Of a file: after its magic."""
_TAIL_BYTES = 10
"""Size of the footer, and the magic again."""
_BEFORE_FOOTER_BYTES = 16
"""Arrow wants a footer to leave room for the file's beginning."""
_DICTIONARIES, _BATCHES = 2, 3
_BLOCK_BYTES = 24
_MOST_METADATA = 64 << 20


class MessageError(ValueError):
    """What should be a message or a footer is none."""


class Table(NamedTuple):
    """A table of a flatbuffer."""

    data: memoryview
    place: int

    def field(self, number: int) -> int:
        """Return where a field lies; 0: it is not there."""
        vtable = self.place - integer("<i", self.data, self.place)
        size = integer("<H", self.data, vtable)
        at = 4 + 2 * number
        offset = integer("<H", self.data, vtable + at) if at + 2 <= size else 0
        return self.place + offset if offset else 0

    def table(self, number: int) -> "Table | None":
        """Return a field that is a table."""
        at = self.field(number)
        return Table(self.data, at + integer("<I", self.data, at)) if at else None

    def vector(self, number: int) -> tuple[int, int]:
        """Return where the items of a field begin, and how many there are."""
        at = self.field(number)
        if not at:
            return 0, 0
        at += integer("<I", self.data, at)
        return at + 4, integer("<I", self.data, at)


def root_table(flatbuffer: memoryview) -> Table:
    """Return the table that a flatbuffer begins with."""
    return Table(flatbuffer, integer("<I", flatbuffer, 0))


def integer(form: str, data: memoryview, place: int) -> int:
    """Return a number of the flatbuffer.

    Raises:
        MessageError: it would lie outside.
    """
    if not 0 <= place <= len(data) - struct.calcsize(form):
        raise MessageError(f"a number lies outside of its message, at byte {place}")
    return int(struct.unpack_from(form, data, place)[0])


def message_at(read: Read, place: int) -> tuple[memoryview, int] | None:
    """Return a message's flatbuffer and where its body begins; None: there is none."""
    if place < 0:
        return None
    head = bytes(read(place, place + 8))
    at = 4 if head[:4] == _CONTINUATION else 0
    size = integer("<i", memoryview(head), at)
    if not 0 < size <= _MOST_METADATA:
        return None
    begin = place + at + 4
    metadata = memoryview(bytes(read(begin, begin + size)))
    return (metadata, begin + size) if len(metadata) == size else None


def stream_messages(read: Read, size_bytes: int) -> Iterator[int]:
    """Yield where the messages of a stream begin."""
    place = 0
    while 0 <= place < size_bytes:
        head = message_at(read, place)
        if head is None:
            return
        yield place
        metadata, body = head
        place = body + max(0, _body_bytes(metadata))


def file_messages(read: Read, size_bytes: int) -> tuple[list[int], list[int]]:
    """Return where a file's dictionaries begin, and where its record batches do.

    Raises:
        MessageError: the footer is damaged.
    """
    tail = memoryview(file_tail(read, size_bytes))
    footer = tail[len(tail) - _TAIL_BYTES - integer("<i", tail, len(tail) - _TAIL_BYTES) :]
    root = root_table(footer)

    def places(number: int) -> list[int]:
        at, count = root.vector(number)
        return [integer("<q", footer, at + block * _BLOCK_BYTES) for block in range(count)]

    return places(_DICTIONARIES), places(_BATCHES)


def file_tail(read: Read, size_bytes: int) -> bytes:
    """Return the end of a file, enough for pyarrow to read its footer as that of a whole one.

    Raises:
        MessageError: the footer claims to be larger than the file, or the file is cut.
    """
    end = size_bytes - _TAIL_BYTES
    length = integer("<i", memoryview(bytes(read(max(0, end), size_bytes)).ljust(4, b"\0")), 0)
    if not 0 < length <= end - _SCHEMA_PLACE:
        raise MessageError(f"it has no footer where its end says ({length} bytes of {size_bytes})")
    return bytes(read(max(0, end - length - _BEFORE_FOOTER_BYTES), size_bytes))


def messages_as_stream(read: Read, size_bytes: int, places: Sequence[int]) -> io.RawIOBase:
    """Return a file's schema and the messages at `places`, one after another, as they are in a stream.

    pyarrow reads a file's footer on a thread of its own, a stream on the one that asks. That thread
    may be the last to let go of a Python file, and aborts a process that is ending just then.

    Raises:
        MessageError: there is no message, or it ends outside the file.
    """
    spans = [_span(read, place, size_bytes) for place in (_SCHEMA_PLACE, *places)]
    ends = list(accumulate(end - start for start, end in spans))
    if ends[-1] > size_bytes:
        raise MessageError("its messages claim to be more than the whole file")

    def read_joined(start: int, end: int) -> bytes:
        """Return bytes [start, end) of the messages joined."""
        pieces = []
        while start < end:
            number = bisect_right(ends, start)
            last = min(end, ends[number])
            shift = spans[number][1] - ends[number]
            pieces.append(bytes(read(start + shift, last + shift)))
            start = last
        return b"".join(pieces)

    return RangeFile(read_joined, ends[-1])


def num_rows_at(read: Read, place: int) -> int:
    """Return how many rows the record batch at `place` says it has."""
    head = message_at(read, place)
    batch = root_table(head[0]).table(2) if head else None
    at = batch.field(0) if batch else 0
    return integer("<q", batch.data, at) if batch and at else 0


def _span(read: Read, place: int, size_bytes: int) -> tuple[int, int]:
    head = message_at(read, place)
    if head is None:
        raise MessageError(f"there is no message at byte {place}")
    metadata, body = head
    end = body + _body_bytes(metadata)
    if not body <= end <= size_bytes:
        raise MessageError(f"the message at byte {place} ends outside the file")
    return place, end


def _body_bytes(metadata: memoryview) -> int:
    at = root_table(metadata).field(3)
    return integer("<q", metadata, at) if at else 0
