"""What the messages of an Arrow file or stream claim, looked at before a compressed one is decoded.

A compressed buffer begins with its size once decoded, and Arrow allocates that. The messages are
flatbuffers (apache/arrow, format/Message.fbs and File.fbs); of them only where buffers lie is read
here. What is no such message is left to Arrow, which refuses it.
"""

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tools_utilities.parquet_pages import bomb, is_bomb

Read = Callable[[int, int], bytes | memoryview]
_CONTINUATION = b"\xff\xff\xff\xff"
_FILE_TAIL_BYTES = 10
"""Size of the footer, and the magic again."""
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_BLOCK_BYTES, _BUFFER_BYTES = 24, 16
_LENGTH_BYTES = 8
_MOST_METADATA = 64 << 20


class _Table(NamedTuple):
    """A table of a flatbuffer."""

    data: memoryview
    place: int

    def field(self, number: int) -> int:
        """Return where a field lies; 0: it is not there."""
        vtable = self.place - _integer("<i", self.data, self.place)
        size = _integer("<H", self.data, vtable)
        at = 4 + 2 * number
        offset = _integer("<H", self.data, vtable + at) if at + 2 <= size else 0
        return self.place + offset if offset else 0

    def table(self, number: int) -> "_Table | None":
        """Return a field that is a table."""
        at = self.field(number)
        return _Table(self.data, at + _integer("<I", self.data, at)) if at else None

    def vector(self, number: int) -> tuple[int, int]:
        """Return where the items of a field begin, and how many there are."""
        at = self.field(number)
        if not at:
            return 0, 0
        at += _integer("<I", self.data, at)
        return at + 4, _integer("<I", self.data, at)


def refuse_bombs(key: str, read: Read, size_bytes: int, *, is_file: bool) -> None:
    """Refuse a message whose buffers claim to be more than its bytes can be decoded to.

    Raises:
        RecordError: with `reason` bomb.
    """
    try:
        places = _of_file(read, size_bytes) if is_file else _of_stream(read, size_bytes)
        for place in places:
            stored, decoded = _sizes(read, place)
            if is_bomb(decoded, stored):
                raise bomb(key, f"a batch of {decoded:,} bytes", stored)
    except (struct.error, IndexError):
        return


def _of_file(read: Read, size_bytes: int) -> Iterator[int]:
    """Yield where the messages of a file's footer begin."""
    tail = bytes(read(size_bytes - _FILE_TAIL_BYTES, size_bytes))
    end = size_bytes - _FILE_TAIL_BYTES
    begin = end - _integer("<i", memoryview(tail), 0)
    if not 0 <= begin < end:
        return
    footer = memoryview(bytes(read(begin, end)))
    root = _Table(footer, _integer("<I", footer, 0))
    for number in (2, 3):  # dictionaries, record batches
        at, count = root.vector(number)
        for block in range(count):
            yield _integer("<q", footer, at + block * _BLOCK_BYTES)


def _of_stream(read: Read, size_bytes: int) -> Iterator[int]:
    """Yield where the messages of a stream begin."""
    place = 0
    while 0 <= place < size_bytes:
        head = _head(read, place)
        if head is None:
            return
        yield place
        metadata, body = head
        place = body + max(0, _body_bytes(metadata))


def _head(read: Read, place: int) -> tuple[memoryview, int] | None:
    """Return a message's flatbuffer and where its body begins; None at the end."""
    head = bytes(read(place, place + 8))
    at = 4 if head[:4] == _CONTINUATION else 0
    size = _integer("<i", memoryview(head), at)
    if not 0 < size <= _MOST_METADATA:
        return None
    begin = place + at + 4
    metadata = memoryview(bytes(read(begin, begin + size)))
    return (metadata, begin + size) if len(metadata) == size else None


def _message(metadata: memoryview) -> _Table:
    return _Table(metadata, _integer("<I", metadata, 0))


def _body_bytes(metadata: memoryview) -> int:
    at = _message(metadata).field(3)
    return _integer("<q", metadata, at) if at else 0


def _sizes(read: Read, place: int) -> tuple[int, int]:
    """Return the stored bytes of a message's buffers, and what they claim to be decoded."""
    head = _head(read, place)
    if head is None:
        return 0, 0
    metadata, body = head
    message = _message(metadata)
    kind = message.field(1)
    batch = message.table(2)
    if batch is None or not kind or metadata[kind] not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0, 0
    if metadata[kind] == _DICTIONARY_BATCH:
        batch = batch.table(1)
    if batch is None or not batch.field(3):  # nothing is compressed
        return 0, 0
    at, count = batch.vector(2)
    stored = decoded = 0
    for buffer in range(count):
        offset, size = struct.unpack_from("<qq", metadata, at + buffer * _BUFFER_BYTES)
        if size > _LENGTH_BYTES:
            begin = body + offset
            claimed = _integer("<q", memoryview(bytes(read(begin, begin + _LENGTH_BYTES))), 0)
            stored, decoded = stored + size, decoded + max(claimed, size)
    return stored, decoded


def _integer(form: str, data: memoryview, place: int) -> int:
    if place < 0:
        raise IndexError
    return int(struct.unpack_from(form, data, place)[0])
