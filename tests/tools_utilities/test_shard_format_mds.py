"""MDS: shards of mosaicml-streaming, read without their index, written so that it reads them."""

import io
import json
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.peer_data import PEERS, mds_sample, plain, read_folder, stream_folder
from tests.shard_mutations import assert_damage_is_an_error
from tests.shard_reading import case_file, in_memory, one_split, read_all, written
from tools_utilities.errors import RecordError
from tools_utilities.mds_values import MdsValueError, decoder_of, encoded_size
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.scripts.dataset_discovery import find_groups
from tools_utilities.shard_format import ReadOptions, format_of
from tools_utilities.shard_formats.mds import index_of

KEY = "d/shard.00000.mds"
PICTURES = ("picture", "photo", "pixels", "photos", "frames")
ROWS = [{"id": i, "text": f"text {i}"} for i in range(40)]


def shard(columns: dict[str, tuple[str, int | None]], bodies: list[bytes], **config: Any) -> bytes:
    """Return a shard of given columns (encoding, size) and samples, well-formed or not."""
    text = json.dumps(
        {
            "version": 2,
            "format": "mds",
            "column_names": list(columns),
            "column_encodings": [encoding for encoding, _ in columns.values()],
            "column_sizes": [size for _, size in columns.values()],
            **config,
        }
    ).encode()
    ends = np.cumsum([8 + 4 * len(bodies) + len(text), *map(len, bodies)]).astype("<u4")
    return struct.pack("<I", len(bodies)) + ends.tobytes() + text + b"".join(bodies)


def test_every_encoding_of_the_library_is_read_exactly() -> None:
    for target_bytes in (1, 1 << 20):
        found = read_folder(PEERS / "mds", target_bytes=target_bytes)
        rest = [{k: v for k, v in sample.items() if k not in PICTURES} for sample in found]
        assert plain(rest) == plain([mds_sample(i) for i in range(1, 7)])


def test_pictures_are_the_bytes_stored() -> None:
    for i, sample in enumerate(read_folder(PEERS / "mds"), start=1):
        colour = (i, 2 * i, 3 * i)
        png = Image.open(io.BytesIO(sample["picture"]))
        assert (png.format, png.size, png.getpixel((0, 0))) == ("PNG", (2, 2), colour)
        assert Image.open(io.BytesIO(sample["photo"])).format == "JPEG"
        assert len(sample["photos"]) == i % 3
        assert all(photo == sample["photo"] for photo in sample["photos"])
        assert sample["frames"][0] == sample["photo"]
        assert len(sample["frames"]) == 2
        head = np.array([2, 2, 3], "<u4").tobytes() + b"RGB"
        assert sample["pixels"] == head + bytes(colour) * 4


@pytest.mark.parametrize("name", ["mds_zstd", "mds_shards"])
def test_compressed_and_many_shards_are_read(name: str) -> None:
    assert read_folder(PEERS / name) == ROWS
    assert read_folder(PEERS / name, target_bytes=100) == ROWS


@pytest.mark.parametrize("name", ["mds_zstd", "mds_shards"])
def test_a_stream_delivers_each_sample_once_in_shuffled_order(name: str) -> None:
    first, second = (
        [sample["id"] for sample in stream_folder(PEERS / name, epoch=epoch)] for epoch in (0, 1)
    )
    assert sorted(first) == sorted(second) == list(range(40))
    assert list(range(40)) != first != second


def test_a_shard_is_cut_by_its_number_of_samples_alone() -> None:
    data = written("mds", ROWS)
    asked: list[tuple[int, int]] = []

    def read(start: int, end: int) -> bytes:
        asked.append((start, end))
        return data[start:end]

    shard = in_memory(KEY, data)
    splits = format_of(KEY).plan_splits(shard.info, read, 200, ReadOptions())  # type: ignore[union-attr]
    assert asked == [(0, 4)]
    assert sum(split.num_samples or 0 for split in splits) == 40
    assert sum(split.num_bytes for split in splits) == len(data)


def test_a_folder_of_shards_is_found(tmp_path: Path) -> None:
    store = open_store(StoreSpec(uri=f"file://{tmp_path}"))
    for number in range(9):
        store.put(f"data/x/shard.{number:05d}.mds", written("mds", ROWS * 3))
    store.put("data/x/index.json", b"{}")
    groups = find_groups(store, "data/").groups
    assert [(group.format, group.num_objects) for group in groups] == [("mds", 9)]
    assert groups[0].decodes


def test_pickled_columns_are_refused_by_name() -> None:
    with pytest.raises(RecordError, match="column 'thing': the encoding pkl is pickled"):
        read_folder(PEERS / "mds_pickled")
    assert read_folder(PEERS / "mds_pickled", ReadOptions(columns=("id",))) == [{"id": 1}]


def test_only_columns_asked_for_are_read() -> None:
    for options in (ReadOptions(columns=("text",)), ReadOptions(first_of=("nope", "text", "id"))):
        found = read_folder(PEERS / "mds_shards", options)
        assert found == [{"text": row["text"]} for row in ROWS]
    for options in (ReadOptions(columns=("nope",)), ReadOptions(first_of=("nope",))):
        with pytest.raises(RecordError, match="no column nope; found id, text"):
            read_folder(PEERS / "mds_shards", options)


def test_raw_samples_are_their_bytes() -> None:
    opened = one_split("mds", case_file("peers/mds_shards/shard.00000.mds"))
    assert opened.read_raw([3]) == [struct.pack("<I", 6) + struct.pack("<q", 3) + b"text 3"]


@pytest.mark.parametrize(
    ("columns", "body", "why"),
    [
        ({"a": ("str", None)}, struct.pack("<I", 9) + b"x", "ends 8 bytes after its sample"),
        ({"a": ("str", None)}, struct.pack("<I", 0) + b"x", "1 bytes follow it"),
        ({"a": ("str", None)}, b"", "column ''"),
        ({"a": ("str", None)}, struct.pack("<I", 1) + b"\xff", "column 'a'.*utf-8"),
        ({"a": ("json", None)}, struct.pack("<I", 3) + b"NaN", "NaN is not JSON"),
        ({"a": ("json", None)}, struct.pack("<I", 6000) + b"[" * 6000, "column 'a'"),
        ({"a": ("str_int", None)}, struct.pack("<I", 5000) + b"1" * 5000, "5000 digits"),
        ({"a": ("str_decimal", None)}, struct.pack("<I", 1) + b"x", "column 'a'"),
        ({"a": ("ndarray", None)}, struct.pack("<I", 1) + b"\7", "unknown type 07"),
        ({"a": ("ndarray", None)}, struct.pack("<I", 1) + b"\10", "without a shape"),
        ({"a": ("ndarray", None)}, struct.pack("<I", 2) + b"\10\xff", "63 axes"),
        (
            {"a": ("ndarray", None)},
            struct.pack("<I", 10) + b"\x42\7" + b"\xff" * 8,
            "0 bytes for float64",
        ),
        ({"a": ("list[jpeg]", None)}, struct.pack("<I", 8) + b"\xff" * 8, "a list of 4294967295"),
        ({"a": ("jpeg_array", None)}, struct.pack("<III", 8, 1, 5), "for a list of 5"),
    ],
)
def test_damaged_samples_name_the_column(columns: Any, body: bytes, why: str) -> None:
    good = shard(columns, [body])
    with pytest.raises(RecordError, match=f"sample 1: .*{why}") as caught:
        read_all("mds", in_memory(KEY, good))
    assert caught.value.detail["record"] == 1
    assert caught.value.detail["offset"] == len(good) - len(body)


def test_nan_in_json_is_read_where_allowed() -> None:
    data = shard({"a": ("json", None)}, [struct.pack("<I", 3) + b"NaN"])
    found = read_all("mds", in_memory(KEY, data), options=ReadOptions(allow_nan=True))
    assert str(found) == "[{'a': nan}]"


@pytest.mark.parametrize(
    ("columns", "config", "why"),
    [
        ({"a": ("int", 4)}, {}, "int of 4 bytes, not 8"),
        ({"a": ("str", 4)}, {}, "str of 4 bytes, not None"),
        ({"a": ("zip", None)}, {}, "'zip' is not known"),
        ({"a": ("ndarray:object", None)}, {}, "'object' are not known"),
        ({"a": ("ndarray:int8:-1", None)}, {}, "not a shape"),
        ({"a": ("int", 8)}, {"version": 3}, "of another version"),
        ({"a": ("int", 8)}, {"format": "json"}, "not MDS columns"),
        ({"a": ("int", 8)}, {"column_names": []}, "cannot be read"),
        ({"a": ("int", 8)}, {"column_names": [1]}, "not MDS columns"),
        ({"a": ("int", 8)}, {"column_sizes": [-8]}, "not MDS columns"),
    ],
)
def test_columns_that_cannot_be_right_are_refused(columns: Any, config: Any, why: str) -> None:
    with pytest.raises(RecordError, match=why):
        read_all("mds", in_memory(KEY, shard(columns, [bytes(8)], **config)))


def test_offsets_are_checked_before_they_are_used() -> None:
    data = written("mds", ROWS)
    for place, number, why in (
        (0, 2**32 - 1, "truncated, or not an MDS shard"),
        (4, 2**32 - 1, "no columns before"),
        (4, 0, "no columns before"),
        (8, 2**32 - 1, "the offset of a sample is"),
        (4 + 4 * 40, 2**32 - 1, "truncated"),
        (4 + 4 * 40, len(data) - 1, "something follows"),
    ):
        damaged = data[:place] + struct.pack("<I", number) + data[place + 4 :]
        with pytest.raises(RecordError, match=why):
            read_all("mds", in_memory(KEY, damaged))


def test_damage_is_an_error() -> None:
    assert_damage_is_an_error("mds", KEY, written("mds", ROWS[:5]))
    whole = (PEERS / "mds" / "shard.00000.mds").read_bytes()
    assert_damage_is_an_error("mds", KEY, whole, seed=1)


def test_encodings_are_chosen_from_the_first_sample() -> None:
    sample = {
        "flag": True,
        "n": 1,
        "f": 0.5,
        "s": "é",
        "b": bytearray(b"x"),
        "d": Decimal("1.50"),
        "u": np.uint16(7),
        "a": np.array([[1, 2]], np.int8),
        "j": {"k": [None]},
    }
    found = read_all("mds", in_memory(KEY, written("mds", [sample])))
    assert list(found[0]) == sorted(sample)
    assert plain(found[0]) == plain({**sample, "b": b"x", "f": np.float64(0.5)})


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"a": 1, "b": 2}, "the fields a, b, not a"),
        ({"a": "x"}, "a: a value of type str does not fit"),
        ({"a": True}, "a: a value of type bool does not fit"),
        ({"a": 2**63}, "a: "),
    ],
)
def test_what_does_not_fit_is_refused(bad: Any, why: str) -> None:
    with pytest.raises(RecordError, match=f"sample 1 cannot be written to MDS: {why}"):
        written("mds", [{"a": 1}, bad])


def test_what_mds_has_no_form_for_is_refused() -> None:
    for value in (np.zeros(0), np.zeros(2, complex), {1, 2}, float("nan"), np.array(1)):
        sample = {"a": [value] if isinstance(value, float) else value}
        with pytest.raises(RecordError, match="sample 0 cannot be written to MDS"):
            written("mds", [sample])


def test_sizes_of_encodings() -> None:
    assert encoded_size("ndarray:int16:2,3") == 12
    assert encoded_size("ndarray:int16") is None
    assert encoded_size("float16") == 2
    with pytest.raises(MdsValueError):
        decoder_of("int:1", allow_nan=False)


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    streaming = pytest.importorskip("streaming", reason="mosaicml-streaming is not installed")
    check_library_reads(streaming, tmp_path)


def check_library_reads(streaming: Any, folder: Path) -> None:
    """Write two shards and their index, and compare what the library reads."""
    samples = [
        {**mds_sample(i), "real": np.float64(i / 7), "big": i, "flag": None} for i in range(1, 9)
    ]
    shards = []
    for number, some in enumerate((samples[:5], samples[5:])):
        name = f"shard.{number:05d}.mds"
        (folder / name).write_bytes(written("mds", some))
        data = (folder / name).read_bytes()
        count, first = struct.unpack_from("<II", data)
        shards.append((name, len(data), count, data[8 + 4 * count : first]))
    (folder / "index.json").write_bytes(index_of(shards))
    dataset = streaming.LocalDataset(str(folder))
    assert len(dataset) == len(samples)
    assert plain([dataset[i] for i in range(len(samples))]) == plain(samples)
