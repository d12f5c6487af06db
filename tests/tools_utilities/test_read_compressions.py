"""bzip2, brotli, snappy: what mosaicml-streaming and old dumps hold is read, and never a part of it."""

import bz2
import random
from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.memory_peak import memory_peak
from tests.shard_reading import in_memory, read_all, written
from tools_utilities.compression import decompressed
from tools_utilities.errors import RecordError
from tools_utilities.shard_format import format_of, split_suffix

DATA = b"".join(b'{"id":%d}\n' % number for number in range(5000))


def by_codec(name: str) -> Callable[[bytes], bytes]:
    return lambda data: bytes(memoryview(pa.Codec(name).compress(data)))  # type: ignore[arg-type] # one of its names


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "bzip2": bz2.compress, "brotli": by_codec("brotli"), "snappy": by_codec("snappy"),
}  # fmt: skip
SUFFIXES = {"bzip2": ".bz2", "brotli": ".br", "snappy": ".snappy"}
EACH = pytest.mark.parametrize("name", COMPRESS)


def decode(stored: bytes, name: str, piece_bytes: int = 1 << 20) -> bytes:
    pieces = [stored[i : i + piece_bytes] for i in range(0, len(stored), piece_bytes)]
    return b"".join(decompressed(pieces, name, key="d/x"))


@EACH
@pytest.mark.parametrize("piece_bytes", [1, 4096, 1 << 20])
def test_all_is_decoded_whatever_the_pieces(name, piece_bytes):
    assert decode(COMPRESS[name](DATA), name, piece_bytes) == DATA
    assert decode(b"", name) == b""


@EACH
def test_every_cut_is_an_error(name):
    stored = COMPRESS[name](DATA[:300])
    for end in range(1, len(stored)):
        with pytest.raises(RecordError, match="d/x: ") as caught:
            decode(stored[:end], name)
        assert caught.value.detail["reason"] in {"truncated", "damaged"}


@EACH
@pytest.mark.parametrize("garbage", [b"x", b"junk junk junk", b"\0\0\0x"])
def test_what_follows_the_end_is_an_error(name, garbage):
    with pytest.raises(RecordError, match="d/x: "):
        decode(COMPRESS[name](DATA) + garbage, name)


@EACH
def test_something_else_is_an_error(name):
    with pytest.raises(RecordError, match=f"d/x: not {name}"):
        decode(b"\xff\xff\xff\xff\x7f" * 20, name)


def test_bzip2_streams_follow_each_other():
    assert decode(bz2.compress(DATA) + bz2.compress(b"") + bz2.compress(DATA), "bzip2") == 2 * DATA


@pytest.mark.parametrize("name", ["bzip2", "brotli"])
def test_much_from_little_comes_in_pieces(name):
    stored = COMPRESS[name](bytes(64 << 20))
    with memory_peak() as peak:
        pieces = [len(piece) for piece in decompressed([stored], name, key="d/x")]
    assert sum(pieces) == 64 << 20
    assert max(pieces) <= 1 << 20
    assert peak.num_bytes < 16 << 20


def test_snappys_length_is_not_believed_blindly():
    with pytest.raises(RecordError, match="6 bytes cannot hold 4294967295"):
        decode(b"\xff\xff\xff\xff\x0f\0", "snappy")


@EACH
def test_mds_shards_are_read(name):
    rows = [{"id": number, "text": f"t{number} " * 9} for number in range(50)]
    stored = COMPRESS[name](written("mds", rows))
    key = f"d/shard.00000.mds{SUFFIXES[name]}"
    assert format_of(key) is format_of("d/shard.00000.mds")
    assert read_all("mds", in_memory(key, stored)) == rows
    with pytest.raises(RecordError, match=f"{key}: "):
        read_all("mds", in_memory(key, stored[: random.Random(0).randrange(9, len(stored))]))


def test_suffixes():
    assert split_suffix("a/B.JSONL.BZ2") == ("a/B.JSONL", "bzip2")
    assert split_suffix("a/b.mds.snappy") == ("a/b.mds", "snappy")
    assert split_suffix("a/b.jsonl.snappy") == ("a/b.jsonl.snappy", None)
    assert read_all("jsonl", in_memory("d/x.jsonl.bz2", bz2.compress(DATA)))[4999] == {"id": 4999}
