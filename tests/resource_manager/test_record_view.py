"""`inspect`: the fields and records of a dataset."""

import json

import numpy as np
import pytest

from resource_manager.record_view import (
    RecordOrder,
    fields_of,
    json_value,
    read_records,
    record_lines,
    type_of,
)
from tests.projects import Said, make_manager
from tools_utilities.errors import DataNotFoundError
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.terminal_text import plain


def test_fields_and_records_of_a_group(project):
    manager, _, out, err = make_manager(project)
    assert manager.inspect(Said(data=["data/datasets/one"], max_samples=3)) == 0
    text = out.getvalue()
    assert "data/datasets/one/train-" in text
    assert "id     int   3/3  0" in text
    assert text.count("of 0") == 4  # three records, and the example
    assert "also there: data/datasets/one/val-" in err.getvalue()


def test_another_group_and_a_literal_prefix(project):
    manager, _, out, _ = make_manager(project)
    manager.inspect(Said(data=["data/datasets/two"], groups={"pick": [2]}))
    assert "data/datasets/two/b/" in out.getvalue()
    manager, _, out, _ = make_manager(project)
    manager.inspect(Said(data=["data/datasets/two/b/train-00002.jsonl"]))
    assert "data/datasets/two/b/train-00002.jsonl" in out.getvalue()
    assert "of 2" in out.getvalue()


def test_as_json(project):
    manager, _, out, _ = make_manager(project, json=True)
    assert manager.inspect(Said(data=["data/datasets/one"], max_samples=2)) == 0
    [found] = json.loads(out.getvalue())["data"]
    assert [field["name"] for field in found["fields"]] == ["id", "text"]
    assert found["records"][0] == {"id": 0, "text": "sample 0 of 0"}
    assert len(found["records"]) == 2


def test_more_records_than_one_shard_and_random_ones(project):
    store = open_store(StoreSpec(uri=f"file://{project}"))
    infos = sorted(store.list("data/datasets/one/train-"), key=lambda info: info.key)
    many = read_records(store, infos, RecordOrder(count=150))
    assert [record["id"] for record in many[:61]] == [*range(60), 40]
    assert len(many) == 150
    mixed = [read_records(store, infos, RecordOrder(shuffle=True, seed=seed)) for seed in (1, 1, 2)]
    assert mixed[0] == mixed[1] != mixed[2]
    assert len(mixed[0]) == 5
    assert len({record["text"].split()[-1] for record in mixed[0]}) > 1


def test_nothing_there(project):
    (project / "data/datasets/empty").mkdir()
    for path in ("data/datasets/empty", "data/datasets/one/none-"):
        with pytest.raises(DataNotFoundError):
            make_manager(project)[0].inspect(Said(data=[path]))


def test_types_and_values():
    record = {
        "text": "a\x1b[31m", "tokens": np.arange(4, dtype=np.int32), "png": b"\x89PNG",
        "mixed": [1, "a"], "none": None, "nan": float("nan"), "more": {"a": [1.5]},
    }  # fmt: skip
    types = {field.name: field.types for field in fields_of([record, {"text": 5}])}
    assert types == {
        "text": "str | int", "tokens": "int32[4]", "png": "bytes", "mixed": "list[int | str]",
        "none": "null", "nan": "float", "more": "object",
    }  # fmt: skip
    assert type_of((1,)) == "list[int]"
    assert json_value(record) == {
        "text": "a\x1b[31m", "tokens": [0, 1, 2, 3], "png": {"bytes": 4, "starts": "89504e47"},
        "mixed": [1, "a"], "none": None, "nan": "nan", "more": {"a": [1.5]},
    }  # fmt: skip


def test_wide_records_are_shown_field_by_field_and_everything_escaped():
    records = [{"text": "x" * 500, "odd\x1b": "[/bold]\u202e"}]
    lines = [plain(line) for line in record_lines(records, ["text", "odd\x1b"], 60)]
    assert lines[0] == "record 1"
    assert max(len(line) for line in lines) <= 60
    text = "".join(lines)
    assert "\x1b" not in text
    assert "odd\\x1b" in text
    assert "[/bold]\\u202e" in text
