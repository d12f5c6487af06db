"""Shards whose columns differ (case B28, file R08), folders that are columns, columns read alone."""

import io
import logging
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.packing import TokenLists, TokenSequences
from tests.brain.direct_manager import DirectManager
from tests.brain.stream_data import manager_of, parquet
from tests.shard_reading import CASES
from tools_utilities.errors import DataError, RecordError
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store
from tools_utilities.shard_bytes import MemoryShardBytes
from tools_utilities.shard_format import ReadOptions
from tools_utilities.token_rows import TOKEN_COLUMNS


def in_file_order(manager: DirectManager, prefix: str = "d/", **more: Any) -> list[Any]:
    return list(StreamDataset(manager, prefix, shuffle=False, equalize="none", **more))


def made(*names: str) -> DirectManager:
    return manager_of(
        {f"d/{name}.parquet": (CASES / f"made/b28_{name}.parquet").read_bytes() for name in names}
    )


def tokens(manager: DirectManager, **more: Any) -> tuple[list[list[int]], StreamDataset]:
    stream = StreamDataset(
        manager,
        "d/",
        shuffle=False,
        equalize="none",
        options=ReadOptions(first_of=TOKEN_COLUMNS),
        view=TokenSequences(vocab_size=1 << 32, seq_len=1024),
        **more,
    )
    return [sample["tokens"].tolist() for sample in stream], stream


# B28


def test_b28_four_files_of_other_types_are_one_group(caplog):
    caplog.set_level(logging.INFO)
    stream = StreamDataset(
        made("f1", "f2", "f3_nulls", "f9_extra_int16"),
        "d/",
        shuffle=False,
        equalize="none",
        options=ReadOptions(first_of=TOKEN_COLUMNS),
        view=TokenLists(),
    )
    assert [sample["input_ids"].tolist() for sample in stream] == [
        [1, 2, 3], [4], [5, 6], [7, 8, 9], [10], [11, 12], [18, 19],
    ]  # fmt: skip
    stats = stream.get_stats()
    assert stats["skipped"] == {"null": 1, "empty": 1}
    assert "input_ids is list<" in stats["schema_drift"]
    # Lists of any whole numbers are one kind: nothing to warn of.
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_b28_in_training_a_row_of_one_token_has_no_target():
    read, stream = tokens(made("f1", "f2", "f3_nulls", "f9_extra_int16"))
    assert read == [[1, 2, 3], [5, 6], [7, 8, 9], [11, 12], [18, 19]]
    assert stream.get_stats()["skipped"] == {"null": 1, "empty": 1, "single": 2}


def test_b28_a_file_without_the_column_names_what_there_is():
    with pytest.raises(
        RecordError, match=r"d/f4_nocolumn.parquet: no column input_ids or token_ids; found text"
    ):
        tokens(made("f4_nocolumn"))


@pytest.mark.parametrize(
    ("name", "words", "value"),
    [
        ("f5_negative", "token id -1 is not a whole number", -1),
        ("f6_over32", "token id 4294967296 is not a whole number", 2**32),
        ("f7_innernull", "a token id is null", None),
    ],
)
def test_b28_a_bad_id_is_an_error_with_file_row_and_value(name, words, value):
    with pytest.raises(RecordError, match=words) as caught:
        tokens(made(name))
    detail = caught.value.detail
    assert (detail["key"], detail["row"], detail["value"]) == (f"d/{name}.parquet", 1, value)


def test_b28_a_column_of_type_null_has_no_sequences():
    read, stream = tokens(made("f8_nulltype"))
    assert read == []
    assert stream.get_stats()["skipped"]["null"] == 2


# Drift: told by default, refused by `strict`

TYPES = {
    "d/a.parquet": parquet(id=[1, 2], text=["a", "b"]),
    "d/b.parquet": parquet(id=["3"], text=["c"], extra=[0.5]),
}


def test_int_and_text_in_one_column_are_told_once_and_nothing_is_lost(caplog):
    stream = StreamDataset(manager_of(TYPES), "d/", shuffle=False, equalize="none")
    assert list(stream) == [
        {"id": 1, "text": "a"}, {"id": 2, "text": "b"}, {"id": "3", "text": "c", "extra": 0.5},
    ]  # fmt: skip
    text = (
        "columns differ between shards: id is int64 in 1 (a.parquet), string in 1 (b.parquet); "
        "extra is in 1 (b.parquet) of 2 alone"
    )
    assert stream.get_stats()["schema_drift"] == text
    assert stream.validate().schema_drift == text
    warnings = [record for record in caplog.records if record.levelname == "WARNING"]
    assert [text in record.getMessage() for record in warnings] == [True]


def test_strict_refuses_before_anything_is_opened():
    manager = manager_of(TYPES)
    with pytest.raises(DataError, match=r"id is int64 in 1 \(a.parquet\), string in 1"):
        in_file_order(manager, options=ReadOptions(strict=True))
    assert manager.opened == []


def test_columns_that_are_not_read_may_differ():
    options = ReadOptions(strict=True, columns=("text",))
    assert in_file_order(manager_of(TYPES), options=options) == [
        {"text": "a"}, {"text": "b"}, {"text": "c"},
    ]  # fmt: skip


def test_formats_without_footers_are_compared_as_they_are_opened(caplog):
    objects = {"d/a.csv": b"x,y\n1,2\n", "d/b.csv": b"x,z\n3,4\n"}
    assert in_file_order(manager_of(objects)) == [{"x": "1", "y": "2"}, {"x": "3", "z": "4"}]
    assert "y is in 1 (d/a.csv) of 2 alone; z is in 1 (d/b.csv) of 2 alone" in caplog.text
    with pytest.raises(DataError, match="columns differ between shards: y is in 1"):
        in_file_order(manager_of(objects), options=ReadOptions(strict=True))


# R08: folders that are columns


def hive(name: str) -> DirectManager:
    folder = CASES / "parquet_hive" / name
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return manager_of({f"d/{path.relative_to(folder)}": path.read_bytes() for path in files})


def test_r08_union_by_name_with_the_folders_column():
    rows = in_file_order(hive("union_by_name"))
    assert [tuple(row.get(name) for name in ("i", "j", "x", "k")) for row in rows] == [
        (42, 84, 1, None), (42, 84, 1, None), (None, 128, 2, 33),
    ]  # fmt: skip


def test_r08_missing_has_two_rows_once_csv_and_text_are_left_out():
    rows = in_file_order(hive("missing"), format_name="parquet")
    assert [(row["value"], row["part"], row["date"]) for row in rows] == [
        ("value3", "c", "2014-01-01"), ("value4", "d", "2015-01-01"),
    ]  # fmt: skip


def test_a_folders_column_deals_the_classes():
    objects = {
        f"d/label={label}/{n}.jsonl": b'{"id": %d}\n' % (10 * n + len(label))
        for n in range(4)
        for label in ("cat", "horse")
    }
    manager = manager_of(objects)
    parts = [
        list(
            StreamDataset(
                manager, "d/", partition="stratified", partition_options={"key": "label"},
                equalize="none", rank=rank, world_size=2,
            )
        )
        for rank in (0, 1)
    ]  # fmt: skip
    for part in parts:
        assert sorted(sample["label"] for sample in part) == ["cat"] * 2 + ["horse"] * 2


# Columns read only as needed


class CountedBytes(MemoryShardBytes):
    """Counts what is read of an object."""

    total = 0

    def read(self, start: int, end: int) -> memoryview:
        found = super().read(start, end)
        CountedBytes.total += len(found)
        return found


class CountingManager(DirectManager):
    """Reads through CountedBytes, as where an object is too large to be cached."""

    def open_shard(self, info: ObjectInfo) -> CountedBytes:
        return CountedBytes(info.key, b"".join(self.store.get(info.key)), info=info)


@pytest.mark.parametrize("columns", [("small",), ("big0",), None])
def test_only_the_bytes_of_the_columns_asked_for_are_read(columns):
    import numpy as np

    rng = np.random.default_rng(0)
    table = pa.table(
        {"small": list(range(4000)), **{f"big{n}": rng.random(4000) for n in range(8)}}
    )
    file = io.BytesIO()
    pq.write_table(table, file, compression="none", use_dictionary=False)
    data = file.getvalue()
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    stored = {
        group.column(n).path_in_schema: group.column(n).total_compressed_size
        for n in range(group.num_columns)
    }
    spec = StoreSpec(uri=f"memory://{uuid.uuid4().hex}")
    open_store(spec).put("d/x.parquet", data)
    CountedBytes.total = 0
    found = in_file_order(CountingManager(spec), options=ReadOptions(columns=columns))
    assert len(found) == 4000
    wanted = sum(size for name, size in stored.items() if columns is None or name in columns)
    footer = 64 << 10  # what pyarrow looks for the footer in, at most
    assert wanted <= CountedBytes.total <= 2 * wanted + footer
