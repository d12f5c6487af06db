"""Counts learned of local data are kept beside the cache, for the next run; never among the data."""

import stat
from pathlib import Path

import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.token_source import TokenSource
from brain.ml.tokenizer import load_tokenizer
from brain.ml.training_job import TrainingJob
from tests.brain.stream_data import folder_manager, ids
from tests.training import events, losses, make_job, text_shards, train_here, write_shards
from tools_utilities.cache_cleaning import cache_contents, clean_cache
from tools_utilities.object_store import StoreSpec
from tools_utilities.scripts.s3_streaming_manager import StreamingManager


def total_of(job: TrainingJob) -> int | None:
    """Return what a new stream knows of its length before it reads anything."""
    source = TokenSource(job, job.train[0], load_tokenizer(job.tokenizer), training=True)
    return source.stream.index.total


def listed(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.rglob("*"))


def test_the_second_run_over_local_data_knows_its_length(tmp_path: Path):
    store = write_shards(tmp_path / "data", text_shards())
    before = listed(tmp_path / "data")
    counts = tmp_path / "cache/counts"

    def job(name: str) -> TrainingJob:
        return make_job(tmp_path / name, store, epochs=1.0, max_steps=None, counts_dir=str(counts))

    assert total_of(job("one")) is None
    assert train_here(job("one")) == 0
    read = events(tmp_path / "one", "end")[0]["samples"]
    assert total_of(job("two")) == read
    assert train_here(job("two")) == 0
    # What was learned changes no schedule: the same data gives the same run.
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    assert listed(tmp_path / "data") == before
    for folder in (tmp_path / "cache", counts):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    # Changed data has another name; what is cleaned is counted anew.
    shard = tmp_path / "data/d/train/train-00001.jsonl"
    shard.write_bytes(shard.read_bytes() + b'{"id": 1, "text": "one more"}\n')
    assert total_of(job("three")) is None
    shard.write_bytes(text_shards()["d/train/train-00001.jsonl"])
    assert train_here(job("three")) == 0
    assert total_of(job("four")) == read
    (counts / "mine.counts").write_text("mine")
    assert cache_contents(tmp_path / "cache").num_learned > 0
    assert clean_cache(tmp_path / "cache").num_learned > 0
    assert listed(counts) == [str(counts / "mine.counts")]
    assert total_of(job("four")) is None


@pytest.mark.parametrize("place", ["data/x/cache", "data/x", "link"])
def test_counts_are_never_kept_inside_the_data(tmp_path: Path, place: str):
    folder_manager(tmp_path, [5, 5])
    (tmp_path / "link").symlink_to(tmp_path / "data/x")
    before = listed(tmp_path)
    manager = StreamingManager.for_store(
        StoreSpec(uri=f"file://{tmp_path}"), cache_dir=str(tmp_path / place), cache_bytes=1 << 20
    )
    stream = StreamDataset(manager, "data/x/", rank=0, world_size=1)
    assert sorted(ids(stream)) == list(range(10))
    assert listed(tmp_path) == before
