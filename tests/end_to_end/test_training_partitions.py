"""Training under strategies that assign splits: resumed in another world, refused before a step."""

import socket
import time
from pathlib import Path

import pytest

from brain.ml.training_job import Every
from tests.training import (
    ForkServer,
    events,
    losses,
    make_job,
    text_shards,
    train_here,
    write_shards,
)
from tools_utilities.object_store import StoreSpec


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> StoreSpec:
    return write_shards(tmp_path_factory.mktemp("data"), text_shards())


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number = free.getsockname()[1]
    return int(number)


def test_a_run_of_two_ranks_goes_on_with_one_and_the_same_partitions(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer, port: int
):
    settings = {
        "partition": "stratified",
        "partition_options": {"partition_key": "id"},
        "max_drop": 1.0,
        "max_steps": 12,
    }
    run_dir = tmp_path / "run"
    job = make_job(run_dir, store, **settings, checkpoint_every=Every(steps=5))
    pids = training_forks.start_ranks(job, 2, port)
    assert [training_forks.wait(pid) for pid in pids] == [0, 0]
    whole = losses(run_dir)
    assert train_here(make_job(run_dir, store, **settings, resume="latest", from_step=5)) == 0
    assert events(run_dir, "start")[-1]["resumed_from_step"] == 5
    # One rank takes turns between the two partitions: batches are those of the two ranks.
    assert losses(run_dir) == pytest.approx(whole, abs=1e-5)


def test_b32_three_files_for_four_ranks_end_all_of_them_before_the_first_step(
    tmp_path: Path, store: StoreSpec, training_forks: ForkServer, port: int
):
    job = make_job(tmp_path / "run", store, partition="files", workers=2)
    started = time.monotonic()
    pids = training_forks.start_ranks(job, 4, port)
    assert 0 not in [training_forks.wait(pid) for pid in pids]
    assert time.monotonic() - started < 30  # the promise is 10 s; test machines are busy
    assert events(tmp_path / "run", "step") == []
    error = events(tmp_path / "run", "error")[-1]
    assert "insufficient files: 3 files for 4 workers" in error["message"]


def test_a_loss_above_max_drop_ends_a_run_before_the_first_step(
    tmp_path: Path, training_forks: ForkServer, port: int
):
    shards = text_shards(shards=2)
    shards["d/train/train-00000.jsonl"] *= 2
    store = write_shards(tmp_path / "data", shards)
    pids = training_forks.start_ranks(make_job(tmp_path / "run", store, partition="files"), 2, port)
    assert 0 not in [training_forks.wait(pid) for pid in pids]
    assert events(tmp_path / "run", "step") == []
    assert "more than max_drop=0.01" in events(tmp_path / "run", "error")[-1]["message"]


def test_what_is_left_out_is_told_once_whatever_ranks_there_are(
    tmp_path: Path, training_forks: ForkServer, port: int
):
    shards = text_shards(shards=4)
    first = next(key for key in shards if "/train/" in key)
    shards[first] = b'{"id": \n' * 3 + b'{"text": ""}\n' * 2 + shards[first]
    store = write_shards(tmp_path / "data", shards)
    limits = {"epochs": 2.0, "max_steps": None, "on_bad": "skip", "val": ()}
    run = tmp_path / "run"
    pids = training_forks.start_ranks(make_job(run, store, **limits), 2, port)
    assert [training_forks.wait(pid) for pid in pids] == [0, 0]
    # Both ranks open the shard of which they are.
    told = "left out, over all epochs: at least 6 bad records, 4 empty records"
    assert [one["message"] for one in events(run, "warning")] == [told]
    [end] = events(run, "end")
    assert (end["stats"]["skipped_bad"], end["stats"]["skipped_empty"]) == (6, 4)
