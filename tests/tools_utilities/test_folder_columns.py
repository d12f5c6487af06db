"""Columns in folder names: what they are called, their types, and which records get them."""

import json

import msgspec
import pytest

from tests.shard_reading import in_memory, written
from tools_utilities.folder_columns import find_folder_columns, open_table_split, values_of
from tools_utilities.shard_format import ReadOptions, Split


def found(*keys: str, folder: str = "d/") -> dict[str, str]:
    return dict(find_folder_columns(keys, folder))


def test_whole_numbers_are_numbers_where_all_of_them_are():
    assert found("d/x=1/a", "d/x=-20/a", "d/x=0/a") == {"x": "int"}
    assert found("d/x=1/a", "d/x=b/a", "d/x=2/a") == {"x": "text"}
    assert found("d/x=010/a") == {"x": "text"}
    assert found("d/x=1/date=2024-01-01/a") == {"x": "int", "date": "text"}
    assert found("d/x=__HIVE_DEFAULT_PARTITION__/a", "d/x=3/a") == {"x": "int"}
    assert found("d/x=99999999999999999999/a") == {"x": "text"}
    assert found("d/x=1\N{ARABIC-INDIC DIGIT TWO}/a") == {"x": "text"}


def test_only_folders_below_the_dataset_count_and_no_file_names():
    assert found("y=1/d/x=2/a", folder="y=1/d/") == {"x": "int"}
    assert found("d/a=b&c.jsonl", "d/plain/a", "d/=3/a") == {}


def test_values_are_unescaped_and_the_innermost_counts():
    columns = find_folder_columns(["d/p=a%2Fb/p=c%20d/q=/x"], "d/")
    assert values_of("d/p=a%2Fb/p=c%20d/q=/x", columns) == {"p": "c d", "q": ""}
    columns = find_folder_columns(["d/p=__HIVE_DEFAULT_PARTITION__/x", "d/p=7/x"], "d/")
    assert values_of("d/p=__HIVE_DEFAULT_PARTITION__/x", columns) == {"p": None}
    assert values_of("d/p=7/x", columns) == {"p": 7}


def read(name: str, key: str, data: bytes, options: ReadOptions) -> list[dict[str, object]]:
    shard = in_memory(key, data)
    options = msgspec.structs.replace(options, folder_columns=find_folder_columns([key], "d/"))
    size = len(data)
    end = 1 if name == "parquet" else size
    split = open_table_split(shard, Split(key=key, start=0, end=end, num_bytes=size), options)
    try:
        return split.read(range(split.num_samples))
    finally:
        split.close()


@pytest.mark.parametrize("name", ["jsonl", "json", "parquet", "csv", "txt"])
def test_every_record_of_a_table_gets_them(name):
    rows = [{"text": "a"}, {"text": "b"}]
    data = written(name, rows)
    assert read(name, f"d/x=1/y=z/part.{name}", data, ReadOptions()) == [
        {"text": "a", "x": 1, "y": "z"}, {"text": "b", "x": 1, "y": "z"},
    ]  # fmt: skip


def test_a_field_of_the_record_stands():
    data = json.dumps({"x": 5}).encode() + b"\n"
    assert read("jsonl", "d/x=1/part.jsonl", data, ReadOptions()) == [{"x": 5}]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (("text", "x"), {"text": "a", "x": 1}),
        (("text",), {"text": "a"}),
        (("x",), {"x": 1}),
    ],
)
def test_columns_choose_among_them_too(columns, expected):
    data = written("parquet", [{"text": "a", "other": 2}])
    found = read("parquet", "d/x=1/y=z/part.parquet", data, ReadOptions(columns=columns))
    assert found == [expected]


def test_token_rows_and_archives_are_left_alone():
    data = written("parquet", [{"input_ids": [1, 2]}])
    options = ReadOptions(first_of=("input_ids",))
    assert read("parquet", "d/x=1/p.parquet", data, options) == [{"input_ids": [1, 2]}]
    data = written("webdataset", [{"__key__": "k", "cls": b"1"}])
    key = "d/x=1/p.tar"
    assert read("webdataset", key, data, ReadOptions()) == [{"__key__": "k", "cls": b"1"}]
