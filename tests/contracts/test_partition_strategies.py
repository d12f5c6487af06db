"""Every partition strategy, whichever there are: disjoint, complete, the same everywhere."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brain.ml.dataset_shards.partition_strategy import (
    Shard,
    World,
    find_strategy,
    partition_strategies,
)
from tools_utilities.errors import UsageError

NAMES = sorted(partition_strategies())
KEYS = [f"data/d/shard_000{number:02}.jsonl" for number in range(16)]

VECTORS = {"round_robin": [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]}
"""What four ranks get of the sixteen keys, on every Python and machine."""

SCRIPT = """
import json, sys
from brain.ml.dataset_shards.partition_strategy import Shard, World, find_strategy
name, rank, keys = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
shards = [Shard(key=key, size_bytes=100) for key in keys]
own = find_strategy(name).assign(shards, World(world_size=4))[rank]
print(json.dumps([keys[index] for index in own]))
"""


@pytest.mark.parametrize("name", NAMES)
@given(count=st.integers(0, 40), world_size=st.integers(1, 9), seed=st.randoms())
def test_every_shard_goes_to_exactly_one_rank(name, count, world_size, seed):
    shards = [Shard(key=f"d/{number:04}.jsonl", size_bytes=number) for number in range(count)]
    world, strategy = World(world_size=world_size), find_strategy(name)
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
    shards = [Shard(key=key, size_bytes=100) for key in KEYS]
    assert find_strategy(name).assign(shards, World(world_size=4)) == VECTORS[name]


@pytest.mark.parametrize("name", NAMES)
def test_b34_the_same_in_every_interpreter(name):
    environments = [
        {"PYTHONHASHSEED": "0"},
        {"PYTHONHASHSEED": "1"},
        {"PYTHONHASHSEED": "2", "LC_ALL": "C"},
        {"PYTHONHASHSEED": "random"},
    ]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, name, str(rank), json.dumps(KEYS[rank:] + KEYS[:rank])],
            env={**os.environ, **extra, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
        )
        for rank, extra in enumerate(environments)
    ]
    found = [json.loads(process.communicate(timeout=60)[0]) for process in running]
    assert found == [[KEYS[index] for index in part] for part in VECTORS[name]]


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_refused(name):
    with pytest.raises(UsageError, match="colour"):
        find_strategy(name).assign((), World(world_size=2, options={"colour": "red"}))


def test_an_unknown_strategy_names_the_known_ones():
    with pytest.raises(UsageError) as caught:
        find_strategy("rendezvous")
    assert all(name in caught.value.hint for name in NAMES)
