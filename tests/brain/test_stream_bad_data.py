"""Every format with one record, or a whole object, that cannot be read: raised, or skipped and counted."""

import gzip
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from brain.ml.packing import TokenLists
from tests.brain.stream_data import manager_of
from tests.shard_reading import written
from tools_utilities.errors import DataError, RecordError

COUNT = 10
ROWS = [{"id": str(number), "text": f"begin {number} " + "text " * 40} for number in range(COUNT)]


def stream_of(objects: dict[str, bytes], **more: Any) -> StreamDataset:
    return StreamDataset(manager_of(objects), "d/", **{"equalize": "none", **more})


def table_with_bad_text(write: Callable[[Any, io.BytesIO], None]) -> bytes:
    """Text of which one value is not UTF-8."""
    raw: Any = pa.array([b"\xff" if number == 3 else b"x" * 9 for number in range(COUNT)])
    text = pa.StringArray.from_buffers(COUNT, raw.buffers()[1], raw.buffers()[2])
    file = io.BytesIO()
    write(pa.table({"id": [str(number) for number in range(COUNT)], "text": text}), file)
    return file.getvalue()


def replaced(name: str, old: bytes, new: bytes) -> bytes:
    data = written(name, ROWS)
    assert data.count(old) == 1
    assert len(old) == len(new)
    return data.replace(old, new)


ONE_BAD: dict[str, bytes] = {
    "csv": written("csv", ROWS[:3]) + b'"3","x","one too many"\r\n' + b'"4","y"\r\n' * 6,
    "json": replaced("json", b'"3"', b"NaN"),
    "jsonl": replaced("jsonl", b'"3"', b"NaN"),
    "mds": replaced("mds", b"begin 3", b"begin \xff"),
    "parquet": table_with_bad_text(pq.write_table),
    "txt": b"".join(b"\xff\n" if number == 3 else b"line\n" for number in range(COUNT)),
}
"""Format → an object of ten records, the fourth of which cannot be read."""


@pytest.mark.parametrize("name", ONE_BAD)
def test_one_bad_record_is_raised_or_skipped_and_counted(name):
    objects = {f"d/a.{name}": ONE_BAD[name]}
    with pytest.raises(RecordError) as caught:
        list(stream_of(objects))
    assert caught.value.detail["key"] == f"d/a.{name}"
    assert caught.value.detail["store"].startswith("memory://")
    stream = stream_of(objects, on_bad="skip")
    assert len(list(stream)) == COUNT - 1
    assert stream.get_stats()["bad_records"] == 1
    with pytest.raises(DataError, match="more than 0 records"):
        list(stream_of(objects, on_bad="skip", bad_budget=0))
    found = stream_of(objects).validate()
    assert (found.num_samples, found.num_problems) == (COUNT - 1, 1)
    assert f"d/a.{name}" in found.problems[0]


def test_one_bad_token_row_is_raised_or_skipped_and_counted():
    objects = {"d/a.bin": np.arange(4096, dtype="<u2").tobytes()}
    view = TokenLists(num_ids=3000)
    with pytest.raises(RecordError, match="sample 3 of the split: token id 3000 is not"):
        list(stream_of(objects, view=view, shuffle=False))
    stream = stream_of(objects, view=view, on_bad="skip")
    assert len(list(stream)) == 2
    assert stream.get_stats()["bad_records"] == 2


CUT: dict[str, bytes] = {
    "arrow": written("arrow", ROWS)[:-9],
    "csv": b'id,text\r\n"1,2\r\n',
    "json": written("json", ROWS)[:-30],
    "jsonl.gz": gzip.compress(written("jsonl", ROWS))[:-5],
    "jsonl.zst": zstandard.compress(written("jsonl", ROWS))[:-5],
    "npy": written("npy", [{"array": np.arange(3.0)}] * COUNT)[:-5],
    "npz": written("npz", [{"array": np.arange(3.0)}] * COUNT)[:-5],
    "parquet": written("parquet", ROWS)[:-9],
    "tar": written("webdataset", [{"__key__": str(n), "x": b"1"} for n in range(COUNT)])[:3072],
}
"""Suffix → an object that cannot be opened, so that nobody knows how many records it has."""
WHOLE = {"d/a.jsonl": written("jsonl", ROWS)}
STRATEGIES: dict[str, dict[str, Any]] = {
    "round_robin": {}, "contiguous": {}, "hash": {"num_partitions": 1},
    "range": {"ranges": [(0, 2)]}, "stratified": {"key": "id"}, "files": {},
}  # fmt: skip


@pytest.mark.parametrize("suffix", CUT)
def test_a_cut_object_is_raised_or_left_out_told_and_counted(suffix, caplog):
    objects = {**WHOLE, f"d/b.{suffix}": CUT[suffix]}
    with pytest.raises(RecordError, match=f"d/b.{suffix}"):
        list(stream_of(objects))
    stream = stream_of(objects, on_bad="skip")
    for _ in range(2):
        assert len(list(stream)) == COUNT
    stats = stream.get_stats()
    assert stats["skipped"]["unreadable"] + stats["bad_records"] >= 2  # one an epoch, at least
    assert f"d/b.{suffix}" in caplog.text or stats["bad_records"]
    with pytest.raises(DataError, match=f"more than 0 records.*d/b.{suffix}"):
        list(stream_of(objects, on_bad="skip", bad_budget=0))
    found = stream_of(objects).validate()
    assert found.num_samples == COUNT
    assert [f"d/b.{suffix}" in problem for problem in found.problems] == [True]


@pytest.mark.parametrize("name", STRATEGIES)
def test_no_strategy_loses_an_object_in_silence(name):
    objects = {**WHOLE, "d/b.jsonl.gz": CUT["jsonl.gz"]}
    given = {"partition": name, "partition_options": STRATEGIES[name], "on_bad": "skip"}
    stream = stream_of(objects, **given, rank=0, world_size=1)
    assert len(list(stream)) == COUNT
    assert stream.get_stats()["skipped"] == {"unreadable": 1}
    with pytest.raises(DataError, match="more than 0 records"):
        list(stream_of(objects, **given, bad_budget=0, rank=0, world_size=1))


def test_a_loader_counts_it_too():
    objects = {**WHOLE, "d/b.jsonl.gz": CUT["jsonl.gz"]}
    loader = StreamLoader(stream_of(objects, on_bad="skip"), 4, collate_fn=list)
    assert sum(len(batch) for batch in loader) == COUNT
    assert loader.get_stats()["skipped"] == {"unreadable": 1}
    loader.close()


@pytest.mark.parametrize(
    "suffix", ["jsonl", "parquet", "tar", "csv", "arrow", "npy", "mds", "json"]
)
def test_empty_objects_and_objects_without_records_are_no_error(suffix):
    name = {"tar": "webdataset"}.get(suffix, suffix)
    objects = {f"d/a.{suffix}": b""}
    if name != "npy":
        objects[f"d/b.{suffix}"] = written(name, [])
    stream = stream_of(objects)
    assert list(stream) == []
    assert stream.index.total == 0
    assert stream.is_empty
