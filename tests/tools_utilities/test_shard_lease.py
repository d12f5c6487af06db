"""The claim protocol: the real code under a virtual clock and faults, and each rule by itself."""

import msgspec
import pytest

from tests.claim_simulation import simulate
from tools_utilities.claim_record import ClaimRecord
from tools_utilities.shard_lease import Phase, ShardLease, Version

SEEDS = 2_000
NIGHTLY_SEEDS = 20_000


def test_nothing_is_lost_or_done_twice_under_faults():
    failed = {seed: problems for seed in range(SEEDS) if (problems := simulate(seed))}

    assert failed == {}


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_nothing_is_lost_or_done_twice_under_faults_at_length():
    failed = {seed: problems for seed in range(NIGHTLY_SEEDS) if (problems := simulate(seed))}

    assert failed == {}


class ConflictIsLoss(ShardLease):
    """Takes 412 for a loss, though the put may have been applied."""

    def _settle(self, operation, new, give_up):
        self.version = self._read_patiently(give_up)
        self.phase = Phase.LOST
        return self.phase


class TimeoutIsSuccess(ShardLease):
    """Takes silence for success."""

    def _settle(self, operation, new, give_up):
        return self._landed(operation, Version(new, self.version.etag), self._clock.now())


class NoGeneration(ShardLease):
    """Takes over under the old generation."""

    def try_claim(self):
        self.look()
        if not self.claimable():
            return False
        before = self.version.record
        claimed = ClaimRecord(
            gen=before.gen if before else 1,
            owner=self.owner,
            state="leased",
            seq=0,
            lease_seconds=6.0,
        )
        return self._write("claim", claimed) is Phase.HOLD


class BlindComplete(ShardLease):
    """Completes on whatever version is there now: the read-then-write everyone writes first."""

    def complete(self, output=None, num_samples=None, checksum=None):
        record = self.look()
        if record is None or self.phase is not Phase.HOLD:
            return False
        done = msgspec.structs.replace(record, state="done", seq=record.seq + 1)
        return self._write("complete", done) is Phase.DONE


@pytest.mark.parametrize("mutant", [ConflictIsLoss, TimeoutIsSuccess, NoGeneration, BlindComplete])
def test_the_simulation_catches_a_broken_protocol(mutant):
    assert any(simulate(seed, lease_type=mutant) for seed in range(300))
