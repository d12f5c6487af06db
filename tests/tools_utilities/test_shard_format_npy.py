"""npy: rows of an array, its header never evaluated."""

import io
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.shard_mutations import assert_damage_is_an_error
from tests.shard_reading import in_memory, one_split, open_splits, plan, read_all, written
from tools_utilities.errors import RecordError
from tools_utilities.shard_bytes import FileShardBytes
from tools_utilities.shard_formats.npy import read_header

KEY = "d/x.npy"


def saved(array: Any, **how: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


def rows(array: Any, field: str) -> None:
    """Check that an array is read row by row, exactly, cut into splits or not."""
    for target_bytes in (1, 100, 1 << 20):
        found = read_all("npy", in_memory(KEY, saved(array)), target_bytes=target_bytes)
        assert [list(sample) for sample in found] == [[field]] * len(array)
        for sample, row in zip(found, array, strict=True):
            assert (
                np.asarray(sample[field]).tobytes()
                == np.ascontiguousarray(row).astype(row.dtype.newbyteorder("=")).tobytes()
            )
            assert sample[field].dtype == row.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(30, dtype=np.uint8).reshape(10, 3),
        np.arange(60, dtype=">f4").reshape(5, 3, 4),
        np.arange(7, dtype=np.int64),
        np.array([True, False]),
        np.array(["a", "öö", ""]),
        np.array([b"ab", b"c"]),
        np.array([1 + 2j, 3], np.complex64),
        np.array(["2020-01-02", "NaT"], "datetime64[s]"),
        np.ones((2, 2), np.float16),
        np.asfortranarray(np.arange(12.0).reshape(4, 3)),
    ],
    ids=lambda array: f"{array.dtype}-{array.ndim}",
)
def test_arrays_are_read_by_rows(array: Any) -> None:
    rows(array, "array")


@pytest.mark.parametrize("dtype", ["<u2", ">i4", "<i8"])
def test_a_matrix_of_whole_numbers_is_token_sequences(dtype: str) -> None:
    rows(np.arange(40, dtype=dtype).reshape(10, 4), "input_ids")


def test_rows_are_copies_that_can_be_written_to(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(saved(np.zeros((3, 2))))
    shard = FileShardBytes(path)
    sample = read_all("npy", shard)[0]
    shard.close()
    sample["array"][0] = 1
    assert sample["array"].tolist() == [1, 0]


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header_is_read(version: tuple[int, int]) -> None:
    file = io.BytesIO()
    np.lib.format.write_array(file, np.arange(4.0), version=version)
    found = read_all("npy", in_memory(KEY, file.getvalue()))
    assert [sample["array"] for sample in found] == [0, 1, 2, 3]


def test_headers_of_other_writers_are_read() -> None:
    text = b"{ 'shape':(3L,),'descr':'|u1','fortran_order':False}\n"
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + b"\7\x08\x09"
    assert [s["array"] for s in read_all("npy", in_memory(KEY, data))] == [7, 8, 9]


def test_splits_cover_the_object_and_know_their_rows() -> None:
    data = saved(np.arange(1000, dtype=np.float32).reshape(250, 4))
    splits = plan("npy", in_memory(KEY, data), target_bytes=1000)
    assert len(splits) == 4
    assert sum(split.num_samples or 0 for split in splits) == 250
    assert splits[0].start == 0
    assert splits[-1].end == len(data)
    assert sum(split.num_bytes for split in splits) == len(data)


def test_planning_reads_the_header_alone() -> None:
    data = saved(np.zeros((1000, 100)))
    asked: list[tuple[int, int]] = []

    def read(start: int, end: int) -> bytes:
        asked.append((start, end))
        return data[start:end]

    header = read_header(KEY, read, len(data))
    assert header.shape == (1000, 100)
    assert asked == [(0, 4096)]


def test_raw_rows_are_their_bytes() -> None:
    array = np.arange(6, dtype=">i2").reshape(3, 2)
    opened = one_split("npy", in_memory(KEY, saved(array)))
    assert opened.read_raw([2, 0]) == [array[2].tobytes(), array[0].tobytes()]


def test_objects_are_refused_by_name_and_never_unpickled() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (pytest.fail, ("unpickled",))

    data = saved(np.array([Trap()], object), allow_pickle=True)
    assert pickle.dumps(1)[:1] in data
    with pytest.raises(RecordError, match="an array of Python objects is pickled and is not read"):
        read_all("npy", in_memory(KEY, data))


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.array([(1, 2)], "i4,f4"), "the type '\\[' is not read"),
        (np.array(5), "0 axes"),
        (np.zeros((3, 0)), "rows of no bytes"),
        (np.array([b"ab"], "V2"), "is not read"),
    ],
)
def test_what_has_no_rows_of_plain_values_is_refused(array: Any, why: str) -> None:
    with pytest.raises(RecordError, match=why) as caught:
        plan("npy", in_memory(KEY, saved(array)))
    assert caught.value.detail["key"] == KEY


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (
            "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999, 9), }",
            "truncated",
        ),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }", "not an npy header"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (1 2,), }", "not a shape"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "9" * 30 + ",), }", "not a shape"),
        ("{'descr': '<f8', 'fortran_order': False, 'shape': (" + "1," * 70 + "), }", "70 axes"),
        ("{'descr': __import__('os'), 'fortran_order': False, 'shape': (1,), }", "not an npy"),
        ("{'descr': '<f7', 'fortran_order': False, 'shape': (1,), }", "is not known"),
        ("{'descr': '<x8', 'fortran_order': False, 'shape': (1,), }", "is not read"),
        ("{'descr': '<f8', 'fortran_order': 2, 'shape': (1,), }", "not an npy header"),
    ],
)
def test_hostile_headers_are_errors(header: str, why: str) -> None:
    text = header.encode()
    data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(8)
    with pytest.raises(RecordError, match=why):
        read_all("npy", in_memory(KEY, data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x93NUMPX" + bytes(99), "does not begin with"),
        (b"\x93NUMPY\x09\x00" + bytes(99), "version 9"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(99), "truncated"),
        (b"\x93NUMPY\x02\x00" + struct.pack("<I", 70_000) + bytes(70_000), "header of 70000"),
        (saved(np.zeros(3)) + b"x", "something follows"),
        (saved(np.zeros(3))[:-1], "truncated"),
    ],
)
def test_other_sizes_than_promised_are_errors(data: bytes, why: str) -> None:
    with pytest.raises(RecordError, match=why):
        read_all("npy", in_memory(KEY, data))


def test_numpy_reads_what_is_written() -> None:
    rng = random.Random(3)
    matrix = [{"input_ids": np.array(rng.choices(range(9), k=4), np.uint32)} for _ in range(5)]
    loaded = np.load(io.BytesIO(written("npy", matrix)), allow_pickle=False)
    assert loaded.tolist() == [sample["input_ids"].tolist() for sample in matrix]
    assert np.load(io.BytesIO(written("npy", [{"array": 2.5}]))).tolist() == [2.5]
    assert len(np.load(io.BytesIO(written("npy", [])))) == 0
    assert written("npy", matrix) == saved(loaded)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"array": np.zeros(3)}, "not float64 of"),
        ({"array": np.zeros(2, np.float32)}, "not float64 of"),
        ({"array": np.zeros(2), "x": 1}, "needs the one field"),
        ({"x": 1}, "needs the one field"),
        ({"array": [None, None]}, "rows of object"),
        ({"array": np.zeros(2, np.int32)}, "would not be read back as array"),
        ({"input_ids": np.zeros(2)}, "would not be read back as input_ids"),
    ],
)
def test_what_does_not_fit_is_refused(bad: Any, why: str) -> None:
    with pytest.raises(RecordError, match=f"sample 1 cannot be written to npy: .*{why}"):
        written("npy", [{"array": np.zeros(2)}, bad])


def test_damage_is_an_error() -> None:
    for seed, array in enumerate((np.arange(40.0).reshape(10, 4), np.array(["ab", "c"]))):
        assert_damage_is_an_error("npy", KEY, saved(array), seed=seed)


def test_text_beyond_unicode_is_an_error() -> None:
    data = saved(np.array(["ab", "c"]))
    damaged = data[:-4] + b"\xff\xff\xff\x7f"
    with pytest.raises(RecordError, match="row 2 of the split is no text"):
        read_all("npy", in_memory(KEY, damaged))


def test_a_split_opens_without_the_rest() -> None:
    data = saved(np.arange(100, dtype=np.int64))
    counts = [
        opened.num_samples for opened in open_splits("npy", in_memory(KEY, data), target_bytes=99)
    ]
    assert sum(counts) == 100
    assert len(counts) > 5
