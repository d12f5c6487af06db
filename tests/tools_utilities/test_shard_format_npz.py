"""npz: rows of several arrays in a zip, nothing unpickled, nothing believed of sizes."""

import io
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.memory_peak import memory_peak
from tests.shard_mutations import assert_damage_is_an_error
from tests.shard_reading import in_memory, one_split, plan, read_all, written
from tools_utilities.errors import RecordError, UsageError
from tools_utilities.shard_bytes import FileShardBytes
from tools_utilities.shard_format import ReadOptions, format_of
from tools_utilities.token_rows import token_rows

KEY = "d/x.npz"
ARRAYS: dict[str, Any] = {
    "x": np.arange(60, dtype=">f4").reshape(5, 3, 4),
    "label": np.arange(5, dtype=np.int64),
    "word": np.array(["a", "öö", "", "d", "e"]),
    "turned": np.asfortranarray(np.arange(10.0).reshape(5, 2)),
}


def saved(save: Any = np.savez, **arrays: Any) -> bytes:
    file = io.BytesIO()
    save(file, **arrays)
    return file.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return file.getvalue()


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_sample_is_one_row_of_each_array(save, tmp_path: Path):
    data = saved(save, **ARRAYS)
    path = tmp_path / "x.npz"
    path.write_bytes(data)
    assert format_of("a/B.NPZ") is not None
    for shard in (in_memory(KEY, data), FileShardBytes(path)):
        found = read_all("npz", shard)
        shard.close()
        assert [list(sample) for sample in found] == [list(ARRAYS)] * 5
        for place, sample in enumerate(found):
            for name, array in ARRAYS.items():
                assert np.array_equal(sample[name], array[place])
                assert sample[name].dtype.kind == array.dtype.kind
                assert sample[name].dtype.isnative
        found[0]["x"][:] = 7  # a row is the reader's own
    assert len(plan("npz", in_memory(KEY, data), target_bytes=10)) == 1


def test_only_the_arrays_asked_for_are_read():
    other = zipped({"x.npy": npy(np.arange(3)), "bad.npy": b"no array at all"})
    assert read_all("npz", in_memory(KEY, other), options=ReadOptions(columns=("x",))) == [
        {"x": 0}, {"x": 1}, {"x": 2},
    ]  # fmt: skip
    with pytest.raises(RecordError, match="no array y"):
        read_all("npz", in_memory(KEY, other), options=ReadOptions(columns=("x", "y")))
    with pytest.raises(RecordError, match="array 'bad': not an npy file"):
        read_all("npz", in_memory(KEY, other))


def test_arrays_of_ids_are_token_rows():
    data = saved(input_ids=np.arange(12, dtype=np.uint16).reshape(4, 3), mask=np.ones((4, 3)))
    opened = token_rows(one_split("npz", in_memory(KEY, data)))
    assert [sample["input_ids"].tolist() for sample in opened.read([2, 0])] == [
        [6, 7, 8], [0, 1, 2],
    ]  # fmt: skip
    with pytest.raises(UsageError, match="no bytes of their own"):
        one_split("npz", in_memory(KEY, data)).read_raw([0])


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"x.npy": npy(np.arange(3)), "y.npy": npy(np.arange(4))}, r"\(x: 3, y: 4\)"),
        ({"x.npy": npy(np.float64(3))}, "array 'x': an array with 0 axes"),
        ({"readme.txt": b"hello"}, "'readme.txt' is no array"),
        ({"x.npy": npy(np.arange(3))[:-1]}, "array 'x': truncated"),
        ({"x.npy": npy(np.arange(3)) + b"!"}, "array 'x': something follows"),
        ({f"{n}.npy": b"" for n in range(1025)}, "1025 arrays"),
    ],
)
def test_what_is_no_table_of_rows_is_refused(members, message):
    with pytest.raises(RecordError, match=message) as caught:
        read_all("npz", in_memory(KEY, zipped(members)))
    assert caught.value.detail["key"] == KEY


def test_objects_are_refused_by_name_and_never_unpickled(tmp_path: Path):
    class Trap:
        def __reduce__(self) -> Any:
            return (tmp_path / "sprung").touch, ()

    array = np.empty(1, object)
    array[0] = Trap()
    with pytest.raises(RecordError, match="array 'o': an array of Python objects is pickled"):
        read_all("npz", in_memory(KEY, saved(o=array)))
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_one_bit_of_an_array_is_caught_by_the_zips_own_checksum(save):
    data = bytearray(saved(save, x=np.random.default_rng(0).random(200)))
    data[len(data) // 2] ^= 4
    with pytest.raises(RecordError):
        read_all("npz", in_memory(KEY, bytes(data)))


def test_what_follows_the_archive_or_is_cut_off_is_an_error():
    data = saved(**ARRAYS)
    for wrong in (
        data + b"!",
        data + bytes(100),
        data[:-1],
        data[: len(data) // 2],
        b"PK",
        b"x" * 99,
    ):
        with pytest.raises(RecordError):
            read_all("npz", in_memory(KEY, wrong))
    assert read_all("npz", in_memory(KEY, zipped({}))) == []


def test_encrypted_and_otherwise_compressed_arrays_are_refused():
    data = bytearray(saved(x=np.arange(3)))
    place = data.rindex(b"PK\x01\x02") + 8
    data[place] |= 1
    with pytest.raises(RecordError, match="encrypted, or compressed in a way"):
        read_all("npz", in_memory(KEY, bytes(data)))
    other = zipped({"x.npy": npy(np.arange(3))}, zipfile.ZIP_BZIP2)
    with pytest.raises(RecordError, match="encrypted, or compressed in a way"):
        read_all("npz", in_memory(KEY, other))


def test_a_bomb_ends_before_it_is_decoded():
    zeros = np.zeros(40_000_000, np.float64)  # 320 MB
    data = saved(np.savez_compressed, x=zeros)
    del zeros
    with memory_peak() as peak, pytest.raises(RecordError, match="a decompression bomb"):
        read_all("npz", in_memory(KEY, data))
    assert peak.num_bytes < 32 << 20


def test_a_directory_beyond_all_measure_is_not_read():
    data = bytearray(zipped({"x.npy": npy(np.arange(3))}))
    entry = bytes(data[data.rindex(b"PK\x01\x02") : data.rindex(b"PK\x05\x06")])
    count = (5 << 20) // len(entry)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, count * len(entry), len(data), 0)
    with memory_peak() as peak, pytest.raises(RecordError, match="a directory of more than"):
        read_all("npz", in_memory(KEY, bytes(data) + entry * count + end))
    assert peak.num_bytes < 64 << 20


def test_what_a_compressed_array_holds_beyond_what_it_says_is_not_taken():
    data = bytearray(saved(np.savez_compressed, x=np.zeros(1_000_000)))
    place = data.rindex(b"PK\x01\x02") + 24  # the decoded size, in the directory
    data[place : place + 4] = struct.pack("<I", 300)
    with pytest.raises(RecordError):
        read_all("npz", in_memory(KEY, bytes(data)))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_is_an_error(save):
    for seed in range(3):
        assert_damage_is_an_error("npz", KEY, saved(save, **ARRAYS), seed=seed)


def test_numpy_reads_what_is_written():
    samples = [
        {"x": np.full((2, 2), n, np.float32), "n": n, "w": np.array("ab", "<U4")} for n in range(3)
    ]
    with np.load(io.BytesIO(written("npz", samples)), allow_pickle=False) as loaded:
        assert {name: loaded[name].tolist() for name in loaded} == {
            "x": [[[n, n], [n, n]] for n in (0.0, 1.0, 2.0)], "n": [0, 1, 2], "w": ["ab"] * 3,
        }  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        {"x": np.zeros(3), "y": 1},
        {"x": np.zeros(2, np.int8)},
        {"x": np.zeros(3)},
        {"x": [None, None]},
        {"x": ""},
        {},
    ],
)
def test_what_does_not_fit_is_refused(bad):
    with pytest.raises(RecordError, match="cannot be written to npz"):
        written("npz", [{"x": np.zeros(2)}, bad])
    for name in ("a/b", "", "é"):
        with pytest.raises(RecordError, match="cannot name an array"):
            written("npz", [{name: np.zeros(2)}])
