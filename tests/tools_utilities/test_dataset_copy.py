"""A finished dataset copied as it is: the same files, free shards, nothing half done."""

import json
from pathlib import Path

import pytest

from tests.scripts.test_create_sharded_dataset import digest, write_tasks
from tools_utilities.dataset_copy import copy_dataset, find_finished
from tools_utilities.dataset_creation import OutputOptions, create_sharded_dataset
from tools_utilities.errors import IntegrityError, ObjectNotFoundError, StoreError, UsageError
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store
from tools_utilities.object_stores import memory
from tools_utilities.sample_source import SourceOptions
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.sharding_plan import ShardingPlan


@pytest.fixture
def made(tmp_path: Path, aws_environment: pytest.MonkeyPatch) -> Path:
    return make(tmp_path, ShardingPlan(num_shards=3, chunk_bytes=500, compression="zstd"))


def make(tmp_path: Path, plan: ShardingPlan) -> Path:
    write_tasks(tmp_path / "in.jsonl", 12)
    create_sharded_dataset(str(tmp_path / "in.jsonl"), str(tmp_path / "made"), plan)
    return tmp_path / "made"


def copy(source: Path | str, target: Path | str, tmp_path: Path) -> dict[str, int]:
    found = find_finished(str(source), SourceOptions())
    assert found is not None
    return copy_dataset(found, str(target), OutputOptions(state_dir=tmp_path / "state"))


@pytest.mark.parametrize(
    "plan",
    [
        ShardingPlan(num_shards=3, chunk_bytes=500),
        ShardingPlan(num_shards=3, layout="flat", format="parquet"),
        ShardingPlan(num_shards=2, chunk_bytes=500, format="mds"),
        ShardingPlan(num_shards=14),
        ShardingPlan(num_shards=3, chunk_bytes=300, val_fraction=0.4),
    ],
    ids=["folders", "flat", "mds", "empty shards", "train and val"],
)
def test_a_copy_has_every_file_through_a_store_and_back(tmp_path, aws_environment, plan):
    made = make(tmp_path, plan)
    uri = f"memory://copy-{tmp_path.name}/sets/one"

    there = copy(made, uri, tmp_path)
    back = copy(uri, tmp_path / "back", tmp_path)

    num_shards = plan.num_shards + plan.val_shards
    assert there == back == {"total_tasks": 12, "num_shards": num_shards}
    assert digest(tmp_path / "back") == digest(made)
    assert not list((tmp_path / "back").rglob("*.tmp"))
    assert not [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    # The command that made it finds it finished, as where it was made.
    made_again = create_sharded_dataset(str(tmp_path / "in.jsonl"), str(tmp_path / "back"), plan)
    assert made_again["total_tasks"] == 12
    assert digest(tmp_path / "back") == digest(made)


def test_claims_stay_behind(tmp_path, made):
    before = digest(made)
    manager = ShardManager(made, "a", state_dir=tmp_path / "tickets")
    manager.claim_shard(0)
    manager.claim_shard(1)
    manager.mark_completed(1)

    copy(made, tmp_path / "other", tmp_path)

    assert digest(tmp_path / "other") == before
    status = ShardManager(tmp_path / "other").get_shard_status()
    assert (status["available"], status["in_use"], status["completed"]) == (3, 0, 0)


def test_a_damaged_chunk_is_never_passed_on(tmp_path, made):
    path = made / "shard_001/chunk_0000.jsonl.zst"
    path.write_bytes(path.read_bytes()[:-1] + b"?")

    with pytest.raises(IntegrityError, match=r"shard_001/chunk_0000.jsonl.zst: its crc32c is"):
        copy(made, tmp_path / "other", tmp_path)

    assert not (tmp_path / "other/master_metadata.json").exists()
    assert not (tmp_path / "other/shard_001/chunk_0000.jsonl.zst").exists()


@pytest.mark.parametrize("name", ["shard_001/metadata.json", "master_metadata.json"])
def test_a_dataset_that_is_removed_meanwhile_gets_no_index(tmp_path, made, name):
    found = find_finished(str(made), SourceOptions())
    assert found is not None
    (made / name).unlink()

    with pytest.raises(ObjectNotFoundError, match=name):
        copy_dataset(found, str(tmp_path / "other"), OutputOptions(state_dir=tmp_path / "state"))

    assert not (tmp_path / "other/master_metadata.json").exists()


class OnceFullStore(memory.MemoryStore):
    """Refuses one chunk while it is told to; counts what it is sent."""

    refusing = True

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.sent: list[str] = []

    def put(self, key: str, data: bytes) -> ObjectInfo:
        if self.refusing and "shard_002/chunk" in key:
            raise StoreError(f"{key}: 507", status=507)
        self.sent.append(key)
        return super().put(key, data)


def test_a_copy_that_failed_goes_on(tmp_path, made, monkeypatch):
    store = OnceFullStore(StoreSpec(uri=f"memory://full-{tmp_path.name}"))
    monkeypatch.setitem(memory._STORES, store.spec.uri, store)
    with pytest.raises(StoreError, match="507"):
        copy(made, f"{store.spec.uri}/set", tmp_path)
    assert not [key for key in store.sent if key.endswith("metadata.json")]
    first, store.refusing = set(store.sent), False
    assert first

    copy(made, f"{store.spec.uri}/set", tmp_path)

    assert store.sent[-1] == "set/master_metadata.json"
    assert len(store.sent) == len(set(store.sent))  # nothing twice
    sent = len(store.sent)
    copy(made, f"{store.spec.uri}/set", tmp_path)
    assert len(store.sent) == sent


def test_another_dataset_is_never_written_over(tmp_path, made):
    write_tasks(tmp_path / "few.jsonl", 5)
    create_sharded_dataset(str(tmp_path / "few.jsonl"), str(tmp_path / "few"), ShardingPlan())
    before = digest(tmp_path / "few")

    with pytest.raises(UsageError, match="holds another dataset"):
        copy(made, tmp_path / "few", tmp_path)

    assert digest(tmp_path / "few") == before


def test_the_splits_of_a_copy_go_on_after_the_first_index(tmp_path, aws_environment):
    made = make(tmp_path, ShardingPlan(num_shards=2, val_fraction=0.4))
    target = tmp_path / "there"
    copy(made, target, tmp_path)
    (target / "val" / "master_metadata.json").unlink()  # as a kill between the two leaves it

    copy(made, target, tmp_path)

    assert digest(target) == digest(made)


def test_splits_are_never_mixed_with_another_dataset(tmp_path, aws_environment):
    split = make(tmp_path, ShardingPlan(num_shards=2, val_fraction=0.4))
    create_sharded_dataset(str(tmp_path / "in.jsonl"), str(tmp_path / "one"), ShardingPlan())

    for source, target in ((split, tmp_path / "one"), (tmp_path / "one", split)):
        before = digest(target)
        with pytest.raises(UsageError, match="holds another dataset"):
            copy(source, target, tmp_path)
        assert digest(target) == before


def test_splits_beside_other_data_are_no_finished_dataset(tmp_path, aws_environment):
    made = make(tmp_path, ShardingPlan(num_shards=2, val_fraction=0.4))
    write_tasks(made / "more.jsonl", 3)

    assert find_finished(str(made), SourceOptions()) is None
    (made / "more.jsonl").unlink()
    assert find_finished(str(made), SourceOptions()) is not None
    (made / "more").mkdir()
    write_tasks(made / "more" / "more.jsonl", 3)
    assert find_finished(str(made), SourceOptions()) is None


@pytest.mark.parametrize("place", ["in.jsonl", "none", "plain", "hf://org/set", "https://h/x"])
def test_what_is_no_finished_dataset(tmp_path, made, place):
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/a.jsonl").write_text(json.dumps({"id": 1}) + "\n")
    uri = place if "://" in place else str(tmp_path / place)

    assert find_finished(uri, SourceOptions()) is None


def test_it_is_found_in_a_store(tmp_path, made):
    assert open_store(StoreSpec(uri=f"file://{made}")).head("master_metadata.json").size_bytes
    assert find_finished(f"file://{made}", SourceOptions()) is not None
