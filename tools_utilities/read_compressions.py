"""bzip2, brotli and raw snappy: read because others write them (MDS shards, old dumps), never written.

As with gzip and zstd every stream is decoded, output is bounded, and a cut or dirty end is an error.
Snappy has no frames and no checksum: it is one block, decoded whole, and its length is checked first.
"""

import bz2
import io
from collections.abc import Iterable, Iterator
from typing import Any

from tools_utilities.errors import RecordError

READ_COMPRESSIONS = {".bz2": "bzip2", ".br": "brotli", ".mds.snappy": "snappy"}
"""Suffix → compression; snappy only where it is known to be one raw block."""

_PIECE_BYTES = 1 << 20
_MOST_SNAPPY_RATIO = 64
"""No block of snappy holds more than 64 bytes for every two or three of its own."""


def read_compressed(
    pieces: Iterable[bytes | memoryview], compression: str, *, key: str
) -> Iterator[bytes]:
    """Yield the decoded bytes of a whole object in one of `READ_COMPRESSIONS`.

    Raises:
        RecordError: it is cut short, followed by something else, or damaged; detail: key, reason.
    """
    if compression == "bzip2":
        return _bunzip(pieces, key)
    return _unbrotli(pieces, key) if compression == "brotli" else _unsnap(pieces, key)


def _bunzip(pieces: Iterable[bytes | memoryview], key: str) -> Iterator[bytes]:
    stream, inside = bz2.BZ2Decompressor(), False
    for piece in pieces:
        rest = bytes(piece)
        while rest:
            inside = True
            try:
                yield stream.decompress(rest, _PIECE_BYTES)
                while not stream.eof and not stream.needs_input:
                    yield stream.decompress(b"", _PIECE_BYTES)
            except OSError as error:
                raise _unreadable(key, "bzip2", str(error)) from error
            rest = b""
            if stream.eof:
                rest, stream, inside = stream.unused_data, bz2.BZ2Decompressor(), False
    if inside:
        raise _truncated(key, "bzip2 stream")


def _unbrotli(pieces: Iterable[bytes | memoryview], key: str) -> Iterator[bytes]:
    import pyarrow as pa

    source = _PiecesFile(pieces)
    try:
        with pa.CompressedInputStream(pa.PythonFile(source, mode="r"), "brotli") as stream:
            while decoded := stream.read(_PIECE_BYTES):
                yield decoded
    except OSError as error:
        if "truncated" in str(error).lower():
            raise _truncated(key, "brotli stream") from error
        raise _unreadable(key, "brotli", str(error)) from error
    if source.read(1):
        raise _unreadable(key, "brotli", "something follows its end")


def _unsnap(pieces: Iterable[bytes | memoryview], key: str) -> Iterator[bytes]:
    import pyarrow as pa

    data = b"".join(bytes(piece) for piece in pieces)
    if not data:
        return
    length = shift = 0
    for byte in data[:5]:
        length |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    if length > _MOST_SNAPPY_RATIO * len(data):
        raise _unreadable(key, "snappy", f"{len(data)} bytes cannot hold {length}")
    try:
        decoded: Any = pa.Codec("snappy").decompress(data, decompressed_size=length)
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(key, "snappy", str(error)) from error
    for start in range(0, length, _PIECE_BYTES):
        yield bytes(memoryview(decoded)[start : start + _PIECE_BYTES])


class _PiecesFile(io.RawIOBase):
    """Pieces as a file for pyarrow."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        super().__init__()
        self._pieces = iter(pieces)
        self._held = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not len(self._held):
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._held = memoryview(piece)
        count = min(len(buffer), len(self._held))
        buffer[:count] = self._held[:count]
        self._held = self._held[count:]
        return count


def _truncated(key: str, what: str) -> RecordError:
    return RecordError(
        f"{key}: truncated: the object ends inside a {what}",
        hint="Write or upload the file again; it is shorter than what was compressed.",
        key=key,
        reason="truncated",
    )


def _unreadable(key: str, name: str, why: str) -> RecordError:
    return RecordError(f"{key}: not {name}, cut short or damaged: {why}", key=key, reason="damaged")
