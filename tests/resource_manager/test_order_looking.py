"""What the plan sees of how samples lie in their shards, and what it says of it."""

import gzip
import io
import json
import uuid

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resource_manager.order_looking import look_at_order, sorted_field, sorted_folders
from resource_manager.plan import Plan, shuffle_warnings
from resource_manager.plan_screen import plan_lines
from tests.projects import make_manager
from tests.resource_manager.test_plan import make_data
from tests.resource_manager.test_plan import make_plan as plan_with
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.terminal_text import plain


def store_of(objects: dict[str, bytes]):
    store = open_store(StoreSpec(uri=f"memory://{uuid.uuid4().hex}"))
    for key, data in objects.items():
        store.put(key, data)
    return store, sorted(store.list("d/"), key=lambda info: info.key)


def lines(shard: int, label: object, count: int = 40) -> bytes:
    rows = ({"id": shard * count + n, "label": label, "text": f"t{n}"} for n in range(count))
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def parquet(shard: int, label: str) -> bytes:
    out = io.BytesIO()
    rows = {"id": list(range(shard * 20, shard * 20 + 20)), "label": [label] * 20}
    pq.write_table(pa.table(rows), out, row_group_size=5)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["jsonl", "gz", "parquet"])
def test_a_label_of_its_own_in_every_shard_is_seen(kind: str):
    made = {
        "jsonl": [lines(n, f"c{n // 2}") for n in range(9)],
        "gz": [gzip.compress(lines(n, n)) for n in range(9)],
        "parquet": [parquet(n, f"c{n}") for n in range(9)],
    }[kind]
    name = {"jsonl": "jsonl", "gz": "jsonl.gz", "parquet": "parquet"}[kind]
    store, infos = store_of({f"d/train-{n}.{name}": data for n, data in enumerate(made)})
    found = look_at_order(store, infos, "d/")
    assert found is not None
    assert "field label" in found.sorted_by
    assert found.layout.num_objects == 9
    assert found.layout.keys[0] == f"train-0.{name}"


def test_mixed_labels_and_running_numbers_are_no_order():
    mixed = {
        f"d/train-{n}.jsonl": b"".join(lines(n * 40 + m, (n + m) % 3, 1) for m in range(40))
        for n in range(8)
    }
    store, infos = store_of(mixed)
    found = look_at_order(store, infos, "d/")
    assert found is not None
    assert found.sorted_by == ""


def test_folders_that_name_a_value():
    assert sorted_folders(["lang=en/a.jsonl", "lang=fr/a.jsonl"]) == "lang"
    assert sorted_folders(["lang=en/a.jsonl", "lang=en/b.jsonl"]) == ""
    assert sorted_folders(["en/a.jsonl", "fr/a.jsonl"]) == ""


def test_one_value_everywhere_and_few_records_say_nothing():
    block = [{"label": 1}] * 8
    assert sorted_field([(block, block), (block, block)]) is None
    other = [{"label": 2}] * 8
    assert sorted_field([(block, block), (other, other)]) == "label"
    assert sorted_field([(block[:2], []), (other[:2], [])]) is None
    assert sorted_field([(block, block)]) is None


def test_splits_are_counted_and_broken_data_is_left_to_the_run():
    store, infos = store_of({"d/a.jsonl": lines(0, 1, 60_000), "d/b.jsonl": lines(1, 1)})
    found = look_at_order(store, infos, "d/")
    assert found is not None
    assert found.layout.num_splits.tolist() == [3, 1]
    store, infos = store_of({f"d/{n}.parquet": b"no parquet" for n in range(3)})
    assert look_at_order(store, infos, "d/") is None
    store, infos = store_of({"d/empty.jsonl": b""})
    assert look_at_order(store, infos, "d/") is None


def test_the_plan_shows_the_figures_and_keeps_them(project):
    manager, target, _, err = make_manager(project)
    manager.run_training_job(
        dataset_local_path="data/datasets/one", overrides={"name": "fox-1", "max_steps": 2}
    )
    text = err.getvalue()
    for fact in (
        "mixed over 8 splits", "8 lanes of 3", "of neighbours from one shard", "displacement",
        "full shuffle",
    ):  # fmt: skip
        assert fact in text
    plan = msgspec.json.decode((project / "runs/fox-1/plan.json").read_bytes(), type=Plan)
    assert plan.data[0].shuffle is not None
    assert plan.data[0].shuffle.displacement > 0.5
    assert plan.data[1].shuffle is None  # validation is read in file order
    manager, _, _, err = make_manager(project)
    manager.run_training_job(
        dataset_local_path="data/datasets/one", overrides={"max_steps": 2, "shuffle": False}
    )
    assert "in file order" in err.getvalue()
    assert target.jobs[0].shuffle_mb is None


def test_sorted_data_that_meets_a_small_window_is_warned_of(project):
    folder = project / "data/datasets/sorted"
    folder.mkdir(parents=True)
    for n in range(16):
        (folder / f"train-{n:05}.jsonl").write_bytes(lines(n, f"c{n}"))
    manager, _, _, err = make_manager(project)
    tight = {"max_steps": 2, "shuffle_mb": 0.004}
    manager.run_training_job(dataset_local_path="data/datasets/sorted", overrides=tight)
    assert "warning: data/datasets/sorted/: field label has one value" in err.getvalue()
    assert "raise shuffle_mb" in err.getvalue()
    manager, _, _, err = make_manager(project)
    manager.run_training_job(dataset_local_path="data/datasets/sorted", overrides={"max_steps": 2})
    assert "so it is sorted" not in err.getvalue()
    manager, _, _, err = make_manager(project)
    manager.run_training_job(dataset_local_path="data/datasets/one", overrides=tight)
    assert "so it is sorted" not in err.getvalue()


def test_no_figures_no_line():
    data = make_data(sorted_by="field x has one value")
    assert shuffle_warnings((data,)) == []
    assert "mixed over" not in "".join(plain(line) for line in plan_lines(plan_with(), width=None))
