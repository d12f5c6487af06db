"""LitData: chunks told from token files, read with their index, written so that litdata reads them."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.peer_data import PEERS, litdata_sample, plain, read_folder, stream_folder
from tests.shard_mutations import assert_damage_is_an_error
from tests.shard_reading import in_memory, plan, read_all, written
from tools_utilities.errors import DataError, RecordError, UsageError
from tools_utilities.litdata_index import Structure, config_for, dict_spec, index_of
from tools_utilities.litdata_index import with_litdata_index as with_index
from tools_utilities.litdata_values import LitDataValueError, decoder_of
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store
from tools_utilities.scripts.dataset_discovery import find_groups
from tools_utilities.shard_format import ReadOptions, format_of
from tools_utilities.shard_formats.litdata import write_chunk

KEY = "d/chunk-0-0.bin"
FORMS = ("litdata", "litdata_batch", "litdata_sample", "litdata_chunk")
ROWS = [{"id": i, "text": f"text {i}"} for i in range(40)]


def indexed(folder: str, options: ReadOptions | None = None) -> tuple[str, bytes, ReadOptions]:
    """Return key, bytes and read options of the first chunk of a data set."""
    store = open_store(StoreSpec(uri=f"file://{PEERS}"))
    name = "chunk-0-0.zstd.bin" if folder == "litdata_chunk" else "chunk-0-0.bin"
    key = f"{folder}/{name}"
    info = ObjectInfo(key=key, size_bytes=0)
    read = with_index(store, [info], options or ReadOptions())
    return key, (PEERS / key).read_bytes(), read


def configured(key: str = KEY, **config: Any) -> ReadOptions:
    """Return read options as an index beside `key` would give them."""
    text = json.dumps({"data_format": ["int"], "data_spec": None, **config})
    return ReadOptions(litdata_indexes=((key[: key.rfind("/") + 1], text),))


def chunk(*items: bytes) -> bytes:
    ends = np.cumsum([8 + 4 * len(items), *map(len, items)]).astype("<u4")
    return struct.pack("<I", len(items)) + ends.tobytes() + b"".join(items)


def leaf(*values: bytes) -> bytes:
    return struct.pack(f"<{len(values)}I", *map(len, values)) + b"".join(values)


@pytest.mark.parametrize("form", FORMS)
def test_every_plain_serializer_is_read_exactly(form: str) -> None:
    for target_bytes in (1, 300, 1 << 20):
        found = read_folder(PEERS / form, target_bytes=target_bytes)
        assert plain(found) == plain([litdata_sample(i) for i in range(1, 8)])


def test_items_that_are_no_dicts_are_delivered_as_one_field() -> None:
    found = read_folder(PEERS / "litdata_pairs")
    assert found == [{"item": (i, f"x{i}")} for i in range(1, 8)]


def test_rows_kept_as_arrow_are_read() -> None:
    assert read_folder(PEERS / "litdata_arrow") == [
        {"id": i, "tags": ["a"] * i, "more": {"k": i / 2}, "turns": [{"from": "u", "n": i}]}
        for i in range(1, 8)
    ]


def test_the_compact_form_of_lists_is_read() -> None:
    expected = [
        {
            "a": np.arange(3, dtype=np.int64) + i,
            "strs": ["p", f"q{i}"],
            "ints": [i, -i],
            "floats": [i / 2],
            "bools": [True, False],
            "records": [{"k": i, "v": None, "s": "t", "f": 0.5, "b": True}],
            "odd": [1, "two", None],
        }
        for i in range(1, 8)
    ]
    assert plain(read_folder(PEERS / "litdata_mixed")) == plain(expected)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\x0b", None),
        (b"\x0a\x01", True),
        (b"\x08" + struct.pack("<q", -5), -5),
        (b"\x09" + struct.pack("<d", 0.5), 0.5),
        (b"\x07" + struct.pack("<I", 2) + "é".encode(), "é"),
        (b"\x05" + struct.pack("<II", 1, 1) + b"k\x0b", {"k": None}),
        (b"\x01" + struct.pack("<I", 0), []),
        (b'[1, "x"]', [1, "x"]),
        (b"\x00" + struct.pack("<I", 4) + b"null", None),
    ],
)
def test_nested_values(data: bytes, value: Any) -> None:
    assert decoder_of("json")(data) == value


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("json", b"\x0c"),
        ("json", b"\x0b\x00"),
        ("json", b"\x02" + struct.pack("<I", 2**31)),
        ("json", b"\x06" + struct.pack("<II", 4, 0) + b"1234"),
        ("json", b"\x06" + struct.pack("<III", 1, 1, 1) + b"k\x09"),
        ("json", b"\x05\x01\x00\x00\x00\x00\x00\x00\x00" * 200),
        ("json", b"[" * 100_000),
        ("bool", b""),
        ("int", b"1234"),
        ("numpy", struct.pack("<II", 14, 1) + bytes(99)),
        ("numpy", struct.pack("<II", 0, 2**31)),
        ("numpy", struct.pack("<III", 0, 1, 2**31) + b"x"),
        ("tensor", struct.pack(">II", 99, 0)),
        ("no_header_numpy:2", b"123"),
        ("jpeg_array", struct.pack("<I", 2**31)),
        ("jpeg_array", struct.pack("<II", 1, 5)),
    ],
)
def test_hostile_values_are_errors(name: str, data: bytes) -> None:
    with pytest.raises((ValueError, struct.error, RecursionError)):
        decoder_of(name)(data)


def test_half_precision_of_brains_is_exact_as_float32() -> None:
    value = np.array([1.5, -0.25], np.float32)
    stored = (value.view(np.uint32) >> 16).astype("<u2").tobytes()
    found = decoder_of("tensor")(struct.pack(">III", 10, 1, 2) + stored)
    assert (found.dtype, found.tolist()) == (np.float32, [1.5, -0.25])


def test_pictures_in_a_list_are_bytes() -> None:
    data = struct.pack("<III", 2, 1, 3) + b"abcd"
    assert decoder_of("jpeg_array")(data) == [b"a", b"bcd"]
    assert decoder_of("image:png")(b"xy") == b"xy"


@pytest.mark.parametrize("seq_len", [1, 4, 5, 100])
def test_token_chunks_are_rows_and_no_token_is_lost(seq_len: int) -> None:
    expected = [token for i in range(1, 8) for token in range(3 * i, 3 * i + 5)]
    for target_bytes in (1, 50, 1 << 20):
        found = read_folder(
            PEERS / "litdata_tokens", ReadOptions(seq_len=seq_len), target_bytes=target_bytes
        )
        assert [t for sample in found for t in sample["input_ids"].tolist()] == expected
        assert len(found) == -(-20 // seq_len) + -(-15 // seq_len)
        assert {sample["input_ids"].dtype.name for sample in found} == {"int32"}


def test_token_chunks_that_are_zstd_objects_are_rows_too() -> None:
    import zstandard

    _, data, options = indexed("litdata_tokens", ReadOptions(seq_len=6))
    key = "litdata_tokens/chunk-0-0.zstd.bin"
    packed = in_memory(key, zstandard.compress(data))
    found = read_all("litdata", packed, options=options)
    assert found[0]["input_ids"].tolist() == [3, 4, 5, 6, 7, 6]
    assert [len(sample["input_ids"]) for sample in found] == [6, 6, 6, 2]
    no_length = msgspec.structs.replace(options, seq_len=0)
    with pytest.raises(UsageError, match="seq_len=0"):
        read_all("litdata", packed, options=no_length)


def test_pickled_leaves_are_refused_by_name() -> None:
    with pytest.raises(RecordError, match="thing: the serializer pickle is pickled"):
        read_folder(PEERS / "litdata_pickled")
    found = read_folder(PEERS / "litdata_pickled", ReadOptions(columns=("i",)))
    assert found == [{"i": i} for i in range(1, 8)]
    for name in ("pickle", "graph", "graph:pickle", "nonsense", "no_header_numpy:14"):
        with pytest.raises(LitDataValueError):
            decoder_of(name)


def test_only_columns_asked_for_are_read() -> None:
    for options in (ReadOptions(columns=("s", "n")), ReadOptions(first_of=("nope", "s"))):
        names = options.columns or ("s",)
        expected = [{k: v for k, v in litdata_sample(i).items() if k in names} for i in range(1, 8)]
        assert plain(read_folder(PEERS / "litdata", options)) == plain(expected)
    with pytest.raises(RecordError, match="no field nope; found i, s, f"):
        read_folder(PEERS / "litdata", ReadOptions(columns=("nope",)))


def test_a_stream_delivers_each_sample_once_in_shuffled_order(tmp_path: Path) -> None:
    for form in FORMS:
        assert sorted(s["i"] for s in stream_folder(PEERS / form)) == list(range(1, 8))
    save(tmp_path, ROWS[:25], ROWS[25:])
    first, second = (
        [sample["id"] for sample in stream_folder(tmp_path, epoch=epoch)] for epoch in (0, 1)
    )
    assert sorted(first) == sorted(second) == list(range(40))
    assert list(range(40)) != first != second


def save(folder: Path, *parts: list[dict[str, Any]]) -> None:
    """Write chunks and their index."""
    chunks = []
    config = None
    for number, samples in enumerate(parts):
        file = io.BytesIO()
        count, config = write_chunk(samples, file)
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(file.getvalue())
        chunks.append((name, len(file.getvalue()), count))
    assert config is not None
    (folder / "index.json").write_bytes(index_of(chunks, config))


def test_a_folder_of_chunks_is_found_and_its_index_is_no_data(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "x"
    folder.mkdir(parents=True)
    save(folder, *[ROWS] * 9)
    store = open_store(StoreSpec(uri=f"file://{tmp_path}"))
    groups = find_groups(store, "data/").groups
    assert [(group.format, group.num_objects) for group in groups] == [("litdata", 9)]
    assert groups[0].decodes


def test_names_of_chunks_are_told_from_those_of_token_files() -> None:
    for key in (
        "chunk-0-0.bin",
        "a/Chunk-12-345.bin",
        "chunk-0-1.zstd.bin",
        "chunk-0-1.zstd:4.bin",
    ):
        assert getattr(format_of(key), "name", None) == "litdata"
    for key in ("chunk-0.bin", "chunk-0-0-0.bin", "xchunk-0-0.bin", "chunk-0-0.bin.gz"):
        assert getattr(format_of(key), "name", None) == "tokens"


def test_a_token_file_named_like_a_chunk_is_read_as_tokens() -> None:
    ids = list(range(2000))
    shard = in_memory(KEY, np.array(ids, "<u2").tobytes())
    found = read_all("litdata", shard, target_bytes=999, options=ReadOptions(seq_len=64))
    assert [t for sample in found for t in sample["input_ids"].tolist()] == ids
    assert len(plan("litdata", shard, target_bytes=999, options=ReadOptions(seq_len=64))) == 4


def test_with_an_index_beside_it_such_a_file_is_an_error() -> None:
    shard = in_memory(KEY, np.arange(2000, dtype="<u2").tobytes())
    with pytest.raises(RecordError, match="not a LitData chunk, though there is a LitData index"):
        plan("litdata", shard, options=configured())


def test_a_chunk_without_its_index_is_never_read_as_tokens() -> None:
    for form in FORMS:
        key, data, _ = indexed(form)
        with pytest.raises(RecordError, match=r"there is no index\.json beside it"):
            read_all("litdata", in_memory(key, data))


def test_the_index_is_read_once_a_folder_and_only_for_chunks(tmp_path: Path) -> None:
    store = open_store(StoreSpec(uri=f"file://{tmp_path}"))
    options = ReadOptions()
    jsonl = ObjectInfo(key="a/x.jsonl", size_bytes=1)
    assert with_index(store, [jsonl], options) is options
    save(tmp_path, ROWS)
    info = ObjectInfo(key="chunk-0-0.bin", size_bytes=1)
    found = with_index(store, [info, jsonl], options)
    config = config_for(info.key, found)
    assert config is not None
    assert config.data_format == ("int", "str")
    (tmp_path / "index.json").unlink()
    assert with_index(store, [info], found) is found
    missing = with_index(store, [info], options)
    assert config_for(info.key, missing) is None
    assert with_index(store, [info], missing) is missing


@pytest.mark.parametrize("text", ["{", '{"config": 1}', '{"config": {}, "chunks": []}', "[" * 9999])
def test_an_index_that_cannot_be_read_is_an_error_of_the_chunk(text: str, tmp_path: Path) -> None:
    save_plain(tmp_path)
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(RecordError, match=r"index\.json is no LitData index") as caught:
        read_folder(tmp_path)
    assert caught.value.detail["key"] == "chunk-0-0.bin"


def test_token_files_named_like_chunks_need_no_index(tmp_path: Path) -> None:
    (tmp_path / "chunk-0-0.bin").write_bytes(np.arange(1024, dtype="<u2").tobytes())
    (tmp_path / "index.json").write_text("of something else")
    assert read_folder(tmp_path)[0]["input_ids"].tolist() == list(range(1024))


def save_plain(folder: Path) -> None:
    """Write a chunk without our footer."""
    save(folder, ROWS)
    data = (folder / "chunk-0-0.bin").read_bytes()
    (folder / "chunk-0-0.bin").write_bytes(data[: struct.unpack_from("<I", data, 4 + 4 * 40)[0]])


def test_somebody_elses_index_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"shards": [], "version": 2}')
    store = open_store(StoreSpec(uri=f"file://{tmp_path}"))
    info = ObjectInfo(key="chunk-0-0.bin", size_bytes=1)
    assert config_for(info.key, with_index(store, [info], ReadOptions())) is None


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"encryption": {"algorithm": "fernet"}}, "encrypted and is not read"),
        ({"data_spec": "[2, {}]"}, "version 2"),
        (
            {"data_spec": '[1, {"type": "os.system", "context": null, "children_spec": []}]'},
            "os.sys",
        ),
        ({"data_spec": "[" * 99999}, "cannot be read"),
        ({"data_spec": "[1, 2]"}, "cannot be read"),
        ({"data_spec": dict_spec(["a", "b"])}, "2 leaves for 1"),
        ({"data_format": ["int", "int"]}, "no data_spec"),
        ({"data_format": ["pickle"]}, "is pickled"),
        ({"data_format": ["what"]}, "not known"),
        ({"item_loader": "TokensLoader"}, "are no tokens"),
    ],
)
def test_an_index_that_cannot_be_followed_is_refused(config: Any, why: str) -> None:
    shard = in_memory(KEY, chunk(leaf(bytes(8))))
    with pytest.raises(RecordError, match=why):
        read_all("litdata", shard, options=configured(**config))


def test_structures_are_parsed_as_json() -> None:
    spec = json.loads(dict_spec(["a", "b"]))
    spec[1]["children_spec"][1] = {
        "type": "builtins.list",
        "context": "null",
        "children_spec": [spec[1]["children_spec"][0]] * 2,
    }
    structure = Structure(json.dumps(spec), 3)
    assert structure.item([1, 2, 3]) == {"a": 1, "b": [2, 3]}
    assert structure.fields == ("a", "b")
    assert structure.leaf_field == (0, 1, 1)


def test_a_single_leaf_is_an_item() -> None:
    data = chunk(leaf(struct.pack("<q", 5)), leaf(struct.pack("<q", -6)))
    assert read_all("litdata", in_memory(KEY, data), options=configured()) == [
        {"item": 5},
        {"item": -6},
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (chunk(leaf(bytes(8)))[:-1], "truncated"),
        (chunk(leaf(bytes(8)))[:10], "truncated"),
        (b"1234567", "truncated"),
        (chunk(leaf(bytes(8))) + b"x", "1 bytes follow the last item"),
        (chunk(leaf(bytes(8))) + bytes(4) + b"LDARW01\1", "bytes follow the last item"),
        (chunk(struct.pack("<I", 9) + bytes(8)), "item 1: leaves of 9 bytes in 8"),
        (chunk(leaf(bytes(7))), "item 1: "),
        (b"LDFZ01\0\0" + bytes(8), "truncated"),
        (b"LDFZ01\0\0" + struct.pack("<HHIII", 1, 0, 2**31, 256, 1), "damaged"),
        (b"LDFZ01\0\0" + struct.pack("<HHIII", 1, 0, 1, 0, 1) + bytes(99), "damaged"),
        (b"LDFZ01\0\0" + struct.pack("<HHIII", 1, 0, 1, 1, 2**31) + bytes(99), "no directory"),
        (struct.pack("<IIII", 2, 16, 12, 24) + bytes(8), "the offset of a sample is 12, after 16"),
        (struct.pack("<III", 1, 12, 12), "items of no bytes"),
    ],
)
def test_damaged_chunks_are_errors(data: bytes, why: str) -> None:
    with pytest.raises(RecordError, match=why) as caught:
        read_all("litdata", in_memory(KEY, data), options=configured())
    assert caught.value.detail["key"] == KEY


def test_a_frame_that_holds_more_than_it_says_is_not_decoded_to_its_end() -> None:
    key, data, options = indexed("litdata_batch")
    place = 24 + 4 * 5 + 20  # the decoded length of the only frame
    damaged = data[:place] + struct.pack("<I", 5) + data[place + 4 :]
    with pytest.raises(RecordError, match=r"a frame of .* bytes, not 5"):
        read_all("litdata", in_memory(key, damaged), options=options)


@pytest.mark.parametrize("form", [*FORMS, "litdata_arrow", "litdata_mixed", "litdata_tokens"])
def test_damage_is_an_error(form: str) -> None:
    key, data, options = indexed(form)
    assert_damage_is_an_error("litdata", key, data, options=options)


def test_a_cut_chunk_is_an_error_wherever_it_is_cut() -> None:
    for form in [*FORMS, "litdata_arrow", "litdata_tokens"]:
        key, data, options = indexed(form)
        for end in range(1, len(data), 7):
            with pytest.raises(DataError):
                read_all("litdata", in_memory(key, data[:end]), options=options)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"id": 1}, "the fields id, not id, text"),
        ({"id": "1", "text": ""}, "str, not int"),
        ({"id": 2**63, "text": ""}, "'q' format|int too large|argument out of range"),
        ({"id": {1}, "text": ""}, "a value of type set"),
    ],
)
def test_what_does_not_fit_is_refused(bad: Any, why: str) -> None:
    with pytest.raises(RecordError, match=f"sample 1 cannot be written to LitData: .*({why})"):
        written("litdata", [ROWS[0], bad])


def test_what_litdata_would_pickle_is_refused() -> None:
    for value in ({1}, 1j, np.zeros(1, object), np.array(1.0), np.float32(1)):
        with pytest.raises(RecordError, match="would be pickled"):
            written("litdata", [{"a": value}])


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    litdata = pytest.importorskip("litdata", reason="litdata is not installed")
    samples = [
        {
            **{k: v for k, v in litdata_sample(i).items() if k not in {"n", "t"}},
            "tags": ["a", None, i],
        }
        for i in range(1, 9)
    ]
    save(tmp_path, samples[:5], samples[5:])
    dataset = litdata.StreamingDataset(str(tmp_path))
    assert len(dataset) == len(samples)
    assert plain([dataset[i] for i in range(len(samples))]) == plain(samples)
