"""Leases that are no length of time: a record that holds one would stop every other worker."""

import math

import pytest

from tests.scripts.test_shard_manager import dataset, manager_of, run
from tools_utilities.errors import UsageError
from tools_utilities.scripts.process_shards import ProcessOptions, process_shards
from tools_utilities.scripts.shard_manager import ShardManager

__all__ = ["dataset", "run"]


@pytest.mark.parametrize("lease", ["0", "-5", "nan", "inf"])
def test_a_lease_is_a_number_of_seconds(run, dataset, lease):
    code, out, error = run("--action", "claim", "--lease", lease)

    assert (code, out) == (1, "")
    assert error.startswith(f"error: lease={float(lease)}: a number of seconds, more than 0\n")
    assert not list(dataset.rglob("claim.json"))
    with pytest.raises(UsageError, match="more than 0"):
        ShardManager(dataset, lease_seconds=float(lease))
    with pytest.raises(UsageError, match="more than 0"):
        process_shards(str(dataset), list, options=ProcessOptions(lease_seconds=float(lease)))
    assert run("--action", "claim")[0] == 0


def test_a_wait_is_a_number_too(run, dataset):
    code, _, error = run("--action", "claim", "--wait", "nan")

    assert (code, error) == (1, "error: wait=nan: a number of seconds\n")
    assert manager_of(dataset, "a").claim_shard(wait_seconds=math.inf) is not None
