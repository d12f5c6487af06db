"""The claim protocol: the real code under a virtual clock and faults, and each rule by itself."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.claim_simulation import failures, replay_command, simulate
from tools_utilities.claim_record import ClaimRecord
from tools_utilities.errors import ClaimError, ConditionFailedError, StoreError
from tools_utilities.object_store import ObjectInfo, StoreSpec
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.shard_hold import ShardHold
from tools_utilities.shard_lease import Clock, Phase, ShardLease, Version

SEEDS = 2_000
NIGHTLY_SEEDS = 20_000
KILLING_SEEDS = 300


def test_nothing_is_lost_or_done_twice_under_faults():
    assert failures(range(SEEDS)) == ""


@pytest.mark.nightly
@pytest.mark.timeout(1_800)
def test_nothing_is_lost_or_done_twice_under_faults_at_length():
    assert failures(range(NIGHTLY_SEEDS)) == ""


def test_a_seed_replays_and_its_command_is_said():
    def finds() -> list[list[str]]:
        return [simulate(seed, lease_type=BlindClaim) for seed in range(10)]

    assert finds() == finds()
    assert any(finds())
    done = subprocess.run(
        [sys.executable, *replay_command(3).split()[1:]],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "no problem\n")


class ConflictIsLoss(ShardLease):
    """Takes 412 for a loss, though the put may have been applied."""

    def _settle(self, operation, new, first_sent, give_up):
        self.version = self._read_patiently(give_up)
        self.phase = Phase.LOST
        return self.phase


class TimeoutIsSuccess(ShardLease):
    """Takes silence for success."""

    def _settle(self, operation, new, first_sent, give_up):
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


class Blind(ShardLease):
    """Writes one operation on whatever version is there now: the read-then-write everyone writes first."""

    operation = ""

    def _write(self, operation, new):
        self.blind = operation == self.operation
        return super()._write(operation, new)

    def _put(self, new):
        if self.blind:
            self.version = Version(self.version.record, self._read().etag)
        return super()._put(new)


class BlindClaim(Blind):
    operation = "claim"


class BlindRenew(Blind):
    operation = "renew"


class BlindComplete(Blind):
    operation = "complete"


class BlindRelease(Blind):
    operation = "release"


class BlindReset(Blind):
    operation = "reset"


class NoFence(ShardLease):
    """Goes on by a ticket without asking whether the claim is still its own."""

    def adopt(self, gen):
        self.look()
        self.phase = Phase.HOLD
        return True


class GivenUpIsHeld(ShardLease):
    """Goes on working under a generation that it gave up."""

    def release(self, error=None, *, crashes=0):
        super().release(error, crashes=crashes)
        if self.record and self.record.owner == self.owner:
            done = msgspec.structs.replace(self.record, state="done", seq=self.record.seq + 1)
            self._write("complete", done)


class ResetKeepsGeneration(ShardLease):
    """Sets a shard free without a new generation."""

    def _write(self, operation, new):
        if operation == "reset":
            new = msgspec.structs.replace(new, gen=new.gen - 1)
        return super()._write(operation, new)


class ReusesBodies(ShardLease):
    """Writes the same bytes again: with content hashes as versions, a late put matches."""

    def _write(self, operation, new):
        if operation in {"renew", "release"}:
            new = msgspec.structs.replace(new, seq=0)
        if operation == "claim" and self.version.record:
            new = msgspec.structs.replace(new, gen=1, attempts=1, owner="all/the/same")
        return super()._write(operation, new)


MUTANTS = [
    *[ConflictIsLoss, TimeoutIsSuccess, NoGeneration, NoFence, GivenUpIsHeld],
    *[BlindClaim, BlindRenew, BlindComplete, BlindRelease, BlindReset, ResetKeepsGeneration],
    ReusesBodies,
]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_simulation_catches_a_broken_protocol(mutant):
    assert any(simulate(seed, lease_type=mutant) for seed in range(KILLING_SEEDS))


class LosingStore(MemoryStore):
    """Applies the next puts without a reply; may fail the next gets."""

    def __init__(self) -> None:
        super().__init__(StoreSpec(uri="memory://losing"))
        self.lost_replies = 0
        self.lost_gets = 0

    def put_if_absent(self, key, data):
        return self.answered(super().put_if_absent(key, data))

    def put_if_match(self, key, data, etag):
        return self.answered(super().put_if_match(key, data, etag))

    def answered(self, info: ObjectInfo) -> ObjectInfo:
        if self.lost_replies:
            self.lost_replies -= 1
            self.lost_gets = 3
            raise ConditionFailedError("nobody can say", unknown=True)
        return info

    def get(self, key, **options):
        if self.lost_gets:
            self.lost_gets -= 1
            raise StoreError("503", transient=True)
        return super().get(key, **options)


@pytest.fixture
def time_line():
    return TimeLine()


class TimeLine:
    def __init__(self) -> None:
        self.now = 1_000.0
        self.clock = Clock(now=lambda: self.now, sleep=self.sleep, jitter=lambda: 0.5)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_claim_whose_reply_was_lost_is_as_fresh_as_its_first_sending(time_line):
    store = LosingStore()
    lease = ShardLease(store, "k", "h/1/a", lease_seconds=10, clock=time_line.clock)
    time_line.sleep(60)  # the lease object is old, the claim is not
    store.lost_replies = 1

    assert lease.try_claim()

    assert 0 < lease.age_seconds < 5
    assert not lease.in_danger()


def test_a_renewal_whose_reply_was_lost_counts_from_its_first_sending(time_line):
    store = LosingStore()
    lease = ShardLease(store, "k", "h/1/a", lease_seconds=10, clock=time_line.clock)
    lease.try_claim()
    time_line.sleep(6)
    store.lost_replies = 1
    assert lease.renew()
    assert lease.age_seconds < 1


def test_a_look_outlasts_trouble_but_not_a_refusal(time_line):
    store = LosingStore()
    lease = ShardLease(store, "k", "h/1/a", clock=time_line.clock)
    store.lost_gets = 5
    assert lease.look() is None
    store.lost_gets = 10_000
    with pytest.raises(StoreError, match="503"):
        lease.look()
    assert store.lost_gets > 9_000


def test_a_ticket_of_an_earlier_generation_of_the_same_owner_is_refused(time_line):
    store = LosingStore()
    lease = ShardLease(store, "k", "h/1/a", clock=time_line.clock)
    assert lease.try_claim()
    lease.release()
    assert lease.try_claim()
    other = ShardLease(store, "k", "h/1/a", clock=time_line.clock)

    assert not other.adopt(1)
    assert other.adopt(2)


def test_a_completion_is_known_again_whatever_was_asked(time_line):
    store = LosingStore()
    lease = ShardLease(store, "k", "h/1/a", clock=time_line.clock)
    lease.try_claim()
    by_ticket = ShardLease(store, "k", "h/1/a", clock=time_line.clock)
    assert by_ticket.adopt(1)
    assert by_ticket.complete()

    assert not lease.renew()
    assert lease.phase is Phase.DONE


class TestHold:
    """The work stops in danger, goes on after a renewal, and ends when the lease has run out."""

    def hold(self, store: LosingStore, time_line: TimeLine) -> tuple[ShardLease, ShardHold]:
        lease = ShardLease(store, "k", "h/1/a", lease_seconds=10, clock=time_line.clock)
        assert lease.try_claim()
        # Renewals are made by the test: the thread would keep its own time.
        return lease, ShardHold(lease, renew_seconds=1e6)

    def test_work_waits_in_danger_for_the_renewal_that_comes(self, time_line):
        lease, hold = self.hold(LosingStore(), time_line)
        time_line.sleep(7.6)
        slept = []

        def sleep(seconds):
            slept.append(seconds)
            time_line.now += seconds
            if len(slept) == 3:
                lease.renew()

        lease._clock = Clock(now=time_line.clock.now, sleep=sleep)
        hold.check()

        assert len(slept) == 3
        assert lease.age_seconds < 1

    def test_work_ends_when_the_lease_has_run_out(self, time_line):
        _, hold = self.hold(LosingStore(), time_line)
        assert next(hold.each("ab")) == "a"
        time_line.sleep(7.6)
        begun = time_line.now
        with pytest.raises(ClaimError, match="could not be renewed"):
            next(hold.each("ab"))
        assert 2.3 < time_line.now - begun < 2.6

    def test_a_completed_shard_needs_no_lease(self, time_line):
        _, hold = self.hold(LosingStore(), time_line)
        hold.complete()
        time_line.sleep(1e6)
        hold.check()
