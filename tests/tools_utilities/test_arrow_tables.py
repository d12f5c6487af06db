"""How samples become tables and row groups, and which columns keep each value once."""

import io
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tools_utilities.shard_formats.parquet import SHARD_FORMAT, dictionary_columns


def file_of(rows: list[dict[str, Any]]) -> bytes:
    file = io.BytesIO()
    assert SHARD_FORMAT.write(rows, file) == len(rows)
    return file.getvalue()


def test_rows_come_back_from_several_row_groups():
    chance = random.Random(1)
    rows = [
        {"id": n, "text": "x" * chance.randint(0, 3000), "r": chance.random()} for n in range(6000)
    ]

    found = file_of(rows)

    assert pq.ParquetFile(io.BytesIO(found)).metadata.num_row_groups > 1
    assert pq.read_table(io.BytesIO(found)).to_pylist() == rows
    assert file_of(rows) == found


def test_values_that_come_again_get_a_dictionary_and_long_texts_none():
    label = [number % 10 for number in range(300)]
    text = [f"text {number}" for number in range(300)]
    first = pa.table({"id": range(300), "label": label, "text": text})
    assert dictionary_columns(first) == ["label"]
    assert dictionary_columns(first.append_column("ids", pa.array([[1]] * 300))) is True
    rows = [{"id": n, "label": n % 10, "text": f"text {n}", "same": "a"} for n in range(300)]
    group = pq.ParquetFile(io.BytesIO(file_of(rows))).metadata.row_group(0)
    has = {group.column(at).path_in_schema: group.column(at).has_dictionary_page for at in range(4)}
    assert has == {"id": False, "label": True, "text": False, "same": True}
