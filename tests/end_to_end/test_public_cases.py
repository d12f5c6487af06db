"""Failure cases from the field, from listing to samples: tests/cases/cases.md has them in words."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.fault_store import FaultStore
from tools_utilities.object_stores import memory
from tools_utilities.scripts.dataset_discovery import find_groups, group_objects
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

RECORD_BYTES = 32


def lines(first: int, count: int) -> bytes:
    """Records of exactly 32 bytes."""
    rows = (json.dumps({"k": number}).encode() for number in range(first, first + count))
    return b"".join(row + b" " * (RECORD_BYTES - 1 - len(row)) + b"\n" for row in rows)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FaultStore:
    """A store that keeps count, known by its URI as any other."""
    counting = FaultStore()
    monkeypatch.setitem(memory._STORES, counting.spec.uri, counting)
    return counting


def manager_of(store: FaultStore, cache_dir: Path) -> StreamingManager:
    """A manager with a real cache over this very store."""
    return StreamingManager.for_store(
        store.spec, cache_dir=str(cache_dir), cache_bytes=1_000_000_000
    )


def epoch(manager: StreamingManager, prefix: str, **options: Any) -> list[int]:
    return [
        sample["k"] for sample in StreamDataset(manager, prefix, rank=0, world_size=1, **options)
    ]


def asked(store: FaultStore) -> set[str]:
    return {key for key, *_ in store.gets}


def test_b01_placeholders_are_no_data_and_an_empty_shard_is(store, tmp_path):
    root = "data/datasets/alpha/"
    store.put(root, b"")
    store.put(f"{root}train/", b"")
    for number in range(8):
        store.put(f"{root}train/shard_{number:05d}.jsonl", lines(64 * number, 64))
    store.put(f"{root}train/shard_00008.jsonl", b"")

    (group,) = find_groups(store, root).groups
    samples = epoch(manager_of(store, tmp_path), group.prefix)

    assert (group.prefix, group.num_objects, group.median_bytes) == (f"{root}train/", 9, 2048)
    assert sorted(samples) == list(range(512))
    assert not [key for key in asked(store) if key.endswith("/")]


def test_b02_a_folder_is_not_a_string_prefix(store, tmp_path):
    root = "data/datasets/x/"
    for folder in ("train", "training", "train-old", "train_v2"):
        for number in range(8):
            store.put(f"{root}{folder}/s_{number}.jsonl", lines(0, 64))
    store.put(f"{root}train.jsonl", lines(0, 64))

    samples = epoch(manager_of(store, tmp_path), f"{root}train/")
    found = find_groups(store, root)

    assert len(samples) == 8 * 64
    data = {key for key in asked(store) if key.endswith(".jsonl")}
    assert {key for key in data if key.startswith(f"{root}train/")}
    assert sorted(group.prefix for group in found.groups) == [
        f"{root}{folder}/" for folder in ("train-old", "train", "train_v2", "training")
    ]


def test_b04_odd_keys_come_back_unmixed(store, tmp_path):
    folder = "data/datasets/odd/train/"
    names = [
        "a b", "a+b", "a%20b", "a%2Fb", "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9"),
        "[x]", "q?", "star*", "t\tb", "a=b&c", "n" * 980,
    ]  # fmt: skip
    for number, name in enumerate(names):
        store.put(f"{folder}{name}.jsonl", lines(number, 1))

    samples = epoch(manager_of(store, tmp_path / "cache"), folder)

    assert sorted(samples) == list(range(12))
    entries = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert max(len(path.name.encode()) for path in entries) <= 255
    assert {info.key for info in group_objects(store, folder)} == {
        f"{folder}{name}.jsonl" for name in names
    }


def test_b04_brackets_are_no_pattern(store, tmp_path):
    for number in range(8):
        store.put(f"data/datasets/run[1]/train/{number}.jsonl", lines(number, 1))
        store.put(f"data/datasets/run1/train/{number}.jsonl", lines(100 + number, 1))

    samples = epoch(manager_of(store, tmp_path), "data/datasets/run[1]/train/")

    assert sorted(samples) == list(range(8))


def test_b05_what_lies_between_shards_is_not_read(store, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = "data/datasets/j/train/"
    for number in range(8):
        sink = pa.BufferOutputStream()
        noise = pa.array([f"{number}-{row}-" + "x" * 400 for row in range(3)])
        keys = pa.array(range(3 * number, 3 * number + 3))
        pq.write_table(pa.table({"k": keys, "noise": noise}), sink)
        store.put(f"{folder}part-{number}.parquet", sink.getvalue().to_pybytes())
    part = store.get(f"{folder}part-0.parquet")
    junk = {
        "_SUCCESS": b"", "_metadata": b"x" * 4096, ".DS_Store": b"x" * 6144,
        "._part-0.parquet": bytes([0, 5, 0x16, 7]) * 1024, ".part-0.parquet.crc": b"x" * 12,
        "manifest.json": b"{}", "index.json": b"{}", "README.md": b"# parts",
        "_temporary/0/part-9.parquet": b"".join(part),
    }  # fmt: skip
    for name, data in junk.items():
        store.put(folder + name, data)
    store.gets.clear()

    (group,) = find_groups(store, "data/datasets/j/").groups
    samples = epoch(manager_of(store, tmp_path), group.prefix)

    assert group.num_objects == 8
    assert group.ignored == 9
    assert sorted(samples) == list(range(24))
    # A manifest's name is looked at as a manifest; nothing else that was left out is read.
    read = asked(store) & {folder + name for name in junk}
    assert read <= {f"{folder}manifest.json"}


def test_b08_no_key_names_a_file(store, tmp_path):
    keys = [
        "data/d/train/../../../../evil.jsonl", "data/d/train/./dot.jsonl", "/abs.jsonl",
        "data/d/train//dbl.jsonl", "data/d/train/dbl.jsonl", "data/d/train/a/b.jsonl",
        "data/d/train/CON.jsonl", "data/d/train/A.jsonl", "data/d/train/a.jsonl",
    ]  # fmt: skip
    for number, key in enumerate(keys):
        store.put(key, lines(number, 1))

    samples = epoch(manager_of(store, tmp_path / "cache"), "")

    assert sorted(samples) == list(range(len(keys)))
    made = [path.resolve() for path in tmp_path.rglob("*") if path.is_file()]
    assert made
    assert all(path.is_relative_to(tmp_path / "cache") for path in made)
    assert not list(tmp_path.glob("*.jsonl"))
