"""What a stream says of itself: bytes and hits as the store saw them, whatever the splits and workers."""

import json
from typing import Any

import pytest

from brain.ml.dataset_shards import shuffle_order, stream_index
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from brain.ml.dataset_shards.stream_statistics import merge_statistics
from tests.brain.stream_data import folder_manager, manager_of, shard
from tests.simulated_store import SimulatedStore
from tools_utilities.errors import DataError
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

OBJECTS, SAMPLES = 12, 64


@pytest.fixture(autouse=True)
def small_splits(monkeypatch):
    """Each object is cut into eight."""
    size = SimulatedStore(1, SAMPLES).object_bytes // 8
    monkeypatch.setattr(shuffle_order, "SPLIT_BYTES", size)
    monkeypatch.setattr(stream_index, "SPLIT_BYTES", size)


def stream_of(store: SimulatedStore, cache_dir: object, share: float = 4.0) -> StreamDataset:
    manager = StreamingManager.for_store(
        store.register(),
        cache_dir=None if cache_dir is None else str(cache_dir),
        cache_bytes=int(share * OBJECTS * store.object_bytes),
    )
    return StreamDataset(manager, "data/x/", batch_size=4)


def test_what_has_just_been_fetched_is_no_hit_however_many_splits_it_has(tmp_path):
    store = SimulatedStore(OBJECTS, SAMPLES)
    stream, total = stream_of(store, tmp_path), OBJECTS * store.object_bytes
    assert len(stream.index.table) == 8 * OBJECTS
    assert sum(1 for _ in stream) == OBJECTS * SAMPLES
    cold = stream.get_stats()
    assert (cold["bytes_from_store"], cold["bytes_read"]) == (store.got_bytes, total)
    assert (cold["bytes_from_cache"], cold["cache_hit_rate"]) == (0, 0.0)
    assert (cold["local_samples"], cold["remote_samples"]) == (0, OBJECTS * SAMPLES)
    list(stream)
    warm = stream.get_stats()
    assert (warm["bytes_from_store"], warm["bytes_from_cache"]) == (total, total)
    assert warm["cache_hit_rate"] == 0.5
    assert warm["local_samples"] == warm["remote_samples"] == OBJECTS * SAMPLES
    assert stream_of(store, tmp_path).get_stats()["cache_hit_rate"] is None
    again = stream_of(store, tmp_path)
    list(again)
    assert again.get_stats()["cache_hit_rate"] == 1.0


def test_the_figure_grows_while_an_epoch_is_read(tmp_path):
    store = SimulatedStore(OBJECTS, SAMPLES)
    list(stream_of(store, tmp_path))
    stream = stream_of(store, tmp_path)
    iterator = iter(stream)
    seen = []
    for _ in range(OBJECTS * SAMPLES):
        next(iterator)
        seen.append(stream.get_stats()["bytes_from_cache"])
    assert seen == sorted(seen)
    assert len(set(seen)) >= 3
    assert 0 < seen[SAMPLES] < seen[-1] <= OBJECTS * store.object_bytes


def test_workers_count_what_all_of_them_open_once(tmp_path):
    store = SimulatedStore(OBJECTS, SAMPLES)
    stream, total = stream_of(store, tmp_path), OBJECTS * store.object_bytes
    loader = StreamLoader(stream, 4, num_workers=2, multiprocessing_context="fork")
    assert sum(len(batch["id"]) for batch in loader) == OBJECTS * SAMPLES
    cold = loader.get_stats()
    assert (cold["bytes_read"], cold["bytes_from_cache"]) == (total, 0)
    list(loader)
    warm = loader.get_stats()
    loader.close()
    assert (warm["bytes_read"], warm["bytes_from_cache"]) == (2 * total, total)
    assert loader.get_stats()["cache_hit_rate"] == warm["cache_hit_rate"] == 0.5
    assert warm["samples_loaded"] == warm["local_samples"] + warm["remote_samples"]


@pytest.mark.parametrize("partition", ["round_robin", "contiguous"])
def test_bytes_are_shared_out_over_ranks_and_workers_whatever_the_records(partition):
    sizes = [1, 900, 0, 3, 40, 7, 2, 60]
    data = {
        f"d/train-{number:05d}.jsonl": shard([10**number] * size)
        for number, size in enumerate(sizes)
    }
    manager = manager_of(data)
    read = []
    for rank, num_workers in ((0, 0), (1, 2)):
        stream = StreamDataset(
            manager, "d/", partition=partition, equalize="none", rank=rank, world_size=2
        )
        how: Any = {"multiprocessing_context": "fork"} if num_workers else {}
        loader = StreamLoader(stream, 3, num_workers=num_workers, **how)
        list(loader)
        read.append(loader.get_stats()["bytes_read"])
        loader.close()
    total = sum(map(len, data.values()))
    assert sum(read) == pytest.approx(total, rel=0.02)
    assert min(read) > total / 5


def test_files_read_in_place_are_local(tmp_path):
    stream = StreamDataset(
        StreamingManager.for_store(
            folder_manager(tmp_path, [5, 9]).spec, cache_dir=None, cache_bytes=0
        ),
        "data/x/",
    )
    assert len(list(stream)) == 14
    stats = stream.get_stats()
    assert (stats["local_samples"], stats["remote_samples"]) == (14, 0)
    assert stats["bytes_from_cache"] == stream.index.table.total_bytes


CSVS = {"d/a.csv": b"x,y\n1,2\n5,6\n", "d/b.csv": b"x,z\n3,4\n7,8\n"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_columns_that_differ_are_in_the_statistics_without_footers_too(num_workers):
    stream = StreamDataset(manager_of(CSVS), "d/")
    how: Any = {"multiprocessing_context": "fork"} if num_workers else {}
    loader = StreamLoader(stream, 1, num_workers=num_workers, collate_fn=list, **how)
    assert len(list(loader)) == 4
    text = loader.get_stats()["schema_drift"]
    loader.close()
    assert text.startswith("columns differ between shards: ")
    assert "y is in 1 (d/a.csv) of 2 alone" in text
    checked = StreamDataset(manager_of(CSVS), "d/").validate().schema_drift
    assert sorted(checked.split()) == sorted(text.split())


def test_a_text_of_one_process_is_not_unsaid_by_another():
    told = {"samples_loaded": 0, "schema_drift": "x differs"}
    quiet = {"samples_loaded": 9, "schema_drift": ""}
    assert merge_statistics([told, quiet])["schema_drift"] == "x differs"
    assert merge_statistics([quiet, told])["schema_drift"] == "x differs"


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("said", [SAMPLES - 1, SAMPLES + 1])
def test_a_manifest_is_held_against_an_object_in_pieces_in_the_first_epoch(said, num_workers):
    store = SimulatedStore(3, SAMPLES)
    objects = {
        store.key(number): store.content(store.key(number), 0, store.object_bytes)
        for number in range(3)
    }
    chunks = [
        {"shard_id": n, "chunks": [{"key": f"part-{n:07d}.jsonl", "num_samples": count}]}
        for n, count in enumerate((SAMPLES, said, SAMPLES))
    ]
    manifest = {"schema": 1, "kind": "quark-manifest", "shards": chunks}
    objects["data/x/manifest.json"] = json.dumps(manifest).encode()
    stream = StreamDataset(manager_of(objects), "data/x/")
    assert len(stream.index.table) == 24
    how: Any = {"multiprocessing_context": "fork"} if num_workers else {}
    with pytest.raises(DataError, match=f"part-0000001.jsonl: 64 samples read, {said} in the man"):
        list(StreamLoader(stream, 4, num_workers=num_workers, **how))
