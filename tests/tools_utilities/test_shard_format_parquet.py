"""Parquet: case B29 and the real files R01 to R08, footers by ranges, bounded memory."""

import io
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.shard_reading import (
    CASES,
    case_file,
    in_memory,
    one_split,
    open_splits,
    plan,
    read_all,
    written,
)
from tools_utilities.arrow_rows import exact_type
from tools_utilities.errors import RecordError, StoreError, UsageError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_bytes import FileShardBytes
from tools_utilities.shard_format import ReadOptions, shard_formats
from tools_utilities.shard_formats.parquet import ParquetSplit


def stored(table: Any, **settings: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, **settings)
    return file.getvalue()


def unchecked_text(values: list[bytes]) -> Any:
    """A text column that holds these bytes, valid or not."""
    raw: Any = pa.array(values)
    text = pa.StringArray.from_buffers(len(values), raw.buffers()[1], raw.buffers()[2])
    return pa.table({"t": text})


@pytest.mark.parametrize(
    ("name", "num_rows", "first"),
    [
        ("list_columns", 3, {"int64_list": [1, 2, 3], "utf8_list": ["abc", "efg", "hij"]}),
        ("nulls.snappy", 8, {"b_struct": {"b_c_int": None}}),
        ("concatenated_gzip_members", 513, {"long_col": 1}),
        ("int32_with_null_pages", 1000, {"int32_field": -654807448}),
        ("duckdb_empty", 0, None),
        ("duckdb_null_type_column", 3, {"id": 1, "val": None}),
    ],
)
def test_the_real_files(name: str, num_rows: int, first: Any) -> None:
    shard = case_file(f"parquet/{name}.parquet")
    assert sum(split.num_samples or 0 for split in plan("parquet", shard)) == num_rows
    rows = read_all("parquet", shard)
    assert len(rows) == num_rows
    assert rows[:1] == ([] if first is None else [first])


def test_the_real_nested_nulls() -> None:
    rows = read_all("parquet", case_file("parquet/nullable.impala.parquet"))
    assert len(rows) == 7
    assert (rows[0]["id"], rows[0]["int_array"]) == (1, [1, 2, 3])


def test_an_unreadable_file_is_named() -> None:
    shard = case_file("parquet/bad_PARQUET-1481.parquet")
    with pytest.raises(
        RecordError, match=r"bad_PARQUET-1481.parquet: .*Invalid physical column type"
    ):
        plan("parquet", shard)


def test_columns_of_each_file_are_its_own() -> None:
    folder = CASES / "parquet_hive" / "union_by_name"
    rows = [
        row
        for path in sorted(folder.rglob("*.parquet"))
        for row in read_all("parquet", case_file(str(path.relative_to(CASES))))
    ]
    assert rows == [{"i": 42, "j": 84, "x": 1}, {"i": 42, "j": 84}, {"j": 128, "k": 33}]


def test_the_real_hive_files() -> None:
    folder = CASES / "parquet_hive" / "missing"
    paths = sorted(folder.rglob("*.parquet"))
    rows = [
        row
        for path in paths
        for row in read_all("parquet", case_file(str(path.relative_to(CASES))))
    ]
    assert [row["value"] for row in rows] == ["value3", "value4"]


# B29: row groups


@pytest.mark.parametrize("target_bytes", [1, 1 << 20])
def test_b29_empty_and_nested_row_groups(target_bytes: int) -> None:
    shard = case_file("made/b29_rowgroups.parquet")
    rows = read_all("parquet", shard, target_bytes=target_bytes)
    assert [row["id"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["m"] for row in rows] == [
        None, [{"k": "k1", "v": 1}], None, [{"k": "k3", "v": 3}], None,
    ]  # fmt: skip
    splits = plan("parquet", shard, target_bytes=target_bytes)
    expected = [0, 3, 0, 2, 0] if target_bytes == 1 else [5]
    assert [split.num_samples for split in splits] == expected


def test_b29_a_file_of_no_rows_is_a_shard() -> None:
    shard = case_file("made/b29_zero_rows.parquet")
    assert [split.num_samples for split in plan("parquet", shard)] == [0]
    assert read_all("parquet", shard) == []


def test_a_file_without_row_groups_is_a_shard() -> None:
    shard = in_memory("d/x.parquet", written("parquet", []))
    splits = plan("parquet", shard)
    assert [(split.num_samples, split.num_bytes) for split in splits] == [
        (0, shard.info.size_bytes)
    ]
    assert read_all("parquet", shard) == []


MEMORY_PROGRAM = """
import random, sys, time
import pyarrow, pyarrow.parquet
from tests.shard_reading import one_split
from tools_utilities.shard_bytes import FileShardBytes
from pathlib import Path

def peak_mb():
    line = next(l for l in open("/proc/self/status") if l.startswith("VmHWM"))
    return int(line.split()[1]) / 1000

shard = FileShardBytes(Path(sys.argv[1]))
before, start = peak_mb(), time.perf_counter()
opened = one_split("parquet", shard)
first = opened.read(range(32))
first_seconds = time.perf_counter() - start
order = list(range(opened.num_samples))
random.Random(0).shuffle(order)
total = characters = 0
for at in range(0, len(order), 32):
    rows = opened.read(order[at:at + 32])
    total += len(rows)
    characters += sum(len(text) for row in rows for text in row["words"])
print(total, characters, first_seconds, peak_mb() - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("num_rows", [200_000])
def test_b29_one_large_nested_row_group_in_bounded_memory(tmp_path: Path, num_rows: int) -> None:
    words = pa.array([f"{i:040d}" for i in range(997)])
    chunk_rows = 10_000
    values = pa.concat_arrays([words] * (chunk_rows * 20 // 997 + 1)).slice(0, chunk_rows * 20)
    lists = pa.ListArray.from_arrays(list(range(0, chunk_rows * 20 + 1, 20)), values)
    table = pa.table({"words": pa.chunked_array([lists] * (num_rows // chunk_rows))})
    path = tmp_path / "large.parquet"
    pq.write_table(table, path, row_group_size=num_rows, use_dictionary=False, compression="snappy")
    assert pq.read_metadata(path).num_row_groups == 1
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY_PROGRAM, str(path)],
        cwd=root, capture_output=True, text=True, check=True,
    )  # fmt: skip
    total, characters, first_seconds, growth_mb = map(float, done.stdout.split())
    assert (total, characters) == (num_rows, num_rows * 20 * 40)
    assert first_seconds < 5
    assert growth_mb < 120


# Footers, columns, errors


def test_only_the_footer_is_read_to_cut_a_file() -> None:
    table = pa.table({"t": [f"{i}" * 50 for i in range(20_000)]})
    data = stored(table, row_group_size=1000, compression="none")
    reads: list[tuple[int, int]] = []

    def read(start: int, end: int) -> bytes:
        reads.append((start, end))
        return data[start:end]

    shard = in_memory("d/x.parquet", data)
    splits = shard_formats()["parquet"].plan_splits(shard.info, read, 400_000, ReadOptions())
    assert sum(end - start for start, end in reads) <= 128 << 10
    assert len(data) > 2_000_000
    assert [split.start for split in splits] == [0, *(split.end for split in splits[:-1])]
    assert splits[-1].end == 20
    assert sum(split.num_samples or 0 for split in splits) == 20_000
    assert sum(split.num_bytes for split in splits) == pytest.approx(len(data), rel=0.01)
    for split in splits[:-1]:
        assert 200_000 < split.num_bytes <= 400_000


def test_a_store_error_is_not_taken_for_a_bad_file() -> None:
    def read(start: int, end: int) -> bytes:
        raise StoreError(f"no answer for {start}-{end}")

    shard = in_memory("d/x.parquet", bytes(1000))
    with pytest.raises(StoreError, match="no answer"):
        shard_formats()["parquet"].plan_splits(shard.info, read, 1000, ReadOptions())


def test_only_wanted_columns() -> None:
    shard = in_memory("d/x.parquet", stored(pa.table({"a": [1], "b": [2], "c": [{"d": 3}]})))
    assert read_all("parquet", shard, options=ReadOptions(columns=("c", "a"))) == [
        {"a": 1, "c": {"d": 3}}
    ]
    assert read_all("parquet", shard, options=ReadOptions(first_of=("x", "b", "a"))) == [{"b": 2}]
    for options in (ReadOptions(columns=("a", "x")), ReadOptions(first_of=("x", "y"))):
        with pytest.raises(
            RecordError, match=r"d/x.parquet: no column x.*; found a, b, c"
        ) as failure:
            read_all("parquet", shard, options=options)
        assert failure.value.detail["found"] == ["a", "b", "c"]


def test_a_damaged_page_is_named() -> None:
    data = bytearray(stored(pa.table({"t": [f"{i}" * 9 for i in range(5000)]}), compression="zstd"))
    data[len(data) // 4 : len(data) // 2] = bytes(len(data) // 2 - len(data) // 4)
    with pytest.raises(RecordError, match=r"d/x.parquet: not a readable Parquet file"):
        read_all("parquet", in_memory("d/x.parquet", bytes(data)))


def test_text_that_is_not_utf8_names_the_row() -> None:
    shard = in_memory("d/x.parquet", stored(unchecked_text([b"ok", b"\xff\xfe", b"ok"])))
    opened = one_split("parquet", shard)
    assert opened.read([2, 0]) == [{"t": "ok"}, {"t": "ok"}]
    with pytest.raises(RecordError, match=r"d/x.parquet: row 2: a value cannot be read") as failure:
        opened.read([0, 1, 2])
    assert failure.value.detail["index"] == 1


def test_rows_are_counted_over_row_groups() -> None:
    table = unchecked_text([b"ok"] * 7 + [b"\xff"])
    shard = in_memory("d/x.parquet", stored(table, row_group_size=3))
    with pytest.raises(RecordError, match="row 8: "):
        read_all("parquet", shard, target_bytes=1)


MOMENT_TYPE: Any = pa.timestamp("ns", tz="UTC")
SPAN_TYPE: Any = pa.duration("ns")
NESTED_TIMES: Any = pa.list_(pa.struct([("at", MOMENT_TYPE), ("for", SPAN_TYPE)]))


def test_times_do_not_depend_on_pandas() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, 678900, UTC)
    column = pa.array([moment, None], pa.timestamp("ns", tz="UTC"))
    opened = one_split("parquet", in_memory("d/x.parquet", stored(pa.table({"t": column}))))
    rows = opened.read([0, 1])
    assert rows == [{"t": moment}, {"t": None}]
    assert type(rows[0]["t"]) is datetime
    nested = pa.array([[{"at": moment, "for": timedelta(seconds=1)}]], NESTED_TIMES)
    opened = one_split("parquet", in_memory("d/x.parquet", stored(pa.table({"n": nested}))))
    item = opened.read([0])[0]["n"][0]
    assert (type(item["at"]), item["for"]) == (datetime, timedelta(seconds=1))
    in_microseconds = pa.list_(
        pa.struct([("at", pa.timestamp("us", "UTC")), ("for", pa.duration("us"))])
    )
    assert exact_type(NESTED_TIMES) == in_microseconds
    odd = pa.array([1], pa.timestamp("ns"))
    opened = one_split("parquet", in_memory("d/x.parquet", stored(pa.table({"t": odd}))))
    with pytest.raises(RecordError, match="row 1: "):
        opened.read([0])


def test_columns_named_twice_are_refused() -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(RecordError, match="columns named twice: a"):
        read_all("parquet", in_memory("d/x.parquet", stored(table)))


def test_dictionary_columns_past_the_memory_limit() -> None:
    kinds = pa.array(["even" * 30, "odd" * 30] * 60_000).dictionary_encode()
    table = pa.table({"i": range(120_000), "kind": kinds, "big": ["x" * 100] * 120_000})
    shard = in_memory("d/x.parquet", stored(table, row_group_size=120_000))
    opened = one_split("parquet", shard)
    assert opened.num_bytes == 0  # spilled
    picked = [119_999, 0, 65_537, 1]
    assert opened.read(picked) == [
        {"i": i, "kind": ("odd" if i % 2 else "even") * 30, "big": "x" * 100} for i in picked
    ]


def test_wide_rows_are_decoded_few_at_a_time() -> None:
    """The footer shows a small row group: one value, 2,000 times."""
    data = stored(pa.table({"t": ["x" * 20_000] * 2000}), row_group_size=2000)
    assert len(data) < 100_000
    opened = one_split("parquet", in_memory("d/x.parquet", data))
    assert isinstance(opened, ParquetSplit)
    assert max(batch.nbytes for batch in opened.rows.batches) < 4 << 20
    assert opened.read([1999])[0]["t"] == "x" * 20_000


def test_rows_have_no_bytes_of_their_own() -> None:
    opened = one_split("parquet", case_file("parquet/list_columns.parquet"))
    with pytest.raises(UsageError, match="no bytes of its own"):
        opened.read_raw([0])


# Writing


def test_a_missing_key_is_null() -> None:
    data = written("parquet", [{"a": 1}, {"b": "x"}])
    assert read_all("parquet", in_memory("d/x.parquet", data)) == [
        {"a": 1, "b": None}, {"a": None, "b": "x"},
    ]  # fmt: skip


def test_row_groups_are_small_enough_to_shuffle() -> None:
    data = written("parquet", ({"t": f"{i:0>4000}"} for i in range(5000)))
    shard = in_memory("d/x.parquet", data)
    counts = [opened.num_samples for opened in open_splits("parquet", shard, target_bytes=1)]
    assert sum(counts) == 5000
    assert len(counts) >= 4


@pytest.mark.parametrize("late", [{"t": 1}, {"t": ["x"]}], ids=["type", "list"])
def test_a_sample_that_does_not_fit_is_named(late: Any) -> None:
    samples = [{"t": "x"}] * 300 + [late]
    with pytest.raises(RecordError, match="sample 300 cannot be written as Parquet"):
        written("parquet", samples)


ROW = {"x": {"a": 1}, "y": [{"c": 1}], "z": "t" * 1000}


@pytest.mark.parametrize(
    ("late", "lost"),
    [
        ({"new": 1}, "new"),
        ({"x": {"a": 1, "b": 2}}, r"x\.b"),
        ({"y": [{"c": 1}, {"d": 2}]}, r"y\[\]\.d"),
        ({"none": "text"}, "Invalid null value"),
    ],
)
@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_the_first_table_settles_the_columns_and_what_comes_later_is_refused(
    name: str, late: Any, lost: str
) -> None:
    early = [{**ROW, "none": None}] * 300
    written_late = [*early, {**ROW, "none": None, **late}]

    rows = read_all(name, in_memory(f"d/x.{name}", written(name, written_late)))
    assert len(rows) == 301
    for found, given in zip(rows, written_late, strict=True):
        assert without_nulls(found) == without_nulls(given)
        assert set(given) <= set(found)
    with pytest.raises(RecordError, match=f"sample 6000 cannot .*{lost}"):
        written(name, [*early * 20, written_late[-1]])


def without_nulls(value: Any) -> Any:
    """Return a value without the fields that were filled with nulls."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def test_what_parquet_has_no_type_for_is_refused() -> None:
    with pytest.raises(RecordError, match="sample 0 cannot be written as Parquet"):
        written("parquet", [{"a": {}}])


@pytest.mark.parametrize("name", ["parquet", "arrow"])
@pytest.mark.parametrize("rows", [[{}], [{}] * 300 + [{"t": 1}]], ids=["all", "the first"])
def test_samples_without_fields_are_refused(name: str, rows: Any) -> None:
    # pyarrow makes a table without rows of them.
    with pytest.raises(RecordError, match=r"cannot be written as .*: they have no fields"):
        written(name, rows)
    assert written(name, [{}, {"t": 1}])  # beside others an empty one is a row of nulls
    assert not read_all(name, in_memory("d/x." + name, written(name, [])))


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep: Any = 1
    for _ in range(900):  # Arrow would take minutes
        deep = {"a": deep}
    with pytest.raises(RecordError, match="sample 0 cannot be written as Parquet: nested too"):
        written("parquet", [deep])


def test_mixed_types_are_refused_at_once() -> None:
    with pytest.raises(RecordError, match="samples 0 to 1 cannot be written"):
        written("parquet", [{"t": 1}, {"t": "x"}])


def test_large_records_make_small_row_groups() -> None:
    samples = [{"text": "x" * 1_000_000, "n": number} for number in range(30)]

    data = written("parquet", samples)

    groups = pq.ParquetFile(io.BytesIO(data)).metadata.num_row_groups
    assert 6 <= groups <= 8


def test_a_file_that_is_renamed_while_it_is_in_use_is_read_to_its_end(tmp_path: Path) -> None:
    """As the cache does when what was read ahead has become durable."""
    path = tmp_path / "x.tmp"
    path.write_bytes(stored(pa.table({"a": list(range(100))})))
    shard = FileShardBytes(path, info=ObjectInfo(key="d/x.parquet", size_bytes=path.stat().st_size))
    path.rename(tmp_path / "x")
    rows = read_all("parquet", shard)
    assert [row["a"] for row in rows] == list(range(100))
