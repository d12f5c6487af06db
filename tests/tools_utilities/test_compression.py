"""gzip and zstd: every member and frame, and nothing that was cut or added passes."""

import gzip
import hashlib
import io
import random

import pytest
import zstandard

from tests.memory_peak import memory_peak
from tests.shard_reading import CASES
from tools_utilities.compression import compressed_writer, decompress_to_spill, decompressed
from tools_utilities.errors import RecordError, UsageError

DATA = b"".join(b'{"id":%d}\n' % i for i in range(5000))
SKIPPABLE_FRAME = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"notes"


def compress(data: bytes, compression: str) -> bytes:
    return gzip.compress(data) if compression == "gzip" else zstandard.compress(data)


def decompress(stored: bytes, compression: str, *, piece_bytes: int = 1 << 20) -> bytes:
    pieces = [stored[i : i + piece_bytes] for i in range(0, len(stored), piece_bytes)]
    return b"".join(decompressed(pieces, compression, key="d/x"))


BOTH = pytest.mark.parametrize("compression", ["gzip", "zstd"])


@BOTH
@pytest.mark.parametrize("piece_bytes", [1, 7, 4096, 1 << 20])
def test_all_members_and_frames_are_decoded(compression: str, piece_bytes: int) -> None:
    parts = [b"", DATA[:20000], b"", b"", DATA[20000:20001], DATA[20001:], b""]
    stored = b"".join(compress(part, compression) for part in parts)
    assert decompress(stored, compression, piece_bytes=piece_bytes) == DATA


@BOTH
def test_an_empty_object_and_an_empty_member_are_empty(compression: str) -> None:
    assert decompress(b"", compression) == b""
    assert decompress(compress(b"", compression), compression) == b""


@BOTH
@pytest.mark.parametrize("parts", [1, 2])
def test_every_cut_is_an_error(compression: str, parts: int) -> None:
    stored = compress(DATA[:300], compression)
    whole = stored * parts
    for end in range(len(whole) - len(stored) + 1, len(whole)):
        with pytest.raises(RecordError, match="d/x: truncated") as failure:
            decompress(whole[:end], compression)
        assert failure.value.detail["reason"] == "truncated"


@BOTH
@pytest.mark.parametrize("garbage", [b"x", b"\x1f\x8bjunk junk junk", b"{}\n", b"\0\0\0x"])
def test_trailing_garbage_is_an_error(compression: str, garbage: bytes) -> None:
    with pytest.raises(RecordError, match="d/x") as failure:
        decompress(compress(DATA, compression) + garbage, compression)
    assert failure.value.detail["reason"] in {"damaged", "truncated"}


def test_zero_padding_after_a_gzip_member_is_allowed() -> None:
    assert decompress(gzip.compress(DATA) + bytes(700), "gzip", piece_bytes=100) == DATA


def test_skippable_zstd_frames_hold_no_data() -> None:
    stored = SKIPPABLE_FRAME + zstandard.compress(DATA) + SKIPPABLE_FRAME
    for piece_bytes in (1, 1000):
        assert decompress(stored, "zstd", piece_bytes=piece_bytes) == DATA
    with pytest.raises(RecordError, match="truncated"):
        decompress(stored[:-1], "zstd")


@pytest.mark.parametrize("level", [-5, 1, 19])
@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("content_size", [False, True])
@pytest.mark.parametrize("size_bytes", [0, 1, 200, 300, 70_000, 700_000])
def test_every_kind_of_zstd_frame(
    *,
    level: int,
    checksum: bool,
    content_size: bool,
    size_bytes: int,
) -> None:
    compressor = zstandard.ZstdCompressor(
        level, write_checksum=checksum, write_content_size=content_size
    )
    noise = random.Random(size_bytes).randbytes(size_bytes // 2)
    data = noise + bytes(size_bytes - len(noise))  # raw, compressed and run-length blocks
    one = compressor.compress(data)
    streaming = compressor.compressobj()
    other = streaming.compress(data) + streaming.flush()
    assert decompress(one + other, "zstd", piece_bytes=1000) == data + data
    with pytest.raises(RecordError, match="truncated"):
        decompress(one + other[:-1], "zstd")


@BOTH
def test_a_flipped_bit_is_an_error(compression: str) -> None:
    file = io.BytesIO()
    writer = compressed_writer(file, compression)
    writer.write(random.Random(0).randbytes(3000))
    writer.close()
    damaged = bytearray(file.getvalue())
    damaged[1500] ^= 4
    with pytest.raises(RecordError, match="damaged"):
        decompress(bytes(damaged), compression)


@BOTH
def test_something_else_is_named(compression: str) -> None:
    with pytest.raises(RecordError, match=f"d/x: not {compression}, or damaged"):
        decompress(DATA, compression)


def test_the_real_zstd_table() -> None:
    stored = (CASES / "compressed" / "lineitem1k.tbl.zst").read_bytes()
    table = decompress(stored, "zstd")
    assert (len(table), table.count(b"\n")) == (123_848, 1_000)
    assert hashlib.sha256(table).hexdigest().startswith("66b0ce01093a5a41")


@BOTH
def test_much_from_little_is_decoded_in_pieces_and_spilled(compression: str) -> None:
    num_bytes = 200 << 20
    if compression == "gzip":
        stored = gzip.compress(bytes(num_bytes), 1)
    else:
        stored = zstandard.compress(bytes(num_bytes))
    view = memoryview(stored)
    with memory_peak() as peak:
        spill = decompress_to_spill(view, compression, key="d/x", memory_bytes=1 << 20)
    view = spill.view()
    assert (len(view), spill.held_bytes, view[-1]) == (num_bytes, 0, 0)
    assert peak.num_bytes < 48 << 20
    spill.close()


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
def test_what_is_written_is_read_back_and_repeatable(compression: str | None) -> None:
    def write() -> bytes:
        file = io.BytesIO()
        writer = compressed_writer(file, compression)
        for start in range(0, len(DATA), 999):
            writer.write(DATA[start : start + 999])
        writer.close()
        return file.getvalue()

    stored = write()
    assert stored == write()
    if compression is None:
        assert stored == DATA
    else:
        assert decompress(stored, compression) == DATA
        assert len(stored) < len(DATA) / 2


def test_other_compressions_are_refused_by_name() -> None:
    with pytest.raises(UsageError, match="'lz4'"):
        compressed_writer(io.BytesIO(), "lz4")
    with pytest.raises(UsageError, match="'lz4'"):
        decompressed([b""], "lz4", key="d/x")
