"""`simulate`: the stream's own order, the cache's own eviction, and bytes as a real run fetches them."""

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brain.ml.dataset_shards.lane_walk import LaneWalk
from brain.ml.dataset_shards.shuffle_order import LaneShape, deal_order
from knowledge_hub.hub import KnowledgeHub
from resource_manager.simulated_cache import SimulatedCache, Uses
from resource_manager.simulated_link import EpochFigures, Link, RunSettings
from resource_manager.simulated_order import SimulatedData, SimulatedOrder, SimulatedWorld
from resource_manager.simulated_run import SimulatedRun
from tests.projects import END, RecordingTarget, Said, make_manager
from tests.simulated_reading import Setting
from tools_utilities.errors import InputNeededError, UsageError
from tools_utilities.eviction import EVICTION_POLICIES, Evictable

HUB = KnowledgeHub()
ENDLESS = float("inf")


def even(objects: int, size: int, *, splits: int = 1, samples: int = 100) -> SimulatedData:
    return SimulatedData(
        object_bytes=np.full(objects, size),
        num_splits=np.full(objects, splits),
        num_samples=objects * samples,
    )


def played(data: SimulatedData, world: SimulatedWorld, **settings) -> list[EpochFigures]:
    epochs = settings.pop("epochs", 1)
    link = Link(
        latency_seconds=settings.pop("latency", 0.0),
        connection_bytes_per_second=settings.pop("rate", ENDLESS),
        node_bytes_per_second=settings.pop("node_rate", ENDLESS),
        connections=settings.pop("connections", 8),
    )
    given = {"step_seconds": 0.1, "cache_bytes": 1 << 40, **settings}
    run = SimulatedRun(SimulatedOrder(data, world), RunSettings(link=link, **given))
    return [run.epoch() for _ in range(epochs)]


# The order


@pytest.mark.parametrize(("objects", "splits", "epoch"), [(7, 3, 0), (300, 2, 1), (40, 60, 3)])
def test_windows_are_entered_where_the_streams_own_walk_enters_them(objects, splits, epoch):
    source = random.Random(objects)
    sizes = np.array([source.randint(1000, 9000) * splits for _ in range(objects)])
    data = SimulatedData(
        object_bytes=sizes, num_splits=np.full(objects, splits), num_samples=objects * splits * 9
    )
    order = SimulatedOrder(data, SimulatedWorld(batch_size=1, seed=5))
    found = order.epoch(epoch)
    dealt = deal_order(order.object_of, sizes, 5, epoch)
    walk = LaneWalk(dealt, order.shape, order.counts.copy(), lambda _splits: None)
    entered: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for chunk in walk.chunks(lambda: 1 << 40):
        for place, window in enumerate(chunk.windows):
            # A lane's first entry of the stretch lies `place` after its beginning.
            first = (chunk.position + place, order.object_of[list(window.splits)].tolist())
            entered.setdefault((window.lane, window.number), first)
    real = sorted(entered.values())
    ours = [
        found.objects[found.firsts[at] : found.firsts[at + 1]].tolist()
        for at in range(len(found.steps))
    ]
    assert len(ours) == len(real)
    # Exact while all lanes have samples left; where some have ended, up to the lanes.
    steps = sorted(zip(found.steps.tolist(), ours, strict=True))
    assert [objects for _, objects in steps[:30]] == [objects for _, objects in real[:30]]
    far = [abs(step - place) for (step, _), (place, _) in zip(steps, real, strict=True)]
    assert max(far) <= order.shape.num_lanes
    assert sum(order.counts) == data.num_samples


def test_what_too_many_splits_are_joined_to_keeps_lanes_and_bytes_open():
    data = even(200_000, 24 << 20, splits=16)
    order = SimulatedOrder(data, SimulatedWorld())
    assert order.coarser == 2
    assert order.shape == LaneShape(num_lanes=24, num_window_splits=2)
    assert len(order.object_of) == 1_600_000


# The cache


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("policy", ["next_use", "lru"])
def test_evicts_in_the_order_of_the_caches_own_policy(policy, seed):
    source = random.Random(seed)
    sizes = [source.randint(1, 9) for _ in range(40)]
    trace = [source.randrange(40) for _ in range(400)]
    cache = SimulatedCache(sizes, 60, "plan" if policy == "next_use" else "nothing")
    places = np.arange(len(trace))
    cache.plan(Uses(np.array(trace), places, len(trace)), Uses(np.array([], int), places[:0], 0))
    held: dict[int, int] = {}  # object → place of its last use
    for place, number in enumerate(trace):
        if number not in held:
            while sum(sizes[one] for one in held) + sizes[number] > 60:
                later = trace[place + 1 :]
                uses = {str(one): later.index(one) for one in held if one in later}
                entries = [
                    Evictable(name=f"{one:03}", digest=str(one), num_bytes=sizes[one], used_ns=used)
                    for one, used in held.items()
                ]
                del held[int(EVICTION_POLICIES[policy](entries, uses)[0].digest)]
            assert cache.make_room(number, place, ahead=False)
            cache.add(number, float(place))
        held[number] = place
        cache.use(number, float(place))
        cache.release(number)
        assert set(cache.arrival) == set(held)
        assert cache.used_bytes == sum(sizes[one] for one in held) <= 60


def test_reading_ahead_evicts_nothing_that_is_needed_before_it_nor_what_is_leased():
    cache = SimulatedCache([4, 4, 4], 8, "plan")
    order = np.array([0, 1, 2, 1, 0])
    cache.plan(Uses(order, np.arange(5), 5), Uses(order[:0], order[:0], 0))
    for number in (0, 1):
        cache.make_room(number, 0.0, ahead=True)
        cache.add(number, 0.0)
    assert not cache.make_room(2, 1.0, ahead=True)  # both come before it
    cache.use(0, 1.0)
    cache.use(1, 1.0)
    assert not cache.make_room(2, 1.0, ahead=False)  # both are open
    cache.release(0)
    cache.release(1)
    assert cache.make_room(2, 1.0, ahead=True)  # 0 is needed after 2 and 1
    assert set(cache.arrival) == {1}


# Figures by arithmetic


def test_the_first_batch_waits_for_the_listing_and_its_own_objects():
    [one] = played(even(1, 1_000_000), SimulatedWorld(), latency=0.5, rate=2e6)
    # One page, then one object.
    assert one.first_batch_seconds == pytest.approx(0.5 + 0.5 + 0.5)
    assert one.steps == 4  # 100 samples, batches of 32
    assert one.seconds == pytest.approx(1.5 + 4 * 0.1)
    assert (one.fetched_bytes, one.again_bytes, one.requests) == (1_000_000, 0, 1)


def test_no_epoch_is_shorter_than_its_link_or_its_steps():
    data, world = even(400, 4_000_000, splits=3), SimulatedWorld()
    [slow] = played(data, world, node_rate=10e6, step_seconds=0.001)
    assert slow.seconds == pytest.approx(1.6e9 / 10e6, rel=0.02)
    assert slow.data_wait_share > 0.98
    [quick] = played(data, world, rate=100e6, step_seconds=0.1)
    assert quick.stall_seconds < 1
    assert quick.seconds == pytest.approx(1250 * 0.1, abs=1)


def test_large_objects_come_in_parts():
    [one] = played(even(1, 160 << 20), SimulatedWorld(), latency=1.0, rate=16 << 20)
    assert one.requests == 10
    # The first part alone until its first byte, then eight at once.
    assert one.first_batch_seconds == pytest.approx(1 + 2 + 160 / (8 * 16))


def test_ranks_that_do_not_divide_the_lanes_fetch_everything_on_every_machine():
    data, size = even(240, 1_000_000), 240_000_000
    for nodes, fetched in ((4, size), (5, 5 * size)):
        [one] = played(data, SimulatedWorld(nodes=nodes, batch_size=60))
        assert (one.fetched_bytes, one.elsewhere_bytes) == (fetched, fetched - size)
    [own] = played(data, SimulatedWorld(nodes=5, batch_size=60, partition="contiguous"))
    assert own.fetched_bytes == size


def test_without_a_cache_objects_too_large_for_memory_are_read_in_pieces():
    data = even(8, 64 << 20, splits=40)
    [one] = played(data, SimulatedWorld(), cache_bytes=0)
    assert one.fetched_bytes == pytest.approx(8 * (64 << 20), rel=1e-3)
    assert one.requests == 8 * 40


# Bytes of real streams


@pytest.mark.parametrize(
    "setting",
    [
        Setting(objects=240, records=20, cached=0.5, epochs=2, latency=0.003, connections=8),
        Setting(ranks=2, cached=0.6, epochs=2, latency=0.003, connections=8),
        Setting(objects=120, ranks=5, records=50),
        Setting(objects=120, ranks=2, partition="contiguous", records=50),
    ],
    ids=["half the data cached", "two machines", "five machines", "contiguous"],
)
def test_fetches_what_a_real_run_fetches(setting):
    real = [fetched for _, fetched in setting.read()]
    simulated = [one.fetched_bytes for one in setting.simulate(step=0.002)]
    assert simulated == pytest.approx(real, rel=0.15)


@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "setting",
    [
        Setting(latency=0.02, step=0.03, connections=8),
        Setting(latency=0.2, step=0.01, connections=8),
        Setting(latency=0.1, step=0.01, connections=6),
        Setting(latency=0.01, rate=200e3, step=0.01, connections=8),
        Setting(latency=0.1, step=0.02, connections=4, ranks=2),
        Setting(latency=0.05, step=0.02, cached=0, connections=4, objects=100),
    ],
    ids=["keeps up", "waits, 8", "waits, 6", "slow link", "two machines", "no cache"],
)
def test_takes_as_long_as_a_real_run(setting):
    """Within 15 %: the time, and the share of it that was waited for data."""
    step = setting.warm_step()
    [one] = setting.simulate(step)
    [(seconds, fetched)] = setting.read()
    assert one.fetched_bytes == pytest.approx(fetched, rel=0.15)
    assert one.seconds == pytest.approx(seconds, rel=0.15)
    assert one.stall_seconds == pytest.approx(seconds - step * one.steps, abs=0.15 * seconds)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_billion_samples_in_a_million_shards_on_1024_ranks_take_seconds():
    data = SimulatedData(
        object_bytes=np.full(10**6, 10**6), num_splits=np.ones(10**6, int), num_samples=10**9
    )
    begun = time.process_time()
    [one] = played(data, SimulatedWorld(nodes=128, ranks_per_node=8, batch_size=32_768))
    assert one.steps == 30_518
    assert one.fetched_bytes == 128 * 10**12
    assert time.process_time() - begun < 60


# The command


DESCRIBED = {"data_shards": 1000, "data_samples": 64_000, "data_gb": 1.0}


def simulated(project: Path, **slots) -> dict[str, Any]:
    manager, target, out, _ = make_manager(project, json=True)
    before = {path: path.stat().st_mtime_ns for path in project.rglob("*")}
    assert manager.simulate(Said(**slots)) == 0
    assert target.jobs == []
    assert {path: path.stat().st_mtime_ns for path in project.rglob("*")} == before
    found: dict[str, Any] = json.loads(out.getvalue())["simulation"]
    return found


def test_a_described_dataset_is_played_without_any_data(project):
    found = simulated(project, overrides={**DESCRIBED, "step_ms": 50.0}, epochs=2, nodes=4)
    assert (found["shards"], found["bytes"], found["samples"]) == (1000, 10**9, 64_000)
    assert (found["nodes"], found["ranks"], found["step_seconds"]) == (4, 4, 0.05)
    first, second = found["played"]
    assert first["steps"] == 2000
    assert (first["fetched_bytes"], first["elsewhere_bytes"]) == (10**9, 0)
    # The lanes, and so the machines, get other shards in the next epoch.
    assert 0 < second["fetched_bytes"] == second["elsewhere_bytes"] < 10**9
    assert second["again_bytes"] == 0
    assert found["seconds"] == pytest.approx(first["seconds"] + second["seconds"])


def test_real_files_are_played_with_their_sizes(project):
    files = list((project / "data/datasets/one").glob("train-*"))
    found = simulated(
        project, data=["data/datasets/one"], overrides={"step_ms": 10.0, "latency_ms": 100.0}
    )
    assert found["bytes"] == sum(path.stat().st_size for path in files)
    assert found["shards"] == len(files)
    [one] = found["played"]
    assert one["fetched_bytes"] == found["bytes"]
    assert found["latency_seconds"] == 0.1


def test_a_step_lasts_as_in_a_run_like_it(project):
    start = {"event": "start", "time": 1.0, "total_steps": 100}
    end = {**END, "step": 100, "tokens": 819_200, "seconds": 50.0, "epoch": 1.0}
    manager, _, _, _ = make_manager(project, RecordingTarget(start, end))
    manager.train(Said(data=["data/datasets/one"]))
    found = simulated(project, data=["data/datasets/one"])
    assert found["step_seconds"] == pytest.approx(0.5)
    assert str(found["step_from"]).startswith("as in ")


def test_what_is_missing_is_asked_for(project):
    manager, _, _, _ = make_manager(project)
    with pytest.raises(InputNeededError, match="how long a step takes"):
        manager.simulate(Said(data=["data/datasets/one"]))
    with pytest.raises(InputNeededError, match="data_samples, data_gb"):
        manager.simulate(Said(overrides={"data_shards": 10, "step_ms": 1.0}))
    with pytest.raises(UsageError, match="stratified"):
        manager.simulate(Said(overrides={**DESCRIBED, "step_ms": 1.0, "partition": "stratified"}))


def test_the_sentence_says_it_for_people(project):
    sentence = (
        "simulate for 2 epochs on 16 nodes on 8 gpus with batch size 4 per gpu"
        " data_shards=500 data_samples=512000 data_gb=0.5 step_ms=100 latency_ms=5"
    )
    reading = HUB.read(sentence)
    assert (reading.status, reading.intent) == ("ok", "simulate")
    manager, _, out, _ = make_manager(project)
    assert manager.simulate(reading) == 0
    text = out.getvalue()
    assert "16, 128 ranks in all, batch 512" in text
    assert "assumed: connection_mb_s, node_mb_s" in text
    assert "16 machines fetch the data 16.0 times in the first epoch" in text
    assert "epoch 2" in text
