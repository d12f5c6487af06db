"""The members of a tar archive by position: ustar, GNU and pax names, checked to the last block.

Unlike `tarfile` it refuses what would lose data in silence: an archive without its end marker (cut
at a member's border), and anything but zeros after the marker (archives joined end to end).
"""

from collections.abc import Iterator
from typing import NamedTuple

BLOCK_BYTES = 512
_ZEROS = bytes(BLOCK_BYTES)
_FILE_TYPES = frozenset({b"0", b"\0", b"7"})
_NO_DATA_TYPES = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})  # links, devices, folders, pipes
_GNU_LONG_NAME, _GNU_LONG_LINK = b"L", b"K"
_PAX, _PAX_GLOBAL = b"x", b"g"
_SPARSE = b"S"
_MAX_HEADER_BYTES = 1 << 20  # of one extended header: names, not data
_MOST_DIGITS = 19


class Member(NamedTuple):
    """One entry; `start` is its first header block, `data` where its bytes begin."""

    name: str
    is_file: bool
    start: int
    data: int
    num_bytes: int
    end: int
    """Where the next entry begins."""


class TarError(ValueError):
    """Not a tar archive, or a damaged one; `offset` is the header it happened at."""

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(f"{reason} (at byte {offset})")
        self.offset = offset


def members(view: memoryview) -> Iterator[Member]:
    """Yield every entry in order; an empty object has none.

    Raises:
        TarError: a header or a member's data is cut or damaged, or the end marker is missing.
    """
    offset = 0
    while offset < len(view):
        if bytes(view[offset : offset + BLOCK_BYTES]) == _ZEROS:
            _check_rest_is_zero(view, offset)
            return
        member = read_member(view, offset)
        yield member
        offset = member.end
    if len(view):
        raise TarError("truncated: no end-of-archive marker", offset)


def read_member(view: memoryview, start: int) -> Member:
    """Return the entry whose first header block, long names included, is at `start`."""
    name: str | None = None
    size: int | None = None
    offset = start
    while True:
        header = _header(view, offset)
        kind, num_bytes = header[156:157], _number(header[124:136], offset)
        data = offset + BLOCK_BYTES
        if kind in (_PAX, _PAX_GLOBAL, _GNU_LONG_NAME, _GNU_LONG_LINK):
            content = _extended(view, data, num_bytes, offset)
            if kind == _GNU_LONG_NAME:
                name = _text(content.partition(b"\0")[0])
            elif kind == _PAX:
                name, size = _apply_pax(content, offset, name, size)
            elif kind == _PAX_GLOBAL:
                _refuse_global(content, offset)
            offset = _padded(data + num_bytes)
            continue
        if kind == _SPARSE:
            raise TarError("a sparse member is not supported", offset)
        stored = 0 if kind in _NO_DATA_TYPES else num_bytes if size is None else size
        if data + stored > len(view):
            raise TarError(f"truncated: {stored} bytes of data promised", offset)
        shown = _header_name(header) if name is None else name
        is_file = kind in _FILE_TYPES and not shown.endswith("/")  # the oldest tars mark folders so
        return Member(shown, is_file, start, data, stored, _padded(data + stored))


def _header(view: memoryview, offset: int) -> bytes:
    header = bytes(view[offset : offset + BLOCK_BYTES])
    if len(header) < BLOCK_BYTES:
        raise TarError("truncated inside a header", offset)
    checksum = header[148:156].strip(b"\0 ")
    promised = int(checksum, 8) if checksum and not checksum.strip(b"01234567") else -1
    if promised != sum(header) - sum(header[148:156]) + 8 * ord(" "):
        raise TarError("not a tar header (its checksum differs)", offset)
    return header


def _number(field: bytes, offset: int) -> int:
    """Return an octal field, or GNU's base-256 one."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = field.rstrip(b"\0 ").lstrip(b" ")
    # Python's own reading of numbers takes a sign: a negative size would lead back, for ever.
    if text.strip(b"01234567"):
        raise TarError(f"not a number in a header: {field!r}", offset)
    return int(text or b"0", 8)


def _header_name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0":  # GNU's own magic ("ustar ") keeps other things there
        prefix = header[345:500].partition(b"\0")[0]
        name = prefix + b"/" + name if prefix else name
    return _text(name)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _padded(offset: int) -> int:
    return -(-offset // BLOCK_BYTES) * BLOCK_BYTES


def _extended(view: memoryview, data: int, num_bytes: int, offset: int) -> bytes:
    if num_bytes > _MAX_HEADER_BYTES:
        raise TarError(f"an extended header of {num_bytes} bytes", offset)
    if data + num_bytes > len(view):
        raise TarError("truncated inside an extended header", offset)
    return bytes(view[data : data + num_bytes])


def _apply_pax(
    content: bytes, offset: int, name: str | None, size: int | None
) -> tuple[str | None, int | None]:
    for keyword, value in _pax_records(content, offset):
        if keyword.startswith(b"GNU.sparse"):
            raise TarError("a sparse member is not supported", offset)
        if keyword == b"path":
            name = _text(value)
        elif keyword == b"size":
            size = _digits(value, offset)
    return name, size


def _digits(text: bytes, offset: int) -> int:
    if not text.isdigit() or len(text) > _MOST_DIGITS:
        raise TarError(f"a damaged pax header: {text[:40]!r} is no size", offset)
    return int(text)


def _refuse_global(content: bytes, offset: int) -> None:
    for keyword, _ in _pax_records(content, offset):
        if keyword in (b"path", b"size"):
            raise TarError("a global pax header that sets path or size", offset)


def _pax_records(content: bytes, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keyword and value of the records `LENGTH KEYWORD=VALUE` and LF."""
    end = len(content.rstrip(b"\0"))
    start = 0
    while start < end:
        blank = content.find(b" ", start, start + _MOST_DIGITS + 1)
        digits = content[start : max(blank, start)]
        stop = start + _digits(digits, offset)
        keyword, equals, value = content[blank + 1 : stop].partition(b"=")
        if not equals or not value.endswith(b"\n") or stop > len(content):
            raise TarError("a damaged pax header", offset)
        yield keyword, value[:-1]
        start = stop


def _check_rest_is_zero(view: memoryview, offset: int) -> None:
    for start in range(offset, len(view), 1 << 20):
        piece = bytes(view[start : start + (1 << 20)])
        if piece.count(0) != len(piece):
            raise TarError("data after the end-of-archive marker (archives joined?)", start)
