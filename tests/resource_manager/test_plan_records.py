"""The plan decodes a few records by the settings that the run will read all of them by."""

import json

import numpy as np
import pytest

from tests.projects import make_manager, write_group
from tools_utilities.errors import DataNotFoundError, UsageError

DATA = "data/datasets/odd"


@pytest.fixture
def folder(project):
    found = project / DATA
    write_group(found)
    return found


def test_a_bad_shard_stops_the_plan_unless_it_may_be_skipped(project, folder):
    good = (folder / "train-00001.jsonl").read_text()
    (folder / "train-00000.jsonl").write_text('{"id": \n' * 400)
    (folder / "train-00001.jsonl").write_text('{"text": \n' + good)
    (folder / "train-00007.jsonl").write_bytes(b"\xff" * 2000)
    manager, target, _, _ = make_manager(project)
    with pytest.raises(DataNotFoundError, match="no shard group can be decoded"):
        manager.run_training_job(dataset_local_path=DATA)
    assert manager.run_training_job(dataset_local_path=DATA, overrides={"on_bad": "skip"}) == 0
    assert [job.on_bad for job in target.jobs] == ["skip"]


def test_data_of_which_nothing_can_be_read_stops_it_all_the_same(project, folder):
    for path in folder.iterdir():
        path.write_bytes(b"{\n" * 999)
    manager, target, _, _ = make_manager(project)
    with pytest.raises(DataNotFoundError, match="no shard group can be decoded"):
        manager.run_training_job(dataset_local_path=DATA, overrides={"on_bad": "skip"})
    assert target.jobs == []


def test_nan_is_read_where_it_is_allowed(project, folder):
    for path in folder.iterdir():
        path.write_text('{"text": "a", "x": NaN}\n' + path.read_text())
    manager, target, _, _ = make_manager(project)
    with pytest.raises(DataNotFoundError, match="NaN"):
        manager.run_training_job(dataset_local_path=DATA)
    assert manager.run_training_job(dataset_local_path=DATA, overrides={"allow_nan": True}) == 0
    assert target.jobs[0].allow_nan


def test_wide_tokens_are_asked_about_before_anything_starts(project):
    folder = project / DATA
    folder.mkdir(parents=True)
    for number in range(8):
        (folder / f"train-{number:05}.bin").write_bytes(np.arange(3, 600, dtype="<u4").tobytes())
    manager, target, _, _ = make_manager(project)
    unsaid: tuple[dict[str, object], ...] = ({}, {"vocab_size": 1000})
    for said in unsaid:
        with pytest.raises(UsageError, match="every second number is 0") as caught:
            manager.run_training_job(dataset_local_path=DATA, overrides=said)
        assert "token_dtype=uint32" in caught.value.hint
    known = ({"token_dtype": "uint32"}, {"token_dtype": "uint16"}, {"vocab_size": 70_000})
    for told in known:
        assert manager.run_training_job(dataset_local_path=DATA, overrides=told) == 0
    assert [job.token_dtype for job in target.jobs] == ["uint32", "uint16", None]
    index = {"shards": [{"shard_id": 0, "chunks": []}], "token_dtype": "uint32"}
    (folder / "manifest.json").write_text(json.dumps(index))
    assert manager.run_training_job(dataset_local_path=DATA) == 0
