"""StreamCoordinator: health by the documented rules, and a job that ends as early as it can."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brain.ml.dataset_shards.partition_strategy import Shard, World, partition_strategies
from brain.ml.dataset_shards.stream_coordinator import StreamCoordinator
from tools_utilities.errors import ClaimError, UsageError


class Clock:
    """Seconds that move when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def coordinator(clock: Clock, **options: Any) -> StreamCoordinator:
    return StreamCoordinator(heartbeat_seconds=10, clock=clock, **options)


def statuses(found: StreamCoordinator, *ranks: int) -> list[str]:
    return [found.get_worker_health(rank).status for rank in ranks]


def test_a_worker_is_unknown_before_its_first_heartbeat(clock):
    found = coordinator(clock)
    found.register_worker(0, ["a"])
    health = found.get_worker_health(0)
    assert (health.rank, health.status, health.last_heartbeat) == (0, "unknown", None)
    assert (health.samples_processed, health.average_throughput) == (0, 0.0)
    clock.now += 30
    assert statuses(found, 0) == ["unknown"]
    clock.now += 0.1
    assert statuses(found, 0) == ["failed"]  # silent for three intervals since it began


def test_three_intervals_without_a_heartbeat_are_a_failure_and_a_heartbeat_ends_it(clock):
    found = coordinator(clock)
    found.register_worker(0, ["a"])
    found.update_worker_health(0, 5, 10.0)
    clock.now += 30
    assert statuses(found, 0) == ["active"]
    clock.now += 0.1
    assert statuses(found, 0) == ["failed"]
    found.update_worker_health(0, 6, 10.0)
    assert statuses(found, 0) == ["active"]
    assert found.get_worker_health(0).last_heartbeat == clock.now


def test_slow_is_below_one_minus_the_threshold_times_the_median(clock):
    found = coordinator(clock, rebalance_threshold=0.2)
    for rank, rate in enumerate([100.0, 100.0, 80.0, 79.9]):
        found.register_worker(rank, [f"s{rank}"])
        found.update_worker_health(rank, 10, rate)
    # The median is 90: slow is below 72.
    assert statuses(found, 0, 1, 2, 3) == ["active"] * 4
    found.register_worker(4, ["s4"])
    found.update_worker_health(4, 10, 63.9)  # the median is now 80, slow below 64
    assert statuses(found, 0, 1, 2, 3, 4) == ["active", "active", "active", "active", "slow"]
    other = coordinator(clock, rebalance_threshold=0.5)
    for rank, rate in enumerate([100.0, 100.0, 50.1]):
        other.register_worker(rank, [f"s{rank}"])
        other.update_worker_health(rank, 10, rate)
    assert statuses(other, 2) == ["active"]


def test_a_stalled_worker_is_slow_and_one_without_work_is_idle(clock):
    found = coordinator(clock)
    for rank in range(3):
        found.register_worker(rank, [f"s{rank}"])
        found.update_worker_health(rank, 10, 50.0)
    found.register_worker(3, ["begun", "next"])
    found.update_worker_health(3, 0, 0.0)
    assert statuses(found, 3) == ["idle"]  # nothing done yet
    found.update_worker_health(3, 4, 0.0)
    assert statuses(found, 3) == ["slow"]
    found.complete_shard(0, "s0")
    assert statuses(found, 0) == ["idle"]


def test_throughput_is_an_average_that_follows(clock):
    found = coordinator(clock)
    found.register_worker(0, ["a"])
    found.update_worker_health(0, 100, 50.0)
    found.update_worker_health(0, 300, 100.0)
    health = found.get_worker_health(0)
    assert (health.samples_processed, health.average_throughput) == (300, 75.0)


@pytest.mark.parametrize(("samples", "throughput"), [(4, 1.0), (9, -1.0), (9, float("nan"))])
def test_reports_that_cannot_be_are_refused(clock, samples, throughput):
    found = coordinator(clock)
    found.register_worker(0, ["a"])
    found.update_worker_health(0, 5, 1.0)
    with pytest.raises(UsageError, match="rank 0"):
        found.update_worker_health(0, samples, throughput)


def test_every_shard_has_one_owner(clock):
    found = coordinator(clock)
    found.register_worker(0, ["a", "b"])
    with pytest.raises(UsageError, match="shard b: rank 0 has it, not rank 1"):
        found.register_worker(1, ["b", "c"])
    with pytest.raises(UsageError, match="named twice"):
        found.register_worker(1, ["c", "c"])
    with pytest.raises(UsageError, match="rank 7 is not registered"):
        found.update_worker_health(7, 1, 1.0)
    found.register_worker(0, ["a"])  # a new worker in its place
    assert found.shards_of(0) == ("a",)


def test_a_checkpoint_outlives_its_worker_and_is_no_shared_object(clock):
    found = coordinator(clock)
    assert found.get_checkpoint() is None
    found.register_worker(0, ["a"])
    found.register_worker(1, ["b"])
    lanes = [1, 2]
    state = {"epoch": 1, "lanes": lanes}
    found.register_checkpoint(0, state)
    found.register_checkpoint(1, {"epoch": 2})
    lanes.append(3)
    assert found.get_checkpoint(0) == {"epoch": 1, "lanes": [1, 2]}
    assert found.get_checkpoint() == {"epoch": 2}
    clock.now += 100
    assert statuses(found, 0) == ["failed"]
    assert found.get_checkpoint(0) == {"epoch": 1, "lanes": [1, 2]}
    assert found.get_checkpoint(5) is None


def test_nothing_moves_while_all_are_well(clock):
    found = coordinator(clock)
    found.assign([f"s{n}" for n in range(8)], 2)
    found.update_worker_health(0, 10, 100.0)
    found.update_worker_health(1, 10, 85.0)
    assert found.rebalance_if_needed() == ()


def test_a_failed_worker_loses_its_shards_to_who_is_through_first(clock):
    found = coordinator(clock)
    found.assign([f"s{n}" for n in range(6)], 3)
    assert found.shards_of(0) == ("s0", "s3")
    clock.now += 25
    found.update_worker_health(1, 10, 100.0)
    found.update_worker_health(2, 10, 100.0)
    assert found.rebalance_if_needed() == ()
    clock.now += 10
    moves = found.rebalance_if_needed()
    assert {(move.key, move.source) for move in moves} == {("s0", 0), ("s3", 0)}
    assert {move.target for move in moves} == {1, 2}
    assert found.shards_of(0) == ()
    assert found.rebalance_if_needed() == ()
    # It was only paused: what it did of that shard must not count.
    with pytest.raises(ClaimError, match="s0 is not a shard of rank 0"):
        found.complete_shard(0, "s0")
    found.update_worker_health(0, 3, 1.0)
    assert statuses(found, 0) == ["idle"]


def test_with_nobody_left_shards_wait_for_a_worker(clock):
    found = coordinator(clock)
    found.assign(["a", "b"], 1)
    clock.now += 31
    assert found.rebalance_if_needed() == ()
    found.register_worker(1, [])
    found.update_worker_health(1, 0, 0.0)
    assert [move.target for move in found.rebalance_if_needed()] == [1, 1]


def test_the_shard_in_work_stays_with_a_slow_worker(clock):
    found = coordinator(clock)
    found.assign([f"s{n:02}" for n in range(20)], 2)
    found.update_worker_health(0, 10, 100.0)
    found.update_worker_health(1, 10, 10.0)
    moves = found.rebalance_if_needed()
    assert {move.source for move in moves} == {1}
    assert "s01" in found.shards_of(1)
    assert len(found.shards_of(0)) >= 16


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rebalance_threshold": 0}, "rebalance_threshold=0"),
        ({"rebalance_threshold": True}, "rebalance_threshold"),
        ({"base": "adaptive"}, "base=adaptive"),
        ({"base": "nobody"}, "base=nobody"),
        ({"num_partitions": 4}, "num_partitions: not an option of partition=round_robin"),
        ({"fault_tolerance": 2}, "fault_tolerance"),
    ],
)
def test_options_that_do_not_fit_are_refused(clock, options, words):
    with pytest.raises(UsageError, match=words):
        coordinator(clock, **options)


def test_the_base_strategy_deals_first_and_rates_deal_by_speed():
    shards = [Shard(key=f"s{n:02}", num_samples=10) for n in range(12)]
    adaptive = partition_strategies()["adaptive"]
    options = {"base": "hash", "num_partitions": 4, "hash_seed": 1, "rebalance_threshold": 0.3}
    by_hash = partition_strategies()["hash"].assign(
        shards, World(world_size=2, options={"num_partitions": 4, "hash_seed": 1})
    )
    assert adaptive.assign(shards, World(world_size=2, options=options)) == by_hash
    assert adaptive.num_partitions(World(world_size=2, options=options)) == 4
    rates = {0: 30.0, 1: 10.0, 2: 0.0}
    parts = adaptive.assign(shards, World(world_size=3, rates=rates))
    assert [len(part) for part in parts] == [9, 3, 0]
    assert sorted(index for part in parts for index in part) == list(range(12))


class Simulation:
    """Workers of given speeds on a coordinator, a second at a time."""

    def __init__(self, sizes: list[int], speeds: list[float], *, rebalance: bool) -> None:
        self.clock = Clock()
        self.found = StreamCoordinator(heartbeat_seconds=5, clock=self.clock)
        shards = [Shard(key=f"s{n:03}", num_samples=size) for n, size in enumerate(sizes)]
        self.sizes = {shard.key: float(size) for shard, size in zip(shards, sizes, strict=True)}
        self.found.assign(shards, len(speeds))
        self.speeds, self.rebalance = speeds, rebalance
        self.progress: dict[str, float] = dict.fromkeys(self.sizes, 0.0)
        self.worked = [0.0] * len(speeds)
        self.dead: set[int] = set()
        self.done: list[str] = []

    def run(self, kill: dict[int, int] | None = None) -> int:
        """Return the seconds until all is done; `kill` maps a second to the worker that dies."""
        for second in range(100_000):
            if len(self.done) == len(self.sizes):
                return second
            self.dead |= {rank for at, rank in (kill or {}).items() if at == second}
            for rank in range(len(self.speeds)):
                if rank not in self.dead:
                    self.work(rank)
            self.clock.now += 1
            if self.rebalance:
                for move in self.found.rebalance_if_needed():
                    self.progress[move.key] = 0.0  # begun again
        pytest.fail("the job never ended")

    def work(self, rank: int) -> None:
        left = self.speeds[rank]
        while left > 0 and (own := self.found.shards_of(rank)):
            part = min(left, self.sizes[own[0]] - self.progress[own[0]])
            self.progress[own[0]] += part
            self.worked[rank] += part
            left -= part
            if self.progress[own[0]] >= self.sizes[own[0]]:
                self.found.complete_shard(rank, own[0])
                self.done.append(own[0])
        self.found.update_worker_health(rank, int(self.worked[rank]), self.speeds[rank] - left)


def test_a_faster_worker_takes_more_and_the_job_ends_near_its_ideal():
    sizes, speeds = [100] * 120, [10.0, 10.0, 10.0, 2.0]
    fixed = Simulation(sizes, speeds, rebalance=False).run()
    adaptive = Simulation(sizes, speeds, rebalance=True)
    seconds = adaptive.run()
    ideal = sum(sizes) / sum(speeds)
    assert fixed == 1500  # the slow one alone
    assert seconds < 1.15 * ideal
    assert sorted(adaptive.done) == sorted(adaptive.sizes)


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40),
    speeds=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    seed=st.integers(0, 999),
)
def test_every_shard_is_done_once_whoever_dies(sizes, speeds, seed):
    chance = random.Random(seed)
    simulation = Simulation(sizes, [float(speed) for speed in speeds], rebalance=True)
    victims = chance.sample(range(len(speeds)), chance.randrange(len(speeds)))
    simulation.run({chance.randrange(1, 30): rank for rank in victims})
    assert sorted(simulation.done) == sorted(simulation.sizes)
