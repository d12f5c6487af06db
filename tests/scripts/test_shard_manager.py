"""ShardManager and its script: claims as documented, tickets, fields for people, exit codes."""

import json
import socket
import stat
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from tools_utilities.errors import ClaimError, ConditionFailedError, UsageError
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store
from tools_utilities.object_stores import memory
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.scripts.create_sharded_dataset import create_sharded_dataset
from tools_utilities.scripts.shard_manager import ShardManager, main
from tools_utilities.shard_lease import Clock
from tools_utilities.sharding_plan import ShardingPlan


def make_dataset(folder: Path, *, samples: int = 100, num_shards: int = 8) -> Path:
    """Write a sharded dataset with chunks of a few samples."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "tasks.jsonl"
    source.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(samples)))
    plan = ShardingPlan(num_shards=num_shards, chunk_bytes=40)
    create_sharded_dataset(str(source), str(folder / "sharded"), plan)
    return folder / "sharded"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return make_dataset(tmp_path)


@pytest.fixture
def run(dataset: Path, aws_environment, capsys):
    """Run the script on the dataset; returns (code, stdout, stderr)."""

    def act(*arguments: str) -> tuple[int, str, str]:
        code = main(["--dataset_dir", str(dataset), *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return act


def manager_of(dataset: Path, worker: str | None = None, **options) -> ShardManager:
    return ShardManager(dataset, worker, state_dir=dataset.parent / f"state-{worker}", **options)


def shown(dataset: Path, shard_id: int) -> dict[str, Any]:
    text = (dataset / f"shard_{shard_id:03d}/metadata.json").read_text()
    return cast("dict[str, Any]", json.loads(text))


def test_a_claim_answers_as_documented(dataset):
    manager = manager_of(dataset, "worker_3")

    shard = manager.claim_shard(preferred_shard_id=5)

    assert shard is not None
    assert (shard.shard_id, shard["shard_id"], shard.num_samples) == (5, 5, 12)
    assert list(shard["chunks"]) == [
        f"file://{dataset}/shard_005/{chunk['file']}" for chunk in shown(dataset, 5)["chunks"]
    ]
    assert all(Path(uri.removeprefix("file://")).is_file() for uri in shard["chunks"])
    with pytest.raises(KeyError):
        shard["status"]


def test_a_taken_preferred_shard_gives_another(dataset):
    manager_of(dataset, "a").claim_shard(5)

    other = manager_of(dataset, "b").claim_shard(5)

    assert other is not None
    assert other.shard_id == 0


def test_an_unknown_preferred_shard_is_refused(dataset):
    with pytest.raises(UsageError, match="no shard 8"):
        manager_of(dataset, "a").claim_shard(8)


def test_metadata_is_rewritten_for_people_and_master_never(dataset):
    master = (dataset / "master_metadata.json").read_bytes()
    golden = shown(dataset, 2)
    manager = manager_of(dataset, "machine1_host2", wall_clock=lambda: 0.0)

    manager.claim_shard(2)
    claimed = shown(dataset, 2)
    manager.mark_completed(2)
    completed = shown(dataset, 2)

    epoch = "1970-01-01T00:00:00+00:00"
    assert claimed == golden | {
        "status": "in_use",
        "assigned_to": "machine1_host2",
        "started_at": epoch,
    }
    assert completed == claimed | {"status": "completed", "completed_at": epoch}
    assert (dataset / "master_metadata.json").read_bytes() == master


def test_a_failed_shard_is_free_again_and_keeps_the_reason(dataset):
    manager = manager_of(dataset, "a")
    manager.claim_shard(1)

    manager.mark_failed(1, "out of memory")

    row = manager.get_shard_status()["shards"][1]
    assert (row["status"], row["assigned_to"]) == ("available", None)
    assert (row["last_error"], row["attempts"]) == ("out of memory", 1)
    assert shown(dataset, 1)["started_at"] is None
    again = manager_of(dataset, "b").claim_shard(1)
    assert again is not None
    assert again.shard_id == 1


def test_only_the_holder_completes_or_fails(dataset):
    manager_of(dataset, "a").claim_shard(0)
    other = manager_of(dataset, "b")

    with pytest.raises(ClaimError, match="holds no claim"):
        other.mark_completed(0)
    with pytest.raises(ClaimError, match="holds no claim"):
        other.mark_failed(0)


def test_completing_twice_is_one_completion_also_from_another_process(dataset):
    first = manager_of(dataset, "a")
    first.claim_shard(0)
    first.mark_completed(0, output="out/x")
    before = (dataset / "shard_000/claim.json").read_bytes()

    first.mark_completed(0)
    manager_of(dataset, "a").mark_completed(0)

    assert (dataset / "shard_000/claim.json").read_bytes() == before
    with pytest.raises(ClaimError, match="completed already") as refused:
        manager_of(dataset, "a").mark_failed(0)
    assert refused.value.hint.endswith("--action reset --force.")  # without it a reset is refused


def test_empty_shards_are_never_handed_out(tmp_path):
    dataset = make_dataset(tmp_path, samples=5, num_shards=8)
    manager = manager_of(dataset, "a")

    claimed = [claim.shard_id for _ in range(8) if (claim := manager.claim_shard())]

    assert (claimed, manager.manifest.num_samples) == ([0, 1, 2, 3, 4], 5)
    status = manager.get_shard_status()
    assert (status["in_use"], status["completed"], status["available"]) == (5, 3, 0)


def test_the_default_worker_is_this_host_and_may_be_the_jobs_host(run, dataset):
    run("--action", "claim", "--shard_id", "0")
    run("--action", "claim", "--shard_id", "1", "--machine_id", "4", "--host_id", "2")

    assert shown(dataset, 0)["assigned_to"] == socket.gethostname()
    assert shown(dataset, 1)["assigned_to"] == "machine4_host2"


def test_claim_then_complete_in_other_processes_by_the_ticket(run, dataset, tmp_path):
    assert run("--action", "claim", "--shard_id", "3") == (0, "Claimed shard 3\n", "")

    (ticket,) = (tmp_path / "home/.local/state/quark/claims").iterdir()
    assert stat.S_IMODE(ticket.stat().st_mode) == 0o600
    assert set(json.loads(ticket.read_text())) == {"gen", "owner", "version"}
    assert run("--action", "renew", "--shard_id", "3")[:2] == (0, "Renewed shard 3\n")
    assert run("--action", "complete", "--shard_id", "3")[:2] == (0, "Completed shard 3\n")
    assert run("--action", "complete", "--shard_id", "3")[0] == 0
    assert shown(dataset, 3)["status"] == "completed"


def test_a_ticket_may_be_carried_to_another_machine(run, tmp_path):
    run("--action", "claim", "--shard_id", "3")
    (ticket,) = (tmp_path / "home/.local/state/quark/claims").iterdir()
    moved = ticket.rename(tmp_path / "ticket.json")

    assert run("--action", "fail", "--shard_id", "3")[0] == 4
    code, _, _ = run(
        "--action", "fail", "--shard_id", "3", "--error", "bad", "--ticket", str(moved)
    )
    status = json.loads(run("--action", "status", "--json")[1])

    assert code == 0
    assert status["shards"][3]["last_error"] == "bad"


def test_exit_codes(run, dataset):
    for number in range(8):
        assert run("--action", "claim")[0] == 0, number
    assert run("--action", "claim") == (3, "No shard available\n", "")
    assert run("--action", "complete")[0] == 1
    assert "needs --shard_id" in run("--action", "complete")[2]
    assert run("--action", "complete", "--shard_id", "99")[0] == 1
    with pytest.raises(SystemExit, match="1"):
        run("--action", "dance")
    run("--action", "reset", "--shard_id", "0")
    code, _, error = run("--action", "complete", "--shard_id", "0")
    assert code == 4
    assert "error: shard 0: this machine holds no claim on it" in error


def test_a_folder_that_is_no_dataset_is_an_error(tmp_path, capsys):
    assert main(["--dataset_dir", str(tmp_path), "--action", "status"]) == 1
    assert "no master_metadata.json" in capsys.readouterr().err


def test_a_stale_ticket_is_not_the_owner(run, dataset):
    run("--action", "claim", "--shard_id", "0")
    manager = manager_of(dataset, "operator")
    manager.reset(0)
    manager.claim_shard(0)

    code, out, error = run("--action", "complete", "--shard_id", "0")

    assert (code, out) == (4, "")
    assert "another worker holds it now" in error
    assert shown(dataset, 0)["assigned_to"] == "operator"


def test_status_is_one_line_json_or_a_table(run):
    run("--action", "claim", "--shard_id", "0", "--worker_id", "w\x1b[31m1")
    run("--action", "claim", "--shard_id", "1")
    run("--action", "complete", "--shard_id", "1")

    line = run("--action", "status")[1]
    table = run("--action", "status", "--verbose")[1]
    status = json.loads(run("--action", "status", "--json")[1])

    assert line == "Shards: 8 total, 6 available, 1 in use, 1 completed\n"
    assert table.startswith(line)
    assert table.splitlines()[1].split()[:5] == ["shard", "status", "assigned", "to", "owner"]
    cells = table.splitlines()[2].split()
    assert cells[:3] == ["000", "in_use", "w\\x1b[31m1"]
    assert cells[3].startswith(f"{socket.gethostname()}/")
    assert "\x1b" not in table
    assert (status["total"], status["available"]) == (8, 6)
    row = status["shards"][0]
    assert row["owner"].split("/")[0] == socket.gethostname()
    assert 0 <= row["age_seconds"] < 60
    assert row["lease_seconds"] == 86_400


def test_watch_ends_when_all_is_completed(run):
    for number in range(8):
        run("--action", "claim", "--shard_id", str(number))
        run("--action", "complete", "--shard_id", str(number))

    code, out, _ = run("--action", "status", "--watch")

    assert code == 0
    assert out.splitlines()[0] == "Shards: 8 total, 0 available, 0 in use, 8 completed"


def test_watch_tells_what_happens_until_then(run, dataset, capsys):
    manager = manager_of(dataset, "a")
    for number in range(7):
        manager.claim_shard(number)
        manager.mark_completed(number)

    def finish() -> None:
        manager.claim_shard(7)
        manager.mark_completed(7)

    later = threading.Timer(0.5, finish)
    later.start()
    code, out, error = run("--action", "status", "--watch", "--json")
    later.join()

    assert code == 0
    assert json.loads(out)["completed"] == 8
    assert error.startswith("Shards: 8 total, 1 available, 0 in use, 7 completed\n")


def test_a_lease_that_runs_out_is_taken_then_and_not_a_poll_later(dataset):
    now = [0.0]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    clock = Clock(now=lambda: now[0], sleep=sleep)
    holder = manager_of(dataset, "a", lease_seconds=6)
    for number in range(8):
        holder.claim_shard(number)

    taken = manager_of(dataset, "b", clock=clock).claim_shard(wait_seconds=100, poll_seconds=5)

    assert taken is not None
    assert slept == [5.0, 2.5]


def test_reset_frees_a_held_shard_and_a_completed_one_only_by_force(run, dataset):
    run("--action", "claim", "--shard_id", "0")
    assert run("--action", "reset", "--shard_id", "0") == (0, "Reset shard 0\n", "")
    run("--action", "claim", "--shard_id", "0")
    run("--action", "complete", "--shard_id", "0")

    refused, _, error = run("--action", "reset", "--shard_id", "0")
    forced = run("--action", "reset", "--shard_id", "0", "--force")[0]

    assert (refused, forced) == (4, 0)
    assert "--force" in error
    assert shown(dataset, 0)["status"] == "available"
    assert json.loads((dataset / "shard_000/claim.json").read_text())["gen"] == 4


def test_wait_takes_an_expired_lease(run, dataset):
    manager_of(dataset, "gone", lease_seconds=0.2).claim_shard(0)
    for number in range(1, 8):
        run("--action", "claim", "--shard_id", str(number))
    assert run("--action", "claim", "--lease", "0.2")[0] == 3

    taken = run("--action", "claim", "--lease", "0.2", "--wait", "5")

    assert taken[:2] == (0, "Claimed shard 0\n")


def test_waiting_ends_at_once_when_everything_is_done(dataset):
    slept: list[float] = []
    clock = Clock(now=lambda: 0.0, sleep=slept.append)
    manager = manager_of(dataset, "a", clock=clock)
    for number in range(8):
        manager.claim_shard(number)
        manager.mark_completed(number)

    assert manager.claim_shard(wait_seconds=1e9) is None
    assert slept == []


class YesStore(MemoryStore):
    """Accepts every conditional put, as some test doubles and old gateways do."""

    def put_if_absent(self, key, data):
        return self.put(key, data)

    def put_if_match(self, key, data, etag):
        return self.put(key, data)


class CreateOnlyStore(MemoryStore):
    """Keeps If-None-Match but ignores If-Match."""

    def put_if_match(self, key, data, etag):
        return self.put(key, data)


class ConflictStore(MemoryStore):
    """Answers 409 once per record, then behaves; applies the put it complained of, or not."""

    def __init__(self, spec, *, applies: bool) -> None:
        super().__init__(spec)
        self.applies = applies
        self.complained: set[str] = set()

    def put_if_absent(self, key, data):
        if key.endswith("claim.json") and key not in self.complained:
            self.complained.add(key)
            if self.applies:
                super().put_if_absent(key, data)
            raise ConditionFailedError(f"{key}: 409 ConditionalRequestConflict", status=409)
        return super().put_if_absent(key, data)


def copied(dataset: Path, store: ObjectStore) -> ObjectStore:
    source = open_store(StoreSpec(uri=f"file://{dataset}"))
    for info in source.list(""):
        store.put(info.key, b"".join(source.get(info.key)))
    return store


@pytest.mark.parametrize("kind", [YesStore, CreateOnlyStore])
def test_b40_a_store_that_ignores_conditions_is_refused_at_start(
    dataset, kind, monkeypatch, capsys
):
    store = copied(dataset, kind(StoreSpec(uri="memory://yes")))
    monkeypatch.setitem(memory._STORES, "memory://yes", store)

    with pytest.raises(UsageError, match="cannot hold claims"):
        manager_of(dataset, "a", store=store).claim_shard()
    assert main(["--dataset_dir", "memory://yes", "--action", "claim"]) == 1

    assert "cannot hold claims" in capsys.readouterr().err
    keys = [info.key for info in store.list("")]
    assert not any("claim.json" in key or "probe" in key for key in keys)


@pytest.mark.parametrize("applies", [True, False])
def test_b40_a_conflict_answered_once_succeeds_after_reading_again(dataset, applies):
    store = copied(dataset, ConflictStore(StoreSpec(uri="memory://409"), applies=applies))
    manager = manager_of(dataset, "a", store=store)

    claims = [manager.claim_shard() for _ in range(9)]

    assert [claim and claim.shard_id for claim in claims] == [*range(8), None]
