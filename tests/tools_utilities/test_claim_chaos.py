"""Batch workers that are killed and paused, before a store that fails: everything is done, once."""

import sys

import pytest

from tests.claim_chaos import Chaos, ChaosPlan


def run(plan: ChaosPlan, endpoint, make_bucket, tmp_path):
    report = Chaos(plan, endpoint, make_bucket(endpoint), tmp_path).run()
    sys.stdout.write(f"CHAOS shards={plan.num_shards} seed={plan.seed} {report}\n")
    assert (report.kills, report.pauses) == (plan.kills, plan.pauses)
    return report


@pytest.mark.slow
def test_a_little_chaos_loses_and_repeats_nothing(
    tmp_path, weed_endpoint, make_bucket, aws_environment
):
    plan = ChaosPlan(
        num_workers=2,
        num_shards=6,
        samples=48,
        kills=1,
        pauses=1,
        faults=30,
        lease_seconds=1.5,
        batch_seconds=0.2,
    )
    report = run(plan, weed_endpoint, make_bucket, tmp_path)
    assert sum(report.faults.values()) > 0


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0])
def test_chaos_at_length(tmp_path, weed_endpoint, make_bucket, aws_environment, seed):
    plan = ChaosPlan(seed=seed)
    report = run(plan, weed_endpoint, make_bucket, tmp_path)
    assert sum(report.faults.values()) >= 300
    watched = [seconds for seconds, idle in report.takeovers if idle]
    poll_seconds = min(5.0, plan.lease_seconds / 3)
    assert watched
    assert max(watched) <= 1.25 * plan.lease_seconds + poll_seconds + 2
