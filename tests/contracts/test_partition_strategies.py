"""Every partition strategy, whichever there are: disjoint, complete, the same everywhere."""

import json
import os
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brain.ml.dataset_shards.epoch_plan import EpochStart
from brain.ml.dataset_shards.partition_reader import make_reader
from brain.ml.dataset_shards.partition_strategy import (
    ADAPTIVE,
    PartitionStrategy,
    Shard,
    World,
    find_strategy,
    partition_strategies,
)
from brain.ml.dataset_shards.share import Share
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tools_utilities.errors import UsageError

NAMES = sorted(partition_strategies())
STREAMED = [name for name in NAMES if name != ADAPTIVE]
KEYS = [f"data/d/shard_000{number:02}.jsonl" for number in range(16)]
LABELS = ["ant", "bee", "ant", "ant", "cow", "bee", "ant", "cow"] * 2
OPTIONS: dict[str, dict[str, Any]] = {
    "hash": {"num_partitions": 16, "hash_seed": 42},
    "range": {"ranges": [(0, 3), (3, 9), (9, 9), (9, 16)]},
    "stratified": {"key": "label"},
}

VECTORS = {
    "adaptive": [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]],
    "contiguous": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]],
    "files": [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]],
    "hash": [[2, 3, 4, 7, 11, 15], [5, 13, 14], [1, 6], [0, 8, 9, 10, 12]],
    "range": [[0, 1, 2], [3, 4, 5, 6, 7, 8], [], [9, 10, 11, 12, 13, 14, 15]],
    "round_robin": [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]],
    "stratified": [[0, 4, 8, 13], [1, 6, 10, 12], [2, 5, 11, 15], [3, 7, 9, 14]],
}
"""What four ranks get of the sixteen keys, on every Python and machine."""

SCRIPT = """
import json, sys
from brain.ml.dataset_shards.partition_strategy import Shard, World, partition_strategies
rank, given, options = int(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
shards = [Shard(key=key, size_bytes=100, labels={label: 10}) for key, label in given]
found = {}
for name, own in options.items():
    assigned = partition_strategies()[name].assign(shards, World(world_size=4, options=own))
    found[name] = [shards[index].key for index in assigned[rank]]
print(json.dumps(found))
"""


def options_for(name: str, num_shards: int, count: int) -> dict[str, Any]:
    """Options that fit so many shards, for `count` partitions where that is an option."""
    if name == "range":
        bounds = [round(part * num_shards / count) for part in range(count + 1)]
        return {"ranges": list(pairwise(bounds))}
    return {"num_partitions": count} if name == "hash" else OPTIONS.get(name, {})


def strategy_of(name: str) -> PartitionStrategy:
    return partition_strategies()[name]


def known_shards() -> list[Shard]:
    return [
        Shard(key=key, size_bytes=100, labels={label: 10})
        for key, label in zip(KEYS, LABELS, strict=True)
    ]


@pytest.mark.parametrize("name", NAMES)
@given(count=st.integers(0, 40), world_size=st.integers(1, 9), seed=st.randoms())
def test_every_shard_goes_to_exactly_one_rank(name, count, world_size, seed):
    shards = [
        Shard(key=f"d/{number:04}.jsonl", size_bytes=number, labels={str(number % 3): number})
        for number in range(count)
    ]
    world = World(world_size=world_size, options=options_for(name, count, world_size))
    strategy = strategy_of(name)
    if name == "files" and count < world_size:
        with pytest.raises(UsageError, match=f"insufficient files: {count} files for {world_size}"):
            strategy.assign(shards, world)
        return
    assigned = strategy.assign(shards, world)
    assert len(assigned) == world_size
    assert sorted(index for part in assigned for index in part) == list(range(count))
    shuffled = shards.copy()
    seed.shuffle(shuffled)
    again = strategy.assign(shuffled, world)
    keys = [[shards[index].key for index in part] for part in assigned]
    assert [[shuffled[index].key for index in part] for part in again] == keys


@pytest.mark.parametrize("name", NAMES)
def test_b34_vector_of_sixteen_keys(name):
    world = World(world_size=4, options=OPTIONS.get(name, {}))
    assert strategy_of(name).assign(known_shards(), world) == VECTORS[name]


def test_b34_the_same_in_every_interpreter():
    environments = [
        {"PYTHONHASHSEED": "0"},
        {"PYTHONHASHSEED": "1"},
        {"PYTHONHASHSEED": "2", "LC_ALL": "C"},
        {"PYTHONHASHSEED": "random"},
    ]
    given = list(zip(KEYS, LABELS, strict=True))
    options = json.dumps({name: OPTIONS.get(name, {}) for name in NAMES})
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(rank), listing, options],
            env={**os.environ, **extra, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
        )
        for rank, extra in enumerate(environments)
        for listing in [json.dumps(given[rank * 3 :] + given[: rank * 3])]
    ]
    found = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    for name in NAMES:
        assert [part[name] for part in found] == [
            [KEYS[index] for index in part] for part in VECTORS[name]
        ]


def whole_epoch(stream: StreamDataset, share: Share, start: EpochStart) -> list[Any]:
    """What one simulated reader gets, without a loader."""
    reader = make_reader(stream.plan_for(share, start), stream.index.counts)
    try:
        return [entry for block in reader.blocks() for entry in block.entries]
    finally:
        reader.close()


@pytest.mark.parametrize("name", STREAMED)
@given(
    count=st.integers(0, 23),
    world_size=st.integers(1, 4),
    num_workers=st.integers(0, 4),
    batch_size=st.integers(1, 5),
    equalize=st.sampled_from(["drop", "pad", "none"]),
)
@settings(max_examples=40, deadline=None)
def test_c_shard_001_the_stream_is_disjoint_complete_and_even(
    name, count, world_size, num_workers, batch_size, equalize
):
    if name == "files" and count < world_size:
        return
    samples = [{"id": number, "label": number % 3} for number in range(count)]
    parts = []
    for rank in range(world_size):
        stream = StreamDataset.from_samples(
            samples,
            rank=rank,
            world_size=world_size,
            partition=name,
            partition_options=options_for(name, count, world_size),
            equalize=equalize,
            max_drop=1.0,
        )
        own = [sample["id"] for sample in stream]
        assert len(stream) == len(own)
        batches: dict[int, list[int]] = {}
        for worker in range(max(1, num_workers)):
            share = Share(
                rank=rank,
                world_size=world_size,
                worker=worker,
                num_workers=max(1, num_workers),
                batch_size=batch_size,
                equalize=equalize,
            )
            got = [sample["id"] for sample in whole_epoch(stream, share, EpochStart())]
            for number in range(0, len(got), batch_size):
                at = number // batch_size * max(1, num_workers) + worker
                batches[at] = got[number : number + batch_size]
        assert [number for at in sorted(batches) for number in batches[at]] == own
        parts.append(own)
    every = [number for part in parts for number in part]
    if equalize != "pad":
        assert len(every) == len(set(every))
    if equalize == "none":
        assert sorted(every) == list(range(count))
    else:
        assert len({len(part) for part in parts}) == 1
    if equalize == "pad":
        assert set(every) == set(range(count))


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_refused(name):
    with pytest.raises(UsageError, match="colour"):
        strategy_of(name).assign((), World(world_size=2, options={"colour": "red"}))


def test_an_unknown_strategy_names_the_known_ones():
    with pytest.raises(UsageError) as caught:
        find_strategy("rendezvous")
    assert all(name in caught.value.hint for name in STREAMED)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([(0, 3), (4, 5)], "files 3 to 3 are in no range"),
        ([(0, 3), (2, 5)], r"\(0, 3\) and \(2, 5\) overlap"),
        ([(0, 4)], "files 4 to 4 are in no range"),
        ([(0, 6)], "goes past the last of 5 files"),
        ([(3, 0)], r"\(3, 0\) is not \(start, end\)"),
        (["0-x"], "is not"),
        ([], "needs ranges"),
        (None, "needs ranges"),
    ],
)
def test_ranges_that_do_not_cover_the_files_once_are_refused(ranges, words):
    shards = [Shard(key=f"{number}.jsonl") for number in range(5)]
    with pytest.raises(UsageError, match=words):
        find_strategy("range").assign(shards, World(world_size=1, options={"ranges": ranges}))


def test_ranges_may_be_written_as_settings_are_and_in_any_order():
    world = World(world_size=2, options={"ranges": ["2-5", "0-2"]})
    shards = [Shard(key=f"{number}.jsonl") for number in range(5)]
    assert find_strategy("range").assign(shards, world) == [[2, 3, 4], [0, 1]]


@pytest.mark.parametrize("options", [{"num_partitions": 0}, {"hash_seed": "a"}])
def test_hash_options_that_make_no_sense_are_refused(options):
    with pytest.raises(UsageError, match="not a"):
        find_strategy("hash").assign((), World(world_size=1, options=options))


def test_stratified_needs_a_key():
    with pytest.raises(UsageError, match="needs key"):
        find_strategy("stratified").assign((), World(world_size=1))


@given(classes=st.lists(st.integers(0, 4), min_size=8, max_size=60), world_size=st.integers(1, 4))
def test_stratified_gives_each_partition_its_share_of_every_class(classes, world_size):
    shards = [
        Shard(key=f"{number:03}", labels={str(label): 1}) for number, label in enumerate(classes)
    ]
    world = World(world_size=world_size, options={"key": "label"})
    for label in set(classes):
        parts = find_strategy("stratified").assign(shards, world)
        held = [sum(classes[index] == label for index in part) for part in parts]
        assert max(held) - min(held) <= 1


@given(sizes=st.lists(st.integers(0, 50), min_size=0, max_size=40), world_size=st.integers(1, 8))
def test_contiguous_runs_are_even_and_none_is_empty_without_need(sizes, world_size):
    shards = [Shard(key=f"{at:03}", size_bytes=size) for at, size in enumerate(sizes)]
    parts = find_strategy("contiguous").assign(shards, World(world_size=world_size))
    assert [index for part in parts for index in part] == list(range(len(sizes)))
    assert all(parts) or len(sizes) < world_size
    if len(sizes) == 8 * world_size and len(set(sizes)) == 1:
        assert {len(part) for part in parts} == {8}


def test_the_guide_says_of_every_strategy_what_it_keeps():
    guide = (Path(__file__).parents[2] / "docs" / "streaming.md").read_text()
    table = next(line for line in guide.splitlines() if line.startswith("| |"))
    assert sorted(re.findall(r"`(\w+)`", table)) == STREAMED
    assert (
        sorted(re.findall(r"^\| `(\w+)` \|", guide.partition("What each")[0], re.MULTILINE))
        == NAMES
    )
