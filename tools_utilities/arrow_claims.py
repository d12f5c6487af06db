"""What the messages of an Arrow file or stream claim, looked at before a compressed one is decoded.

A compressed buffer begins with its size once decoded, and Arrow allocates that. What is no message at
all is left to Arrow, which refuses it.
"""

from collections.abc import Iterable

from tools_utilities.arrow_messages import MessageError, Read, integer, message_at, root_table
from tools_utilities.parquet_pages import bomb, is_bomb

_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_BUFFER_BYTES = 16
_LENGTH_BYTES = 8


def refuse_bombs(key: str, read: Read, places: Iterable[int]) -> None:
    """Refuse a message whose buffers claim to be more than its bytes can be decoded to.

    Raises:
        RecordError: with `reason` bomb.
    """
    try:
        for place in places:
            stored, decoded = _sizes(read, place)
            if is_bomb(decoded, stored):
                raise bomb(key, f"a batch of {decoded:,} bytes", stored)
    except MessageError:
        return


def _sizes(read: Read, place: int) -> tuple[int, int]:
    """Return the stored bytes of a message's buffers, and what they claim to be decoded."""
    head = message_at(read, place)
    if head is None:
        return 0, 0
    metadata, body = head
    message = root_table(metadata)
    batch = message.table(2)
    kind = integer("<B", metadata, at) if (at := message.field(1)) else 0
    if batch is None or kind not in (_DICTIONARY_BATCH, _RECORD_BATCH):
        return 0, 0
    if kind == _DICTIONARY_BATCH:
        batch = batch.table(1)
    if batch is None or not batch.field(3):  # nothing is compressed
        return 0, 0
    at, count = batch.vector(2)
    stored = decoded = 0
    for buffer in range(count):
        place = at + buffer * _BUFFER_BYTES
        offset, size = integer("<q", metadata, place), integer("<q", metadata, place + 8)
        if size > _LENGTH_BYTES:
            begin = body + offset
            claimed = integer("<q", memoryview(bytes(read(begin, begin + _LENGTH_BYTES))), 0)
            stored, decoded = stored + size, decoded + max(claimed, size)
    return stored, decoded
