"""Small shards that claim to be huge: counts, repetitions and sizes that nothing stands behind.

Each function returns (format, key, bytes). Most are well-formed: a reader that does what they say fills
memory or disk, or never ends.

`python -m tests.reliability.bombs` reads them all, and prints a line of JSON for each: how it ended, the
peak of memory, the seconds. What kills the process is the one behind the last line.
"""

import io
import json
import resource
import struct
import sys
import tarfile
import time
from collections.abc import Callable
from typing import Any

from tests.memory_peak import memory_peak
from tests.shard_reading import in_memory, read_all
from tools_utilities.errors import QuarkError

Bomb = tuple[str, str, bytes]
BILLION = 1_000_000_000


# Parquet, from page headers up.


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _i(number: int) -> bytes:
    return _varint((number << 1) ^ (number >> 63))


def _fields(*fields: tuple[int, int, bytes]) -> bytes:
    """Return a struct of Thrift's compact protocol from (number, type, encoded value)."""
    out, last = b"", 0
    for number, kind, value in fields:
        out += bytes([(number - last) << 4 | kind]) + value
        last = number
    return out + b"\0"


def _page(
    kind: int, about: int, num_values: int, encoding: int, body: bytes, decoded: int
) -> bytes:
    details: tuple[tuple[int, int, bytes], ...] = ((1, 5, _i(num_values)), (2, 5, _i(encoding)))
    if kind == 0:
        details += ((3, 5, _i(3)), (4, 5, _i(3)))
    header = _fields(
        (1, 5, _i(kind)), (2, 5, _i(decoded)), (3, 5, _i(len(body))), (about, 12, _fields(*details))
    )
    return header + body


def _run(num_values: int, bit_width: int) -> bytes:
    """Return so many times the value 0, as one run length."""
    return _varint(num_values << 1) + b"\0" * ((bit_width + 7) // 8)


def _parquet_column(
    num_values: int, num_rows: int, dictionary: bytes, physical: int, *, listed: bool = False,
    codec: int = 0, decoded: int | None = None,
) -> bytes:  # fmt: skip
    """Return a file with one column whose every value is the dictionary's first."""
    levels = b""
    if listed:  # one row: its first value begins it, all others go on
        rep = _varint(1 << 1) + b"\0" + _varint((num_values - 1) << 1) + b"\1"
        deep = _varint(num_values << 1) + b"\1"
        levels = b"".join(struct.pack("<I", len(part)) + part for part in (rep, deep))
    pages = _page(2, 7, 1, 0, dictionary, len(dictionary) if decoded is None else decoded)
    data_at = 4 + len(pages)
    # A width of one bit: with none at all there would be nothing to run over.
    body = levels + b"\1" + _run(num_values, 1)
    pages += _page(0, 5, num_values, 8, body, len(body))
    name = b"x"
    path = [b"x", b"list"] if listed else [name]
    meta = _fields(
        (1, 5, _i(physical)),
        (2, 9, bytes([2 << 4 | 5]) + _i(8) + _i(3)),
        (3, 9, bytes([len(path) << 4 | 8]) + b"".join(_varint(len(p)) + p for p in path)),
        (4, 5, _i(codec)),
        (5, 6, _i(num_values)),
        (6, 6, _i(len(pages))),
        (7, 6, _i(len(pages))),
        (9, 6, _i(data_at)),
        (11, 6, _i(4)),
    )
    chunk = _fields((2, 6, _i(4)), (3, 12, meta))
    group = _fields(
        (1, 9, bytes([1 << 4 | 12]) + chunk), (2, 6, _i(len(pages))), (3, 6, _i(num_rows))
    )
    leaf = (1, 5, _i(physical))
    root = _fields((4, 8, _varint(1) + b"r"), (5, 5, _i(1)))
    if listed:
        elements = [
            root,
            _fields((3, 5, _i(0)), (4, 8, _varint(1) + name), (5, 5, _i(1))),
            _fields(leaf, (3, 5, _i(2)), (4, 8, _varint(4) + b"list")),
        ]
    else:
        elements = [root, _fields(leaf, (3, 5, _i(0)), (4, 8, _varint(1) + name))]
    footer = _fields(
        (1, 5, _i(1)),
        (2, 9, bytes([len(elements) << 4 | 12]) + b"".join(elements)),
        (3, 6, _i(num_rows)),
        (4, 9, bytes([1 << 4 | 12]) + group),
    )
    return b"PAR1" + pages + footer + struct.pack("<I", len(footer)) + b"PAR1"


def _text(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def parquet_numbers(num_rows: int = BILLION) -> Bomb:
    """A billion times the same number, in a run length."""
    return "parquet", "d/x.parquet", _parquet_column(num_rows, num_rows, bytes(8), 2)


def parquet_texts(num_rows: int = 100_000, length: int = 1 << 20) -> Bomb:
    """A text of a mebibyte, which a dictionary repeats: 100 GB."""
    data = _parquet_column(num_rows, num_rows, _text(b"x" * length), 6)
    return "parquet", "d/x.parquet", data


def parquet_late_texts() -> Bomb:
    """Long texts behind rows that look harmless: batches made for those would hold four gigabytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = io.BytesIO()
    dictionary = pa.array(["x", "y" * (64 << 10)])
    indices = pa.array([0] * 5_000 + [1] * 60_000, pa.int32())
    table = pa.table({"text": pa.DictionaryArray.from_arrays(indices, dictionary)})
    pq.write_table(table, file, compression="zstd", store_schema=False)  # else it is read as it is
    return "parquet", "d/x.parquet", file.getvalue()


def parquet_list(num_values: int = BILLION) -> Bomb:
    """One row: a list of a billion numbers."""
    return "parquet", "d/x.parquet", _parquet_column(num_values, 1, bytes(8), 2, listed=True)


def parquet_list_of_texts() -> Bomb:
    """One row: a list of a million texts of a mebibyte."""
    data = _parquet_column(1_000_000, 1, _text(b"x" * (1 << 20)), 6, listed=True)
    return "parquet", "d/x.parquet", data


def parquet_page() -> Bomb:
    """A page of two gigabytes of zeros, compressed."""
    import pyarrow as pa

    zeros = bytes(1 << 30)
    packed = pa.Codec("zstd").compress(zeros, asbytes=True)
    data = _parquet_column(3, 3, packed, 2, codec=6, decoded=len(zeros))
    return "parquet", "d/x.parquet", data


def parquet_page_claim() -> Bomb:
    """A dictionary page that only claims two gigabytes."""
    data = _parquet_column(3, 3, b"\0" * 40, 2, codec=6, decoded=(1 << 31) - 1)
    return "parquet", "d/x.parquet", data


def parquet_rows(num_rows: int = 1 << 50) -> Bomb:
    """A footer that claims rows of which there are three."""
    return "parquet", "d/x.parquet", _parquet_column(3, num_rows, bytes(8), 2)


def parquet_negative() -> Bomb:
    """A footer that claims fewer rows than none."""
    return "parquet", "d/x.parquet", _parquet_column(3, -3, bytes(8), 2)


# Arrow.


def _arrow(batch: Any, *, stream: bool, compression: Any = None) -> bytes:
    import pyarrow as pa

    file = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    make = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(file, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return file.getvalue()


def arrow_nulls(*, stream: bool) -> Bomb:
    """Two thousand million rows of nothing."""
    import pyarrow as pa

    batch = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.null(), (1 << 31) - 1, [None])], ["x"]
    )
    return "arrow", "d/x.arrow", _arrow(batch, stream=stream)


def arrow_runs() -> Bomb:
    """A run that ends at two thousand million."""
    import pyarrow as pa

    array: Any = pa.RunEndEncodedArray.from_arrays(
        pa.array([2_000_000_000], pa.int32()), pa.array(["x"])
    )
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    return "arrow", "d/x.arrow", _arrow(batch, stream=False)


def arrow_zeros(*, stream: bool) -> Bomb:
    """A gigabyte of zeros, compressed."""
    import numpy as np
    import pyarrow as pa

    batch = pa.RecordBatch.from_arrays([pa.array(np.zeros(1 << 27, np.int64))], ["x"])
    return "arrow", "d/x.arrow", _arrow(batch, stream=stream, compression="zstd")


def arrow_claim() -> Bomb:
    """A compressed buffer that only claims 2^45 bytes."""
    import pyarrow as pa

    batch = pa.RecordBatch.from_arrays([pa.array([7] * 5_000, pa.int64())], ["x"])
    data = _arrow(batch, stream=False, compression="zstd")
    return "arrow", "d/x.arrow", data.replace(struct.pack("<q", 40_000), struct.pack("<q", 1 << 45))


def arrow_texts() -> Bomb:
    """A text of a mebibyte, which a dictionary repeats: 100 GB."""
    import pyarrow as pa

    indices = pa.array([0] * 100_000, pa.int8())
    array = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * (1 << 20)]))
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    return "arrow", "d/x.arrow", _arrow(batch, stream=False)


# Tar.


def _header(name: str, size: bytes, kind: bytes = b"0") -> bytes:
    info = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    info[124:136] = size.ljust(12, b"\0")
    info[156:157] = kind
    info[148:156] = b" " * 8
    info[148:156] = b"%06o\0 " % sum(info)
    return bytes(info)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def tar_back(size: bytes = b"-1000") -> Bomb:
    """A member whose size leads back to where it begins."""
    return "webdataset", "d/x.tar", _header("folder/", size) + bytes(1024)


def tar_pax_back() -> Bomb:
    """The same, by an extended header."""
    record = b"17 size=-1536\n"
    record = b"%d size=-1536\n" % len(record)
    head = _header("x", b"%o" % len(record), b"x") + _padded(record)
    return "webdataset", "d/x.tar", head + _header("folder/", b"0") + bytes(1024)


def tar_pax_records() -> Bomb:
    """An extended header of a quarter of a million records of nothing."""
    records = b"4 =\n" * (1 << 18)
    head = _header("x", b"%o" % len(records), b"x") + _padded(records)
    return "webdataset", "d/x.tar", head + _header("a.txt", b"1") + _padded(b"1") + bytes(1024)


def tar_pax_digits() -> Bomb:
    """A size of five thousand digits."""
    record = b"9" * 5_000 + b" size=1\n"
    head = _header("x", b"%o" % len(record), b"x") + _padded(record)
    return "webdataset", "d/x.tar", head + _header("a.txt", b"1") + _padded(b"1") + bytes(1024)


# Others.


def npy_text() -> Bomb:
    """One row: a text of 2^30 characters."""
    header = (
        b"{'descr': '<U1073741824', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    )
    return "npy", "d/x.npy", b"\x93NUMPY\x01\x00\x76\x00" + header


def mds_count() -> Bomb:
    """A shard of four thousand million samples."""
    return "mds", "d/shard.00000.mds", struct.pack("<II", (1 << 32) - 1, 16) + bytes(64)


def litdata_count() -> Bomb:
    """A chunk of four thousand million items."""
    return (
        "litdata",
        "d/chunk-0-0.bin",
        struct.pack("<II", (1 << 30) - 3, (1 << 32) - 4) + bytes(64),
    )


def snappy_claim() -> Bomb:
    """A block that claims four gigabytes."""
    return "mds", "d/shard.00000.mds.snappy", b"\xff\xff\xff\xff\x0f" + bytes(200)


BOMBS: dict[str, Callable[[], Bomb]] = {
    "Parquet of a billion numbers": parquet_numbers,
    "Parquet of long texts": parquet_texts,
    "Parquet of long texts later": parquet_late_texts,
    "Parquet of one long list": parquet_list,
    "Parquet of one list of long texts": parquet_list_of_texts,
    "Parquet of a page of zeros": parquet_page,
    "Parquet page that claims": parquet_page_claim,
    "Parquet of 2^50 rows": parquet_rows,
    "Parquet of -3 rows": parquet_negative,
    "Arrow file of nulls": lambda: arrow_nulls(stream=False),
    "Arrow stream of nulls": lambda: arrow_nulls(stream=True),
    "Arrow of one run": arrow_runs,
    "Arrow file of zeros": lambda: arrow_zeros(stream=False),
    "Arrow stream of zeros": lambda: arrow_zeros(stream=True),
    "Arrow buffer that claims": arrow_claim,
    "Arrow of long texts": arrow_texts,
    "tar that leads back": tar_back,
    "tar that leads back by pax": tar_pax_back,
    "tar of pax records": tar_pax_records,
    "tar of pax digits": tar_pax_digits,
    "npy of one long text": npy_text,
    "MDS of 2^32 samples": mds_count,
    "LitData of 2^30 items": litdata_count,
    "snappy that claims": snappy_claim,
}
_ADDRESS_BYTES = 6 << 30


def ended(bomb: Bomb) -> str:
    """Read a shard whole; returns how that ended."""
    name, key, data = bomb
    try:
        return f"read {len(read_all(name, in_memory(key, data)))}"
    except QuarkError as error:
        return f"refused: {error}"
    except BaseException as error:  # noqa: BLE001 - what is looked for
        return f"{type(error).__name__}: {error}"


def main() -> None:
    """Read every bomb."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    for name, make in BOMBS.items():
        bomb = make()
        began = time.process_time()
        with memory_peak() as peak:
            how = ended(bomb)
        line = {"name": name, "ended": how, "peak": peak.num_bytes}
        line["seconds"] = round(time.process_time() - began, 2)
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
