"""C-SHARD-001 and C-DATARESUME-001 in full: every strategy, world, worker count and stop.

Ranks and worker ids are simulated in this process, so that thousands of resumes cost seconds;
`test_stream_workers.py` and `test_training_ranks.py` have real ones.
"""

import json
import random
from collections.abc import Callable
from itertools import chain, cycle, islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brain.ml.dataset_shards import shuffle_order
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.direct_manager import DirectManager
from tests.brain.loader_simulation import Delivered, deliver
from tests.brain.stream_data import ids, memory_manager, put_shards
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

SIZES = [3, 0, 5, 1, 7, 2, 4, 6, 1, 9, 2, 3]
"""12 objects, 43 samples: a prime, so that no world or batch divides it."""
TOTAL = sum(SIZES)
BATCH = 2
STRATEGIES: dict[str, dict[str, Any]] = {
    "round_robin": {},
    "contiguous": {},
    "hash": {"num_partitions": 4},
    "range": {"ranges": [(0, 3), (3, 6), (6, 9), (9, 12)]},
    "stratified": {"key": "id"},
    "files": {},
}
WORKERS = (0, 1, 2, 4)
WORLDS = (1, 2, 3)


@pytest.fixture(autouse=True)
def small_shape(monkeypatch):
    """Few lanes and short windows, so that little data turns over many of them."""
    monkeypatch.setattr(shuffle_order, "NUM_LANES", 4)
    monkeypatch.setattr(shuffle_order, "NUM_WINDOW_SPLITS", 2)


@pytest.fixture(scope="module")
def manager(tmp_path_factory):
    return memory_manager(SIZES, tmp_path_factory.mktemp("cache"))


Streams = Callable[[int], StreamDataset]


def streams_of(
    manager: DirectManager, name: str, rank: int, world_size: int, **more: Any
) -> Streams:
    """Return what gives one rank's streams by number, each made once; they share one listing."""
    options = more.pop("options", STRATEGIES)[name]
    given = {"equalize": "none", "prefetch": 0, "max_drop": 1.0, "deserialize": bytes, **more}
    made: list[StreamDataset] = []

    def stream(number: int) -> StreamDataset:
        while len(made) <= number:
            new = StreamDataset(
                manager,
                "data/x/",
                partition=name,
                partition_options=options,
                rank=rank,
                world_size=world_size,
                **given,
            )
            if made:
                new._index = made[0]._index
            new.prepare()
            made.append(new)
        return made[number]

    return stream


def flat(delivered: list[Delivered]) -> list[bytes]:
    return [record for batch, _ in delivered for record in batch]


def resumes_of(manager: DirectManager, name: str, world_size: int, num_workers: int) -> int:
    """Resume after every batch of every rank, with other workers each time; returns how many.

    Every ninth is read to the end, the others for three batches.
    """
    others, count = cycle(WORKERS), 0
    ranks = [streams_of(manager, name, rank, world_size) for rank in range(world_size)]
    runs = [list(deliver(streams, num_workers, 1)) for streams in ranks]
    everything = sorted(chain.from_iterable(map(flat, runs)))
    assert len(everything) == len(set(everything)) == TOTAL
    for streams, run in zip(ranks, runs, strict=True):
        streams(0).set_epoch(1)
        following = list(streams(0))
        for stop, (_, state) in enumerate(run, 1):
            whole = stop % 9 == 0
            again = deliver(streams, next(others), 1, json.loads(json.dumps(state)))
            rest = list(again if whole else islice(again, 3))
            # After the last sample of the last rank, the next epoch begins.
            expected = following if state["epoch"] == 1 else flat(run[stop:])
            assert stop >= len(run) - 1 or state["epoch"] == 0
            assert flat(rest) == (expected if whole else expected[:3])
            count += 1
    return count


@pytest.mark.parametrize("name", STRATEGIES)
def test_c_dataresume_001_thousands_of_resumes_lose_and_repeat_nothing(manager, name):
    count = sum(
        resumes_of(manager, name, world_size, num_workers)
        for world_size in WORLDS
        for num_workers in WORKERS
    )
    print(f"{name}: {count} resumes byte-equal, 0 lost, 0 repeated")  # noqa: T201 - the figure
    # Of six strategies: over 3,000.
    assert count == TOTAL * len(WORLDS) * len(WORKERS) >= 3000 / len(STRATEGIES)


def go_on(
    manager: DirectManager, state: dict[str, Any], world_size: int, num_workers: int, turns: int
) -> tuple[list[list[bytes]], dict[str, Any]]:
    """Return what each rank of another world takes next, and the state then."""
    parts, states = [], []
    for rank in range(world_size):
        streams = streams_of(manager, "round_robin", rank, world_size)
        got = list(islice(deliver(streams, num_workers, 1, state), turns))
        parts.append(flat(got))
        states.append(got[-1].state)
    # Ranks may have learned more or less of what lies ahead; all stand at one place.
    assert len({(found["epoch"], found["position"]) for found in states}) == 1
    return parts, states[turns % world_size]


@pytest.mark.parametrize("seed", range(4))
def test_a_chain_of_resumes_over_worlds_and_workers_is_one_run(manager, seed):
    """Each leg has its own world and workers; ranks by turns give the global order back."""
    chance = random.Random(seed)
    legs = [(chance.randint(1, 4), chance.choice(WORKERS), chance.randint(1, 4)) for _ in range(6)]
    single = streams_of(manager, "round_robin", 0, 1)(0)
    single.reset()
    whole, seen = list(single), list[bytes]()
    single.reset()
    state = single.state_dict()
    for world_size, num_workers, turns in legs:
        possible = min(turns, (TOTAL - len(seen) - 1) // world_size)
        if possible == 0:
            break
        parts, state = go_on(manager, state, world_size, num_workers, possible)
        seen += [record for turn in zip(*parts, strict=True) for record in turn]
        assert seen == whole[: len(seen)]
    assert len(seen) > TOTAL // 2


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=10),
    name=st.sampled_from(sorted(STRATEGIES)),
    world_size=st.integers(1, 5),
    batch_size=st.integers(1, 4),
    equalize=st.sampled_from(["drop", "pad", "none"]),
)
def test_c_shard_001_any_data_any_world_any_workers(sizes, name, world_size, batch_size, equalize):
    """Disjoint, complete, equal steps; and the same order for 0, 1, 2 and 4 workers."""
    total, manager = sum(sizes), memory_manager(sizes)
    options = STRATEGIES[name]
    if name == "files" and len(sizes) < world_size:
        return  # refused, which another test sees
    if name == "range":
        options = {"ranges": [(n, n + 1) for n in range(len(sizes))]}
    if name in {"hash", "range"} and options.get("num_partitions", len(sizes)) < world_size:
        return  # more ranks than partitions are refused too
    parts = []
    for rank in range(world_size):
        with_options = dict(STRATEGIES)
        with_options[name] = options
        streams = streams_of(
            manager, name, rank, world_size, equalize=equalize, options=with_options
        )
        orders = [
            [batch for batch, _ in deliver(streams, workers, batch_size)] for workers in WORKERS
        ]
        assert all(order == orders[0] for order in orders)
        parts.append([record for batch in orders[0] for record in batch])
    lengths, everything = {len(part) for part in parts}, [r for part in parts for r in part]
    if equalize != "none":
        assert len(lengths) == 1
    if equalize != "pad":
        assert len(everything) == len(set(everything))
    if equalize != "drop":
        assert len(set(everything)) == total
    elif name == "round_robin":
        assert len(everything) == total - total % world_size


@pytest.mark.parametrize("name", STRATEGIES)
def test_prefetch_and_cache_change_nothing_under_any_strategy(name, tmp_path):
    """Read ahead or not, cold or warm, cached or not: one sequence, whatever the strategy."""
    spec = StoreSpec(uri=f"memory://{tmp_path}")
    put_shards(open_store(spec), SIZES)

    def read(prefetch: int | str, cache: str | None) -> tuple[list[int], int]:
        folder = None if cache is None else str(tmp_path / cache)
        manager = StreamingManager.for_store(spec, cache_dir=folder, cache_bytes=1_000_000_000)
        stream = StreamDataset(
            manager, "data/x/", partition=name, partition_options=STRATEGIES[name], max_drop=1.0,
            equalize="none", prefetch=prefetch, rank=1, world_size=2,
        )  # fmt: skip
        return ids(stream), manager.get_stats()["requests"]

    plain, requests = read(0, None)
    assert plain
    assert requests > 0
    assert read("auto", None)[0] == plain
    assert read("auto", "cache")[0] == plain  # cold
    for prefetch in ("auto", 0):
        assert read(prefetch, "cache") == (plain, 0)  # warm


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("num_workers", WORKERS)
def test_batch_t_is_the_same_set_at_any_world_size(manager, world_size, num_workers):
    """The global batch is eight samples, whoever and however many take them."""
    whole = list(streams_of(manager, "round_robin", 0, 1, deserialize=None)(0))
    ranks = [
        [
            batch
            for batch, _ in deliver(
                streams_of(manager, "round_robin", rank, world_size, deserialize=None),
                num_workers,
                8 // world_size,
            )
        ]
        for rank in range(world_size)
    ]
    for step in range(TOTAL // 8):
        together = [sample["id"] for rank in ranks for sample in rank[step]]
        expected = [sample["id"] for sample in whole[8 * step : 8 * step + 8]]
        assert sorted(together) == sorted(expected)
