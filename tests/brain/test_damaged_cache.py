"""A damaged entry is never delivered: 5 kinds of damage, 40 times each, through a running stream."""

import random
from pathlib import Path

import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.simulated_store import SimulatedStore
from tests.stream_parts import entries
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

NUM_OBJECTS = 40


def damage(path: Path, kind: str, chance: random.Random, other: bytes) -> None:
    """Damage one entry; length and time stay as they were where the kind allows it."""
    data = bytearray(path.read_bytes())
    if kind == "flipped":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "truncated":
        del data[chance.randrange(len(data)) :]
    elif kind == "zeroed":
        start = chance.randrange(len(data) - 16)
        data[start:] = bytes(len(data) - start)
    elif kind == "extended":
        data += chance.randbytes(chance.randint(1, 100))
    else:
        data[:] = other
    path.write_bytes(data)


def read(store: SimulatedStore, cache: Path) -> tuple[list[bytes], int]:
    """Read an epoch as a new process would; returns records and how many entries were bad."""
    manager = StreamingManager.for_store(
        store.register(), cache_dir=str(cache), cache_bytes=1_000_000_000
    )
    stream = StreamDataset(manager, "data/x/", deserialize=bytes, rank=0, world_size=1)
    return list(stream), manager.get_stats()["quarantined"]


@pytest.mark.parametrize("kind", ["flipped", "truncated", "zeroed", "extended", "replaced"])
def test_forty_damaged_entries_are_caught_fetched_again_and_the_run_goes_on(tmp_path, kind):
    store, chance = SimulatedStore(NUM_OBJECTS, 6), random.Random(kind)
    right, _ = read(store, tmp_path)
    found = sorted(entries(tmp_path))
    assert len(found) == NUM_OBJECTS
    contents = [path.read_bytes() for path in found]
    for number, path in enumerate(found):
        damage(path, kind, chance, contents[number - 1])
    asked = store.num_gets
    assert read(store, tmp_path) == (right, NUM_OBJECTS)
    assert store.num_gets - asked == NUM_OBJECTS
    assert read(store, tmp_path) == (right, 0)
