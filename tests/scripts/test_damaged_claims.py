"""A damaged claim record stops its own shard alone: nothing is guessed from it, and it is never counted done."""

import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from tests.scripts.test_process_shards import committed, dataset
from tests.scripts.test_shard_manager import make_dataset, manager_of, run
from tests.tools_utilities.test_claim_search import NUM_SHARDS, CountingStore
from tools_utilities.errors import ClaimError, DamagedClaimError
from tools_utilities.object_store import read_object
from tools_utilities.object_stores._bodies import BytesBody
from tools_utilities.scripts.process_shards import ProcessOptions, process_shards
from tools_utilities.scripts.process_shards import main as process
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.shard_lease import Clock, ShardLease

__all__ = ["dataset", "run"]

RECORD = b'{"gen":1,"lease_seconds":30,"owner":"h/1/u","seq":0,"state":"leased"}'
DAMAGED = {
    "empty": b"",
    "cut": RECORD[:30],
    "list": b"[]",
    "fields": b'{"gen": 1}',
    "state": RECORD.replace(b"leased", b"odd"),
    "text": b"\xff\xfe\x00",
    "deep": b'{"a":' * 5000,
    "null": RECORD.replace(b":30", b":null"),
}


def record_of(dataset: Path, shard_id: int) -> Path:
    return dataset / f"shard_{shard_id:03d}/claim.json"


@pytest.mark.parametrize("damage", DAMAGED.values(), ids=DAMAGED)
def test_nothing_is_guessed_from_what_is_no_record(damage):
    store = CountingStore(1)
    store.put("shard_000/claim.json", damage)
    lease = ShardLease(store, "shard_000/claim.json", "h/1/u")

    for act in (lease.look, lease.try_claim, lease.reset, lambda: lease.adopt(1)):
        with pytest.raises(DamagedClaimError, match="not a claim record"):
            act()
        assert not lease.claimable()
        assert not lease.claim_seen()

    assert read_object(store, "shard_000/claim.json")[0] == damage


def test_the_other_shards_are_claimed_and_the_damaged_one_is_told_once(dataset, caplog):
    damage = DAMAGED["cut"]
    record_of(dataset, 2).write_bytes(damage)
    manager = manager_of(dataset, "a")

    with caplog.at_level(logging.WARNING):
        claims = [manager.claim_shard(2 if number % 2 else None) for number in range(7)]
        for claim in claims:
            assert claim is not None
            manager.mark_completed(claim.shard_id)
        for _ in range(2):
            with pytest.raises(
                DamagedClaimError, match=r"shard_002/claim\.json: not a claim record"
            ):
                manager.claim_shard()

    assert sorted(claim.shard_id for claim in claims if claim) == [0, 1, 3, 4, 5, 6, 7]
    [told] = [line for line in caplog.messages if "claim.json" in line]
    assert "--action reset --shard_id 2 --force" in told
    assert (manager.open_shards(), list(manager.damaged_shards())) == ([], [2])
    assert record_of(dataset, 2).read_bytes() == damage


def test_so_it_is_with_records_that_are_listed_and_read_several_at_a_time(tmp_path):
    store = CountingStore()
    others = ShardManager("memory://x", "b", store=store, state_dir=tmp_path / "b")
    for number in range(NUM_SHARDS):
        others.claim_shard(number)
        others.mark_failed(number)
    damaged = {3, 17, 39}
    for number in damaged:
        store.put(f"shard_{number:03d}/claim.json", b"{}")
    manager = ShardManager("memory://x", "a", store=store, state_dir=tmp_path / "a")

    claimed = {
        claim.shard_id
        for _ in range(NUM_SHARDS - len(damaged))
        if (claim := manager.claim_shard()) is not None
    }

    assert claimed == set(range(NUM_SHARDS)) - damaged
    assert manager.claim_shard() is None  # others may hold what is left: it may still be freed
    assert set(manager.damaged_shards()) == damaged


def test_a_batch_job_works_the_others_and_ends_with_what_to_do(dataset, capsys, run):
    record_of(dataset, 3).write_bytes(b'{"gen": 7')
    job = ["--dataset_dir", str(dataset), "--function", "user_code:double", "--json"]

    assert process(job) == 1

    printed = capsys.readouterr()
    summary = json.loads(printed.out)
    assert summary["shards"] == [0, 1, 2, 4, 5, 6, 7]
    assert "not a claim record" in summary["failed"]["3"]
    _, line, _ = run("--action", "status")
    assert line == "Shards: 8 total, 0 available, 0 in use, 7 completed, 1 damaged\n"
    assert "\n003    damaged" in run("--action", "status", "--verbose")[1]
    status = json.loads(run("--action", "status", "--json")[1])
    assert status["damaged"] == 1
    row = status["shards"][3]
    assert (row["status"], row["owner"], row["output"]) == ("damaged", None, None)
    assert "who holds the shard, or whether it is done, cannot be told" in row["last_error"]
    assert run("--action", "sweep")[0] == 0

    code, _, told = run("--action", "claim")
    assert code == 1
    assert "--shard_id 3 --force" in told
    assert run("--action", "reset", "--shard_id", "3")[0] == 1
    assert record_of(dataset, 3).read_bytes() == b'{"gen": 7'
    assert run("--action", "reset", "--shard_id", "3", "--force")[0] == 0
    assert process(job) == 0
    assert sorted(row["id"] for row in committed(dataset)) == list(range(100))


@pytest.mark.parametrize("noticed", ["by the commit", "by a renewal"])
def test_a_record_that_is_damaged_in_mid_work_costs_its_shard_alone(dataset, noticed):
    lease = 30.0 if noticed == "by the commit" else 0.6

    def work(samples: list[dict[str, Any]]) -> list[int]:
        if any(sample["id"] == 3 for sample in samples):
            record_of(dataset, 3).write_bytes(b"{}")
            time.sleep(lease if lease < 1 else 0)
        return [sample["id"] for sample in samples]

    summary = process_shards(str(dataset), work, options=ProcessOptions(lease_seconds=lease))

    assert list(summary.failed) == [3]
    assert "not a claim record" in summary.failed[3]
    assert summary.lost == ()
    assert sorted(summary.shards) == [0, 1, 2, 4, 5, 6, 7]
    assert record_of(dataset, 3).read_bytes() == b"{}"


def test_a_holder_whose_record_was_reset_by_force_commits_nothing(dataset):
    holder, operator, next_one = (manager_of(dataset, name) for name in "abc")
    claim = holder.claim_shard(4)
    assert claim is not None
    record_of(dataset, 4).write_bytes(b"")

    operator.reset(4, force=True)

    freed = json.loads(record_of(dataset, 4).read_bytes())
    assert (freed["state"], freed["gen"] > claim.gen) == ("free", True)
    with pytest.raises(ClaimError, match="another worker holds it"):
        holder.mark_completed(4)
    again = next_one.claim_shard(4)
    assert again is not None
    assert (again.shard_id, again.gen) == (4, freed["gen"] + 1)
    operator.reset(4)
    record_of(dataset, 4).write_bytes(b"")
    operator.reset(4, force=True)


def test_waiting_for_others_is_no_busy_loop_and_what_is_repaired_is_taken(tmp_path):
    folder = make_dataset(tmp_path, num_shards=2)
    others = manager_of(folder, "b")
    assert others.claim_shard(0) is not None
    assert others.claim_shard(1) is not None
    slept: list[float] = []
    acts: list[Any] = [
        lambda: record_of(folder, 1).write_bytes(b"{}"),
        lambda: None,
        lambda: manager_of(folder, "c").reset(1, force=True),
    ]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        acts.pop(0)()

    manager = manager_of(folder, "a", clock=Clock(now=lambda: sum(slept), sleep=sleep))

    claim = manager.claim_shard(wait_seconds=100, poll_seconds=5)

    assert claim is not None
    assert claim.shard_id == 1
    assert slept == [5, 5, 5]


class GlitchStore(CountingStore):
    """Garbles the first reading of each record."""

    def get(self, key: str, **span: Any) -> BytesBody:
        body = super().get(key, **span)
        if key.endswith("claim.json") and self.counted["get claim"] % 2:
            body.close()
            return BytesBody(body.info, b"{")
        return body


def test_a_reading_that_is_garbled_on_its_way_is_made_again(tmp_path):
    store = GlitchStore(2)
    first, second = (
        ShardManager("memory://x", name, store=store, state_dir=tmp_path / name) for name in "ab"
    )
    claim = first.claim_shard(0)
    assert claim is not None
    first.mark_failed(0, "why")

    status = second.get_shard_status()

    assert (status["damaged"], status["shards"][0]["last_error"]) == (0, "why")


def test_the_damaged_shard_of_an_unknown_job_counts_as_in_use(tmp_path):
    dataset = make_dataset(tmp_path, samples=4, num_shards=1)
    process_shards(str(dataset), len_of)
    record_of(dataset, 0).write_bytes(b"")

    with pytest.raises(ValueError, match="another job has results here"):
        process_shards(str(dataset), other)


def len_of(samples: list[Any]) -> list[int]:
    return [1] * len(samples)


def other(samples: list[Any]) -> list[int]:
    return [2] * len(samples)
