"""gzip and zstd, whole: every member and frame is decoded, and a cut or dirty end is an error.

Decoding is bounded: pieces in, pieces out, whatever the ratio. What comes out goes to a `Spill`, and
what grows beyond all measure (a bomb) ends as an error before it fills the disk.
"""

import zlib
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Protocol

from tools_utilities.errors import RecordError, UsageError
from tools_utilities.read_compressions import READ_COMPRESSIONS, read_compressed
from tools_utilities.spill import SPILL_BYTES, Spill
from tools_utilities.zstd_frames import ZstdFrameError, ZstdFrames

_PIECE_BYTES = 1 << 20
_UNSUSPICIOUS_BYTES = 256 << 20
_MOST_RATIO = 250
"""Of what is decoded to what was stored, beyond the first 256 MiB; text and tokens reach 10, tables 50."""
_ZSTD_FEED_BYTES = 64 << 10
_LONGEST_WINDOW, _SHORTEST_WINDOW = 20, 15
_ZSTD_LEVEL = 1
_HASH_LOG = 15
"""Of level 1, which has 14: nine tenths of the speed, files between its own and level 2's
(docs/benchmarks.md)."""
_GZIP_WINDOW = 31  # zlib's own code for "a gzip member, 32 KiB window"


def decompressed(
    pieces: Iterable[bytes | memoryview], compression: str, *, key: str
) -> Iterator[bytes]:
    """Yield the decoded bytes of a whole object, given in order as stored.

    Raises:
        RecordError: it is cut short, followed by garbage, or damaged, or a bomb; detail: key.
        UsageError: nothing of that name is read.
    """
    stored = _Counted(pieces)
    if compression == "gzip":
        return _measured(_gunzip(stored, key), stored, key)
    if compression == "zstd":
        return _measured(_unzstd(stored, key), stored, key)
    if compression in READ_COMPRESSIONS.values():
        return _measured(read_compressed(stored, compression, key=key), stored, key)
    raise UsageError(f"{key}: unknown compression {compression!r}", hint="Known: gzip, zstd.")


class _Counted:
    """Pieces, and how many bytes of them were taken."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._pieces = pieces
        self.num_bytes = 0

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for piece in self._pieces:
            self.num_bytes += len(piece)
            yield piece


def is_bomb(decoded_bytes: int, stored_bytes: int) -> bool:
    """Tell whether so few stored bytes cannot honestly become so many."""
    return decoded_bytes > max(_UNSUSPICIOUS_BYTES, _MOST_RATIO * stored_bytes)


def _measured(decoded: Iterator[bytes], stored: _Counted, key: str) -> Iterator[bytes]:
    num_bytes = 0
    for piece in decoded:
        num_bytes += len(piece)
        if is_bomb(num_bytes, stored.num_bytes):
            raise RecordError(
                f"{key}: a decompression bomb: {stored.num_bytes:,} bytes became more than "
                f"{num_bytes - len(piece):,}",
                hint="If it is data, store it uncompressed or in smaller objects.",
                key=key,
                reason="bomb",
            )
        yield piece


def decompress_to_spill(
    data: memoryview | Iterable[memoryview],
    compression: str,
    *,
    key: str,
    memory_bytes: int = SPILL_BYTES,
) -> Spill:
    """Decode a whole object, or its pieces in order; at most `memory_bytes` of the result stay in memory."""
    spill = Spill(memory_bytes=memory_bytes)
    try:
        pieces = cut_pieces(data, _PIECE_BYTES) if isinstance(data, memoryview) else data
        for piece in decompressed(pieces, compression, key=key):
            spill.write(piece)
    except BaseException:
        spill.close()
        raise
    return spill


def cut_pieces(data: bytes | memoryview, num_bytes: int) -> Iterator[memoryview]:
    """Yield `data` in pieces of at most `num_bytes`, without copies."""
    view = memoryview(data)
    for start in range(0, len(view), num_bytes):
        yield view[start : start + num_bytes]


def _gunzip(pieces: Iterable[bytes | memoryview], key: str) -> Iterator[bytes]:
    member = zlib.decompressobj(_GZIP_WINDOW)
    num_members, inside = 0, False
    for piece in pieces:
        rest: bytes | memoryview = piece
        while len(rest):
            if num_members and not inside:
                rest = bytes(rest).lstrip(b"\0")  # zero padding after a member is allowed
                if not rest:
                    break
            inside = True
            yield _inflate(member, rest, key, num_members)
            rest = member.unconsumed_tail
            if member.eof:
                rest = member.unused_data
                member, num_members, inside = (
                    zlib.decompressobj(_GZIP_WINDOW),
                    num_members + 1,
                    False,
                )
    while inside:
        # What is left may still sit inside zlib, held back by the output limit.
        decoded = _inflate(member, b"", key, num_members)
        if not decoded and not member.eof:
            raise _truncated(key, "gzip member")
        yield decoded
        inside = not member.eof


def _inflate(member: Any, data: bytes | memoryview, key: str, num_members: int) -> bytes:
    try:
        decoded: bytes = member.decompress(data, _PIECE_BYTES)
    except zlib.error as error:
        raise _damaged(key, "gzip", str(error), trailing=num_members > 0) from error
    return decoded


def _unzstd(pieces: Iterable[bytes | memoryview], key: str) -> Iterator[bytes]:
    import zstandard

    source = _ZstdSource(pieces)
    # Only the reader bounds what comes out, but it takes a cut frame for the end of the data: the
    # walk over the frames' own headers says whether the end really is one.
    reader = zstandard.ZstdDecompressor().stream_reader(
        source,  # type: ignore[arg-type]  # it needs read() alone
        read_size=_ZSTD_FEED_BYTES,
        read_across_frames=True,
    )
    try:
        while decoded := reader.read(_PIECE_BYTES):
            yield decoded
    except (zstandard.ZstdError, ZstdFrameError) as error:
        raise _damaged(key, "zstd", str(error), trailing=source.walk.num_frames > 0) from error
    if not (source.exhausted and source.walk.complete):
        raise _truncated(key, "zstd frame")


class _ZstdSource:
    """Pieces as a file for zstandard's reader, walked on the way."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._pieces = (
            bytes(small) for each in pieces for small in cut_pieces(each, _ZSTD_FEED_BYTES)
        )
        self.walk = ZstdFrames()
        self.exhausted = False

    def read(self, _num_bytes: int) -> bytes:
        piece = next(self._pieces, b"")
        self.exhausted = not piece
        self.walk.feed(piece)
        return piece


def _truncated(key: str, what: str) -> RecordError:
    return RecordError(
        f"{key}: truncated: the object ends inside a {what}",
        hint="Write or upload the file again; it is shorter than what was compressed.",
        key=key,
        reason="truncated",
    )


def _damaged(key: str, name: str, why: str, *, trailing: bool) -> RecordError:
    if trailing:
        what = f"{key}: damaged after a complete {name} part, or followed by something else: {why}"
    else:
        what = f"{key}: not {name}, or damaged: {why}"
    return RecordError(what, key=key, reason="damaged")


class CompressedWriter(Protocol):
    """Takes bytes, writes them compressed; `close` ends the stream and leaves the file open."""

    def write(self, data: bytes, /) -> Any:
        """Compress and write."""
        ...

    def close(self) -> None:
        """Write the end of the stream; without it the file is truncated."""
        ...


def compressed_writer(
    file: BinaryIO,
    compression: str | None,
    *,
    level: int | None = None,
    memory_bytes: int | None = None,
    piece_bytes: int = 0,
) -> CompressedWriter:
    """Wrap `file`; the same input gives the same bytes (no time stamps), with checksums.

    `memory_bytes`: zstd looks back less far where its memory would pass this. `piece_bytes`: how much
    is written at a time, so that what comes of it goes to the file in one piece; changes no byte.

    Raises:
        UsageError: the compression is not None, `gzip` or `zstd`.
    """
    if compression is None:
        return _PlainWriter(file)
    if compression == "gzip":
        return _GzipWriter(file, 6 if level is None else level)
    if compression == "zstd":
        import zstandard

        compressor = zstandard.ZstdCompressor(
            compression_params=_zstd_parameters(level, memory_bytes)
        )
        writer: CompressedWriter = compressor.stream_writer(
            file,
            write_size=max(piece_bytes, zstandard.COMPRESSION_RECOMMENDED_OUTPUT_SIZE),
            closefd=False,
        )
        return writer
    raise UsageError(f"unknown compression {compression!r}", hint="Known: gzip, zstd.")


def _zstd_parameters(level: int | None, memory_bytes: int | None) -> Any:
    import zstandard

    def parameters(**more: int) -> Any:
        return zstandard.ZstdCompressionParameters.from_level(
            _ZSTD_LEVEL if level is None else level, write_checksum=1, **more
        )

    own = {"hash_log": _HASH_LOG} if level is None else {}
    chosen = parameters(**own)
    for window_log in range(_LONGEST_WINDOW, _SHORTEST_WINDOW - 1, -1):
        if memory_bytes is None or chosen.estimated_compression_context_size() <= memory_bytes:
            break
        tables = min(window_log - 3, own.get("hash_log", window_log))
        chosen = parameters(window_log=window_log, hash_log=tables, chain_log=tables)
    return chosen


class _PlainWriter:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes, /) -> int:
        return self._file.write(data)

    def close(self) -> None:
        self._file.flush()


class _GzipWriter:
    """gzip with a zero time stamp and no name, so that equal data is equal bytes."""

    def __init__(self, file: BinaryIO, level: int) -> None:
        self._file = file
        self._member = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)

    def write(self, data: bytes, /) -> int:
        self._file.write(self._member.compress(data))
        return len(data)

    def close(self) -> None:
        self._file.write(self._member.flush())
        self._file.flush()
