"""The documented health of workers that share nothing but claims: real claims, a watch with its own clock."""

from pathlib import Path
from typing import Any

import pytest

from tests.scripts.test_shard_manager import make_dataset, manager_of
from tools_utilities.scripts.shard_actions import watched_status
from tools_utilities.shard_status import status_table
from tools_utilities.worker_health import ClaimWatch, health_word

LEASE = 30.0


class Job:
    """Workers on a dataset of shards of ten samples, and somebody who watches them."""

    def __init__(self, folder: Path, names: str) -> None:
        self.now = 0.0
        self.dataset = make_dataset(folder, samples=120, num_shards=12)
        self.workers = {name: manager_of(self.dataset, name, lease_seconds=LEASE) for name in names}
        self.watcher = manager_of(self.dataset, "watcher")
        self.watch = ClaimWatch(clock=lambda: self.now)
        self.held: dict[str, int] = {}

    def claim(self, *names: str) -> None:
        for name in names:
            claim = self.workers[name].claim_shard()
            assert claim is not None
            self.held[name] = claim.shard_id

    def complete(self, *names: str) -> None:
        for name in names:
            self.workers[name].mark_completed(self.held.pop(name))

    def renew(self, *names: str) -> None:
        for name in names:
            self.workers[name].renew(self.held[name])

    def states(self) -> dict[str, str]:
        found = self.watch.look(self.watcher.get_shard_status())
        return {one.worker: one.health.status for one in found}

    def health(self, name: str):
        found = self.watch.look(self.watcher.get_shard_status())
        return next(one.health for one in found if one.worker == name)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, "abc")


def test_a_worker_is_unknown_until_a_claim_of_its_changes(job):
    job.claim("a")
    assert job.states() == {"a": "unknown"}
    job.now = 5.0
    job.renew("a")
    assert job.states() == {"a": "idle"}  # heard, and nothing done yet
    assert job.health("a").last_heartbeat == 5.0


def test_silence_for_a_lease_is_a_failure_and_a_renewal_ends_it(job):
    job.claim("a", "b")
    job.states()
    job.now = LEASE
    job.renew("b")
    assert job.states() == {"a": "unknown", "b": "idle"}
    job.now = LEASE + 0.1
    assert job.states() == {"a": "failed", "b": "idle"}
    job.renew("a")
    assert job.states() == {"a": "idle", "b": "idle"}


def test_who_is_below_the_threshold_of_the_median_is_slow(job):
    job.claim("a", "b", "c")
    job.states()
    for second in range(1, 4):  # a and b complete a shard each second, c one in three
        job.now = float(second)
        job.complete("a", "b")
        job.claim("a", "b")
        if second == 3:
            job.complete("c")
            job.claim("c")
        else:
            job.renew("c")
        job.states()
    assert job.states() == {"a": "active", "b": "active", "c": "slow"}
    health = job.health("a")
    assert (health.rank, health.samples_processed) == (0, 30)
    assert health.average_throughput == pytest.approx(10.0)
    assert job.health("c").average_throughput == pytest.approx(10 / 3)


def test_who_holds_nothing_is_idle_however_long(job):
    job.claim("a")
    job.states()
    job.now = 1.0
    job.complete("a")
    assert job.states() == {"a": "idle"}
    job.now = 1000.0
    assert job.states() == {"a": "idle"}


def test_a_shard_taken_over_counts_for_whoever_completes_it(job):
    job.claim("a")
    job.states()
    job.watcher.reset(job.held["a"])  # as an operator does, whose worker is gone
    assert job.workers["b"].claim_shard(job.held["a"]) is not None
    job.held["b"] = job.held["a"]
    job.now = 2.0
    job.complete("b")
    assert job.states() == {"a": "idle", "b": "idle"}
    assert (job.health("a").samples_processed, job.health("b").samples_processed) == (0, 10)


def test_a_followed_status_shows_the_workers(job):
    painted: list[dict[str, Any]] = []

    def work(_seconds: float) -> None:
        job.now += 2.0
        if job.held:
            job.complete("a")
        else:
            job.claim("a")

    job.claim("a")
    last = watched_status(job.watcher, painted.append, clock=lambda: job.now, sleep=work)
    assert last["completed"] == last["total"] == 12
    [worker] = last["workers"]
    assert (worker["worker"], worker["health"]["samples_processed"]) == ("a", 120)
    assert "worker a: active, 20 samples, 3.8 a second" in status_table(painted[4])


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("failed", {"silent_intervals": 3.01}),
        ("active", {"silent_intervals": 3.0}),
        ("unknown", {"heard": False}),
        ("idle", {"has_work": False}),
        ("idle", {"samples": 0}),
        ("slow", {"is_slow": True}),
    ],
)
def test_the_documented_words(word, told):
    usual = {
        "silent_intervals": 0.0, "heard": True, "has_work": True, "samples": 1, "is_slow": False,
    }  # fmt: skip
    assert health_word(**{**usual, **told}) == word
