"""How well an order mixes: the figures of the plan against what the stream really delivers."""

import json
import uuid
from itertools import pairwise

import numpy as np
import pytest

from brain.ml.dataset_shards.shuffle_order import shape_for
from brain.ml.dataset_shards.shuffle_quality import (
    MAX_SPLITS,
    OrderSettings,
    SplitLayout,
    measure_shuffle,
    sample_objects,
)
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.direct_manager import DirectManager
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec, open_store

MIB = 1 << 20


def layout(num_objects: int, size: int, num_splits: int = 1) -> SplitLayout:
    numbers = sample_objects(num_objects)
    return SplitLayout(
        keys=tuple(f"train-{number:07}.jsonl" for number in numbers.tolist()),
        object_bytes=np.full(len(numbers), size, np.int64),
        num_splits=np.full(len(numbers), num_splits, np.int64),
        num_objects=num_objects,
    )


def figures(*layout_arguments: int, **settings):
    found = measure_shuffle(layout(*layout_arguments), OrderSettings(**settings))
    assert found is not None
    return found


def test_64_shards_sorted_by_label_come_out_shuffled():
    spec = StoreSpec(uri=f"memory://{uuid.uuid4().hex}")
    store = open_store(spec)
    for label in range(64):
        rows = (json.dumps({"label": label, "n": label * 100 + n}) for n in range(100))
        store.put(f"d/train-{label:05}.jsonl", "\n".join(rows).encode() + b"\n")
    for seed in (42, 1):
        samples = list(StreamDataset(DirectManager(spec), "d/", seed=seed))
        assert len(samples) == 6400
        labels = [sample["label"] for sample in samples]
        same = np.mean([left == right for left, right in pairwise(labels)])
        moved = np.mean([abs(place - sample["n"]) for place, sample in enumerate(samples)])
        assert moved / (6400 / 3) >= 0.9
        assert same < 0.05
        batches = [len(set(labels[start : start + 32])) for start in range(0, 6400, 32)]
        told = figures(64, 2000, seed=seed)
        assert told.displacement == pytest.approx(moved / (6400 / 3), abs=0.06)
        assert told.same_shard == pytest.approx(same, abs=0.02)
        assert told.batch_shards == pytest.approx(np.mean(batches), abs=1)


def test_file_order_and_few_huge_files_are_told_as_they_are():
    plain = figures(64, MIB, shuffle=False)
    assert (plain.shuffled, plain.displacement) == (False, 0.0)
    assert plain.same_shard > 0.9
    huge = figures(128, 2 << 30)  # compressed: each is one split
    assert (huge.lanes, huge.window_splits, huge.open_splits) == (4, 1, 4)
    assert huge.batch_shards == pytest.approx(4, abs=0.1)
    assert huge.full_batch_shards > 25
    assert huge.mixing < 0.2
    assert figures(64, 100 * MIB, 67).mixing > 0.8


def test_a_budget_changes_what_is_open():
    assert figures(64, 100 * MIB, 67).open_splits == 96
    small = figures(64, 100 * MIB, 67, shuffle_bytes=32 * MIB)
    assert small.open_bytes <= 32 * MIB
    large = figures(64, 100 * MIB, 67, shuffle_bytes=1 << 30)
    assert large.open_splits > 96
    assert large.open_bytes <= 1 << 30
    assert shape_for(1 << 40, 9, 1).num_lanes == 1
    assert shape_for(1 << 40, 9).num_lanes == 4


@pytest.mark.parametrize("partition", ["contiguous", "hash", "files"])
def test_strategies_tell_of_rank_0s_own_order(partition):
    found = figures(64, MIB, partition=partition, world_size=2)
    assert found.displacement > 0.7
    assert found.batch_size == 16


def test_what_cannot_be_dealt_is_refused_before_the_run():
    with pytest.raises(UsageError, match="insufficient files"):
        figures(2, MIB, partition="files", world_size=4)


def test_a_million_shards_cost_no_more_than_a_few_hundred():
    assert len(sample_objects(1_000_000)) == MAX_SPLITS
    assert figures(1_000_000, MIB).open_splits == 96


def test_nothing_has_no_figures():
    assert measure_shuffle(layout(0, 1), OrderSettings()) is None
