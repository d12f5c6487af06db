"""Page headers as they are, and data that repeats much and is none the less read."""

import io
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.shard_reading import CASES, in_memory, read_all
from tools_utilities.errors import RecordError
from tools_utilities.parquet_footer import column_chunks
from tools_utilities.parquet_pages import _Chunk
from tools_utilities.thrift_compact import I32, STRUCT, ThriftError, fields, integer, struct, zigzag

LONG = "x" * 300_000


def chunks(data: bytes) -> list[_Chunk]:
    metadata = pq.read_metadata(io.BytesIO(data))

    def read(start: int, end: int) -> bytes:
        return data[start:end]

    return [
        _Chunk("k", metadata.schema.column(column), (group, chunk), read, len(data))
        for group, found in enumerate(column_chunks("k", read, len(data), metadata.num_columns))
        for column, chunk in enumerate(found)
    ]


def written(table: pa.Table, **options) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
def test_every_page_is_found(version, compression):
    table = pa.table(
        {
            "text": [f"text {number % 900}" for number in range(20_000)],
            "number": list(range(20_000)),
            "list": [["a", "bb"] * (number % 3) for number in range(20_000)],
            "flag": [number % 2 == 0 for number in range(20_000)],
        }
    )
    data = written(
        table, data_page_version=version, compression=compression, data_page_size=5_000,
        row_group_size=7_000, write_page_checksum=True,
    )  # fmt: skip
    metadata = pq.read_metadata(io.BytesIO(data))
    for number, chunk in enumerate(chunks(data)):
        told = metadata.row_group(number // 4).column(number % 4)
        pages = [page for page in chunk._pages if page.kind != 2]
        assert sum(page.num_values for page in pages) == told.num_values
        decoded = sum(page.decoded_bytes for page in chunk._pages)
        assert 0 < decoded <= told.total_uncompressed_size
    # Of a dictionary of some bytes nobody asks which is the longest.
    longest = [chunk.longest_repeated() for chunk in chunks(data)][:4]
    assert longest[0] == len("text 899")
    assert longest[1:] == [0, 0, 0]


def test_files_of_other_writers_are_walked_to_their_end():
    walked = 0
    for path in sorted((CASES / "parquet").rglob("*.parquet")):
        try:
            found = chunks(path.read_bytes())
        except (pa.ArrowException, OSError, ValueError):
            continue  # broken on purpose
        for chunk in found:
            values = sum(page.num_values for page in chunk._pages if page.kind != 2)
            walked += values >= chunk._chunk.num_values
            chunk.longest_repeated()
    assert walked > 20


@pytest.mark.parametrize("encoding", ["dictionary", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"])
def test_long_texts_that_repeat_are_read(encoding):
    """45 MB of 300 KB: decoded in small batches, and right."""
    texts = [LONG if number % 10 == 0 else str(number) for number in range(1_500)]
    options: dict[str, Any] = {"use_dictionary": True, "dictionary_pagesize_limit": 8 << 20}
    if encoding != "dictionary":
        options = {"use_dictionary": False, "column_encoding": {"text": encoding}}
    data = written(pa.table({"text": texts}), **options)
    assert [
        sample["text"] for sample in read_all("parquet", in_memory("d/x.parquet", data))
    ] == texts


def test_one_long_text_in_many_lists_is_no_bomb():
    """As many values as the longest would make 60 GB of: they are counted, not guessed."""
    rows = [["t1", "t2"] * 100 for _ in range(1_000)] + [[LONG]]
    data = written(pa.table({"tags": rows}), dictionary_pagesize_limit=8 << 20)
    found = read_all("parquet", in_memory("d/x.parquet", data))
    assert [sample["tags"] for sample in found] == rows


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_what_arrow_dictionaries_stand_for_is_made_in_pieces(stream, compression):
    texts = [LONG if number % 10 == 0 else str(number % 7) for number in range(600)] + [None]
    array = pa.array(texts).dictionary_encode()
    batch = pa.record_batch({"text": array, "number": pa.array(range(601))})
    file = io.BytesIO()
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(file, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as out:
        out.write_batch(batch)
        out.write_batch(batch.slice(0, 0))
        out.write_batch(batch)
    found = read_all("arrow", in_memory("d/x.arrow", file.getvalue()))
    assert [sample["text"] for sample in found] == texts * 2
    assert [sample["number"] for sample in found] == [*range(601)] * 2


@pytest.mark.parametrize(
    ("varint", "bytes_claimed"),
    [
        ("feffffff0f", 2**31 - 1),
        ("96ffffffff00", 2_147_483_595),  # 35 bits, of which Arrow takes 32
        ("a08d06", 50_000),
    ],
)
def test_a_page_that_would_end_behind_its_column_is_refused(varint, bytes_claimed):
    """Arrow makes room for what a page claims before it reads: 2 GB for 1,647 bytes."""
    file = bytearray(written(pa.table({"n": range(513)}), compression="gzip", use_dictionary=False))
    start, place = 0, 6  # behind the magic and the kind of page
    for _ in "decoded", "stored":
        start = place + 1
        place = start + next(i for i, byte in enumerate(file[start:]) if byte < 128) + 1
    file[start:place] = bytes.fromhex(varint)
    with pytest.raises(RecordError, match=rf"claims {bytes_claimed:,} bytes, of which [0-9,]+ are"):
        read_all("parquet", in_memory("d/x.parquet", bytes(file)))


@pytest.mark.parametrize(
    ("varint", "bits", "number"),
    [
        ("02", 32, 1),
        ("01", 32, -1),
        ("96ffffffff00", 32, 2_147_483_595),
        ("96ffffffff00", 64, 17_179_869_131),
        ("82808080f07f", 32, 1),
        ("828004", 16, -32_767),
        ("ffffffffffffffffff01", 64, -(2**63)),
    ],
)
def test_integers_are_cut_to_their_width_as_arrow_cuts_them(varint, bits, number):
    assert zigzag(memoryview(bytes.fromhex(varint)), 0, bits) == (number, len(varint) // 2)


def test_what_a_footer_says_is_what_pyarrow_says():
    compared = 0
    for path in sorted((CASES / "parquet").rglob("*.parquet")):
        data = path.read_bytes()
        try:
            metadata = pq.read_metadata(io.BytesIO(data))
        except (pa.ArrowException, OSError, ValueError):
            continue
        if not metadata.num_row_groups:
            continue
        found = column_chunks("k", lambda a, b: data[a:b], len(data), metadata.num_columns)  # noqa: B023
        for group, chunks_found in enumerate(found):
            for column, chunk in enumerate(chunks_found):
                told = metadata.row_group(group).column(column)
                starts = (told.dictionary_page_offset, told.data_page_offset)
                assert chunk.start == min((place for place in starts if place), default=0)
                assert chunk.num_bytes == told.total_compressed_size
                assert chunk.num_values == told.num_values
                assert chunk.codec.removesuffix("_raw") == told.compression.lower().removesuffix(
                    "_raw"
                )
                compared += 1
    assert compared > 20


def test_a_footer_on_which_pyarrow_ends_the_process_is_an_error_or_read():
    """The histogram of a column's levels is longer than its levels: `RowGroupMetaData.column` aborts."""
    file = bytearray(written(pa.table({"n": [[1, 2], [], None, [3]]})))
    footer = len(file) - 8 - int.from_bytes(file[-8:-4], "little")
    # A list of four: how many values have each level. Here of five.
    at = file.rindex(b"\x19\x46", footer, len(file) - 8) + 1
    longer = bytes([0x56, 0]) + bytes(file[at + 1 : -8])
    length = len(file) - 8 - footer + 1
    broken = bytes(file[:at]) + longer + length.to_bytes(4, "little") + b"PAR1"
    code = (
        "import sys, tests.shard_reading as r\n"
        "from tools_utilities.errors import RecordError\n"
        "try: r.read_all('parquet', r.in_memory('d/x.parquet', bytes.fromhex(sys.argv[1])))\n"
        "except RecordError: print('refused')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, broken.hex()], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "refused\n", "")


@pytest.mark.parametrize(
    "broken",
    [b"", b"\x19", b"\x19\xfc\xff\xff\xff\x0f", b"\x1b\x01", b"\x19\xf3\xff\xff\xff\xff\x0f\x00"],
)
def test_what_is_no_thrift_ends(broken):
    with suppress(ThriftError, IndexError):
        fields(memoryview(broken), 0, {})
    with pytest.raises(RecordError, match="its footer is damaged"):
        data = broken + len(broken).to_bytes(4, "little") + b"PAR1"
        column_chunks("k", lambda a, b: data[a:b], len(data), 1)


def test_a_page_header_of_more_than_is_read_here_is_refused():
    """A map, which no page header of Parquet has: what Arrow finds behind it is not known here."""
    file = bytearray(written(pa.table({"n": range(513)}), compression="gzip", use_dictionary=False))
    file[4:4] = b"\x0b\x50\x00"  # field 40, a map, empty
    with pytest.raises(RecordError, match="a page of n is damaged: its header cannot be read"):
        read_all("parquet", in_memory("d/x.parquet", bytes(file)))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("150216040000", {1: 1}),  # field 1 as i32; field 2 as i64, where i32 is asked for
        ("15020602080000", {1: 1}),  # field 1 again, as i64: passed over
        ("15020502080000", {1: 4}),  # again, of its own kind
        ("3c15021504000c0615080000", {3: {1: 4, 2: 2}}),  # a struct again, without its field 2
    ],
)
def test_fields_are_taken_as_arrows_reader_takes_them(data, found):
    number = integer(32)
    readers = {(1, I32): number, (2, I32): number, (3, STRUCT): struct({(1, I32): number, (2, I32): number})}  # fmt: skip
    assert fields(memoryview(bytes.fromhex(data)), 0, readers)[0] == found


def test_a_size_that_comes_again_as_another_kind_hides_nothing():
    """The second is no field of Arrow's; the first claims 2 GB."""
    file = bytearray(written(pa.table({"n": range(513)}), compression="gzip", use_dictionary=False))
    start, place = 0, 6
    for _ in "decoded", "stored":
        start = place + 1
        place = start + next(i for i, byte in enumerate(file[start:]) if byte < 128) + 1
    file[start:place] = bytes.fromhex("feffffff0f060614")
    with pytest.raises(RecordError, match=r"claims 2,147,483,647 bytes"):
        read_all("parquet", in_memory("d/x.parquet", bytes(file)))
