"""What a plan says of columns that differ between shards, and of columns in folder names."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.projects import make_manager
from tests.training import make_job, train_here
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec


def parquet(ids: list[object], texts: list[str]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"id": ids, "text": texts}), file)
    return file.getvalue()


def test_columns_of_other_types_are_told_before_the_start(project):
    folder = project / "data/datasets/drift"
    folder.mkdir(parents=True)
    texts = [f"row {n} " * 20 for n in range(40)]
    for number in range(8):
        ids: list[object] = [str(n) if number == 7 else n for n in range(40)]
        (folder / f"train-{number:05}.parquet").write_bytes(parquet(ids, texts))
    manager, _, _, err = make_manager(project)
    manager.run_training_job(dataset_local_path="data/datasets/drift", overrides={"max_steps": 2})
    said = err.getvalue()
    assert "warning: data/datasets/drift/: columns differ between shards: id is int64" in said
    assert "string in 1 (train-00007.parquet)" in said
    manager, _, _, err = make_manager(project)
    manager.run_training_job(
        dataset_local_path="data/datasets/drift", overrides={"max_steps": 2, "strict": True}
    )
    assert "strict=true refuses that" in err.getvalue()


def folders(root) -> None:
    for lang in ("de", "en"):
        for number in range(4):
            path = root / f"lang={lang}" / f"train-{number:05}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = [json.dumps({"body": f"{lang} {number} {n} " * 6}) for n in range(40)]
            path.write_text("\n".join(rows) + "\n")


def test_a_folders_column_is_used_where_it_is_named_and_never_guessed(project):
    folders(project / "data/datasets/folders")
    for overrides, rule in (({}, "field body"), ({"template": "{lang}: {body}"}, "template")):
        manager, _, _, err = make_manager(project)
        manager.run_training_job(
            dataset_local_path="data/datasets/folders", overrides={"max_steps": 2, **overrides}
        )
        assert rule in err.getvalue()
    manager, _, _, _ = make_manager(project)
    with pytest.raises(UsageError, match="no field country"):
        manager.run_training_job(
            dataset_local_path="data/datasets/folders",
            overrides={"max_steps": 2, "template": "{country}: {body}"},
        )


def test_training_reads_the_folders_column(tmp_path):
    folders(tmp_path / "data/d/train")
    folders(tmp_path / "data/d/val")
    store = StoreSpec(uri=f"file://{tmp_path}/data")
    job = make_job(tmp_path / "run", store, template="{lang}: {body}", max_steps=2)
    assert train_here(job) == 0
