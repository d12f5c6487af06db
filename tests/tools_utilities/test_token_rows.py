"""Token columns: case B28, every integer list type, and nothing that wraps or vanishes."""

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.shard_reading import case_file, in_memory, one_split, open_splits, written
from tools_utilities.arrow_rows import ArrowRows
from tools_utilities.errors import RecordError, UsageError
from tools_utilities.shard_bytes import MemoryShardBytes
from tools_utilities.shard_format import ReadOptions
from tools_utilities.shard_formats.parquet import ParquetSplit
from tools_utilities.token_rows import TOKEN_COLUMNS, TokenRows, token_rows

FIRST = ReadOptions(first_of=TOKEN_COLUMNS)
CASE_FILES = {
    "f1": [[1, 2, 3], [4]],
    "f2": [[5, 6], [7, 8, 9]],
    "f3_nulls": [[10], [11, 12]],
    "f9_extra_int16": [[18, 19]],
}
BOTH = pytest.mark.parametrize("options", [ReadOptions(), FIRST], ids=["all columns", "first of"])


def rows_of(shard: Any, options: ReadOptions = FIRST, **settings: Any) -> TokenRows:
    return token_rows(one_split("parquet", shard, options), **settings)


def column(array: Any, name: str = "input_ids") -> MemoryShardBytes:
    file = io.BytesIO()
    pq.write_table(pa.table({name: array}), file)
    return in_memory("d/x.parquet", file.getvalue())


def lists(rows: TokenRows) -> list[list[int]]:
    return [tokens.tolist() for tokens in rows.read_tokens(range(rows.num_samples))]


# B28


@BOTH
def test_the_case_files(options: ReadOptions) -> None:
    found = {}
    for name in CASE_FILES:
        rows = rows_of(case_file(f"made/b28_{name}.parquet"), options)
        found[name] = lists(rows)
        nulls = (1, 1) if name == "f3_nulls" else (0, 0)
        assert (rows.skipped["null"], rows.skipped["empty"]) == nulls
    assert found == CASE_FILES
    assert sum(map(len, found.values())) == 7


@BOTH
def test_a_file_without_the_column(options: ReadOptions) -> None:
    with pytest.raises(
        RecordError, match=r"f4_nocolumn.parquet: no column input_ids or token_ids; found text"
    ):
        rows_of(case_file("made/b28_f4_nocolumn.parquet"), options)


@BOTH
@pytest.mark.parametrize(
    ("name", "message", "value"),
    [
        ("f5_negative", "row 1: token id -1 is not", -1),
        ("f6_over32", "row 1: token id 4294967296 is not", 2**32),
        ("f7_innernull", "row 1: a token id is null", None),
    ],
)
def test_bad_ids_are_named(name: str, message: str, value: Any, options: ReadOptions) -> None:
    rows = rows_of(case_file(f"made/b28_{name}.parquet"), options)
    with pytest.raises(RecordError, match=f"b28_{name}.parquet: {message}") as failure:
        rows.read([*range(1, rows.num_samples), 0])
    detail = failure.value.detail
    assert (detail["row"], detail["value"], detail["index"]) == (1, value, 0)
    assert lists_but_first(rows) == ([[14]] if name == "f5_negative" else [])


def lists_but_first(rows: TokenRows) -> list[list[int]]:
    return [tokens.tolist() for tokens in rows.read_tokens(range(1, rows.num_samples))]


@BOTH
def test_a_column_of_type_null(options: ReadOptions) -> None:
    rows = rows_of(case_file("made/b28_f8_nulltype.parquet"), options)
    assert (rows.num_samples, rows.skipped["null"]) == (0, 2)
    assert rows.read([]) == []


# Types


INTEGERS = [
    pa.int8(),
    pa.uint8(),
    pa.int16(),
    pa.uint16(),
    pa.int32(),
    pa.uint32(),
    pa.int64(),
    pa.uint64(),
]


@pytest.mark.parametrize("integer", INTEGERS, ids=str)
@pytest.mark.parametrize("make", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
def test_every_integer_list_type(integer: Any, make: Any) -> None:
    array = pa.array([[1, 100], None, [7, 0], [3, 3]], make(integer))
    rows = rows_of(column(array))
    assert lists(rows) == [[1, 100], [7, 0], [3, 3]]
    assert rows.skipped["null"] == 1
    assert {tokens.dtype for tokens in rows.read_tokens([0, 1])} == {np.dtype(np.uint32)}


def test_fixed_lists_that_begin_inside_a_buffer() -> None:
    opened = one_split("parquet", column(pa.array([[1, 2]], pa.list_(pa.int32(), 2))))
    assert isinstance(opened, ParquetSplit)
    table = pa.table({"input_ids": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2))})
    opened.rows = ArrowRows(table.schema, [table.to_batches()[0].slice(1)])
    assert lists(token_rows(opened)) == [[3, 4], [5, 6]]


def test_the_largest_ids_are_not_wrapped() -> None:
    rows = rows_of(column(pa.array([[2**32 - 1], [2**63]], pa.list_(pa.uint64()))))
    assert rows.read_tokens([0])[0].tolist() == [2**32 - 1]
    with pytest.raises(RecordError, match="row 2: token id 9223372036854775808"):
        rows.read_tokens([0, 1])


@pytest.mark.parametrize(
    "array",
    [pa.array(["1 2"]), pa.array([1]), pa.array([[1.0]]), pa.array([["1"]]), pa.array([[[1]]])],
    ids=["text", "number", "floats", "texts", "nested"],
)
def test_other_types_are_refused(array: Any) -> None:
    with pytest.raises(
        RecordError, match=r"d/x.parquet: column token_ids holds .*, not lists of integers"
    ):
        rows_of(column(array, "token_ids"))


def test_input_ids_win() -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"token_ids": [[1]], "input_ids": [[2]]}), file)
    assert lists(rows_of(in_memory("d/x.parquet", file.getvalue()))) == [[2]]


def test_ids_beyond_the_vocabulary() -> None:
    shard = column(pa.array([[1, 2], [99], [100, 5]]))
    assert lists(rows_of(shard, num_ids=101)) == [[1, 2], [99], [100, 5]]
    with pytest.raises(
        RecordError, match=r"row 3: token id 100 is not a whole number in \[0, 100\)"
    ):
        lists(rows_of(shard, num_ids=100))


# Rows


def test_any_order_with_gaps() -> None:
    values = [
        None if i % 7 == 3 else [] if i % 5 == 2 else list(range(i % 11 + 1)) for i in range(500)
    ]
    kept = [value for value in values if value]
    file = io.BytesIO()
    pq.write_table(pa.table({"input_ids": values}), file, row_group_size=90)
    shard = in_memory("d/x.parquet", file.getvalue())
    rows = rows_of(shard)
    assert rows.lengths.tolist() == [len(value) for value in kept]
    assert rows.skipped == {"null": values.count(None), "empty": values.count([])}
    order = np.random.default_rng(0).integers(0, len(kept), 200).tolist()
    assert [tokens.tolist() for tokens in rows.read_tokens(order)] == [kept[i] for i in order]
    assert rows.read([3])[0]["input_ids"].tolist() == kept[3]
    pieces = [token_rows(opened) for opened in open_splits("parquet", shard, target_bytes=1)]
    assert sum(piece.num_samples for piece in pieces) == len(kept)


def test_the_row_in_the_file_and_the_index_differ() -> None:
    shard = column(pa.array([None, [1], [], [5], [-3, 4]], pa.list_(pa.int32())))
    with pytest.raises(RecordError, match="row 5: token id -3") as failure:
        rows_of(shard).read_tokens([0, 2, 1])
    assert failure.value.detail["index"] == 2


# Other formats


def test_token_lists_in_json_lines() -> None:
    samples: list[Any] = [
        {"input_ids": [1, 2]},
        {"input_ids": None},
        {"input_ids": []},
        {"token_ids": [3]},
    ]
    opened = one_split("jsonl", in_memory("d/x.jsonl", written("jsonl", samples)))
    rows = token_rows(opened)
    assert lists(rows) == [[1, 2], [3]]
    assert rows.skipped == {"null": 1, "empty": 1}


@pytest.mark.parametrize("value", [-1, 2**32, 1.0, True, None, "1"])
def test_bad_ids_in_json_lines(value: Any) -> None:
    data = b'{"input_ids":[1]}\n{"input_ids":[2,%s]}\n' % json.dumps(value).encode()
    rows = token_rows(one_split("jsonl", in_memory("d/x.jsonl", data)))
    with pytest.raises(RecordError, match=r"d/x.jsonl: sample 2 .* token id ") as failure:
        rows.read_tokens([1])
    assert failure.value.detail["index"] == 1


def test_token_files_are_token_rows_too() -> None:
    data = np.arange(10, dtype="<u2").tobytes()
    opened = one_split("tokens", in_memory("d/x.bin", data), ReadOptions(seq_len=4))
    rows = token_rows(opened)
    assert lists(rows) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(RecordError, match="token id 9 "):
        token_rows(opened, num_ids=9).read_tokens([2])


def test_samples_without_tokens_are_named() -> None:
    opened = one_split("jsonl", in_memory("d/x.jsonl", b'{"text":"a"}\n'))
    with pytest.raises(
        RecordError, match=r"d/x.jsonl: no column input_ids or token_ids; found text"
    ):
        token_rows(opened)


def test_tokens_have_no_other_bytes() -> None:
    with pytest.raises(UsageError):
        rows_of(case_file("made/b28_f1.parquet")).read_raw([0])
