"""Case B43 (c): several writers add to a finished dataset; merging once or twice gives one index of all."""

import json
import multiprocessing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.scripts.test_create_sharded_dataset import samples_of, write_tasks
from tools_utilities.dataset_additions import merge_additions, reserve
from tools_utilities.dataset_creation import OutputOptions, create_sharded_dataset, merge_dataset
from tools_utilities.errors import DataError, UsageError
from tools_utilities.manifest import Chunk, Manifest, Shard, encode_manifest, load_manifest
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.scripts.create_sharded_dataset import main
from tools_utilities.scripts.shard_manager import ShardManager
from tools_utilities.sharding_plan import ShardingPlan

FOLDERS = ShardingPlan(num_shards=2)
FLAT = ShardingPlan(num_shards=2, layout="flat")


def rows(folder: Path, name: str, first: int, count: int) -> str:
    path = folder / name
    path.write_text("".join(f'{{"id": {number}}}\n' for number in range(first, first + count)))
    return str(path)


def index_of(out: Path) -> dict[str, Any]:
    for name in ("master_metadata.json", "manifest.json"):
        if (out / name).exists():
            found: dict[str, Any] = json.loads((out / name).read_text())
            return found
    raise FileNotFoundError(out)


def ids(out: Path) -> list[int]:
    manifest = load_manifest(open_store(StoreSpec(uri=f"file://{out}")), "")
    assert manifest is not None
    return [
        json.loads(line)["id"]
        for key in manifest.chunks
        for line in (out / key).read_text().splitlines()
    ]


@pytest.mark.parametrize("plan", [FOLDERS, FLAT], ids=["folders", "flat"])
def test_b43c_two_writers_add_and_two_merges_give_one_index(tmp_path: Path, plan: Any) -> None:
    out = tmp_path / "out"
    create_sharded_dataset(rows(tmp_path, "ab.jsonl", 0, 10), str(out), plan)
    one = ShardingPlan(num_shards=1, layout=plan.layout)
    before = index_of(out)

    added = [
        create_sharded_dataset(rows(tmp_path, f"{n}.jsonl", n, 5), str(out), one, append=True)
        for n in (10, 15)
    ]
    assert index_of(out) == before  # nothing is announced before it is merged
    first = merge_dataset(str(out))
    merged = index_of(out)
    again = merge_dataset(str(out))

    assert added == [{"total_tasks": 5, "num_shards": 1}] * 2
    assert first == again == {"total_tasks": 20, "num_shards": 4}
    assert index_of(out) == merged
    assert [shard["shard_id"] for shard in merged["shards"]] == [0, 1, 2, 3]
    assert sorted(ids(out)) == list(range(20))
    total = merged.get("total_tasks", merged.get("num_samples"))
    manifest = load_manifest(open_store(StoreSpec(uri=f"file://{out}")), "")
    assert manifest is not None
    assert total == sum(shard.num_samples for shard in manifest.shards) == 20
    assert sorted(row["id"] for row in samples_of(out)) == list(range(20))


def test_added_shards_are_claimed_like_the_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    create_sharded_dataset(rows(tmp_path, "ab.jsonl", 0, 10), str(out), FOLDERS)
    create_sharded_dataset(rows(tmp_path, "c.jsonl", 10, 5), str(out), FOLDERS, append=True)
    merge_dataset(str(out))

    manager = ShardManager(str(out), "w")
    claims = [manager.claim_shard() for _ in range(5)]

    assert [claim and claim["shard_id"] for claim in claims] == [0, 1, 2, 3, None]


def test_the_same_command_again_adds_nothing_twice(tmp_path: Path) -> None:
    out = tmp_path / "out"
    create_sharded_dataset(rows(tmp_path, "ab.jsonl", 0, 10), str(out), FOLDERS)
    more = ["--input_file", rows(tmp_path, "c.jsonl", 10, 7), "--output_dir", str(out)]

    for _ in range(2):
        assert main([*more, "--num_shards", "3", "--append", "--merge"]) == 0

    assert index_of(out)["total_tasks"] == 17
    assert index_of(out)["num_shards"] == 5
    assert not list(out.glob(".quark-staging")) + list(out.glob(".quark-????????"))


def test_an_unfinished_addition_is_left_out_and_goes_on_under_its_numbers(tmp_path: Path) -> None:
    out = tmp_path / "out"
    create_sharded_dataset(rows(tmp_path, "ab.jsonl", 0, 10), str(out), FOLDERS)
    broken = rows(tmp_path, "c.jsonl", 10, 5)
    whole = Path(broken).read_text()
    Path(broken).write_text(whole[:-3] + "\n")
    with pytest.raises(DataError):
        create_sharded_dataset(broken, str(out), FOLDERS, append=True)
    create_sharded_dataset(rows(tmp_path, "d.jsonl", 15, 5), str(out), FOLDERS, append=True)

    assert merge_dataset(str(out)) == {"total_tasks": 15, "num_shards": 4}
    assert [shard["shard_id"] for shard in index_of(out)["shards"]] == [0, 1, 4, 5]

    Path(broken).write_text(whole)
    create_sharded_dataset(broken, str(out), FOLDERS, append=True)
    assert merge_dataset(str(out)) == {"total_tasks": 20, "num_shards": 6}
    assert sorted(ids(out)) == list(range(20))


def test_an_index_never_names_what_is_not_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    create_sharded_dataset(rows(tmp_path, "ab.jsonl", 0, 10), str(out), FOLDERS)
    create_sharded_dataset(rows(tmp_path, "c.jsonl", 10, 5), str(out), FOLDERS, append=True)
    (out / "shard_002/chunk_0000.jsonl").write_bytes(b"{}\n")

    with pytest.raises(DataError, match=r"shard_002/chunk_0000\.jsonl: 3 bytes"):
        merge_dataset(str(out))

    assert index_of(out)["total_tasks"] == 10


def test_what_is_no_addition_is_named(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    create_sharded_dataset(rows(tmp_path, "ab.jsonl", 0, 10), str(out), FOLDERS)
    (out / "_additions").mkdir()
    (out / "_additions/000002.json").write_text("[1]")

    assert main(["--output_dir", str(out), "--merge"]) == 3

    assert "error: _additions/000002.json: not the record of an addition" in capsys.readouterr().err


class NoVersions(MemoryStore):
    """Gives objects no version, so that no write can be made on one."""

    def get(self, key: str, **options: Any) -> Any:
        body = super().get(key, **options)
        body.info = msgspec.structs.replace(body.info, etag=None)
        return body


def test_a_store_without_versions_cannot_be_merged_in() -> None:
    store = NoVersions(StoreSpec(uri="memory://no-versions"))
    shard = Shard(shard_id=0, chunks=(Chunk(key="a.jsonl", num_samples=1),))
    store.put("manifest.json", encode_manifest(Manifest(prefix="", shards=(shard,))))

    with pytest.raises(UsageError, match="gives objects no version"):
        merge_additions(store, "")


def reserve_one(arguments: tuple[str, int]) -> int:
    out, number = arguments
    store = open_store(StoreSpec(uri=f"file://{out}"))
    return reserve(store, "", f"writer-{number}", 2).first_shard


def test_writers_that_begin_at_once_get_numbers_of_their_own(tmp_path: Path) -> None:
    out = tmp_path / "out"
    create_sharded_dataset(rows(tmp_path, "ab.jsonl", 0, 10), str(out), FOLDERS)

    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.map(reserve_one, [(str(out), number) for number in range(8)], chunksize=1)

    assert sorted(found) == list(range(2, 18, 2))


def test_a_bucket_is_added_to_as_well(tmp_path: Path) -> None:
    output = OutputOptions(state_dir=tmp_path / "state")
    plan = ShardingPlan(num_shards=2, compression="zstd")
    source = str(write_tasks(tmp_path / "a.jsonl", 6))
    uri = "memory://additions/d"
    create_sharded_dataset(source, uri, plan, output=output)
    more = str(write_tasks(tmp_path / "b.jsonl", 4))
    create_sharded_dataset(more, uri, plan, output=output, append=True)

    assert merge_dataset(uri) == merge_dataset(uri) == {"total_tasks": 10, "num_shards": 4}


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (FLAT, "layout flat"),
        (ShardingPlan(num_shards=2, val_fraction=0.5), "val_fraction"),
    ],
)
def test_what_cannot_be_added_is_refused(tmp_path: Path, plan: Any, said: str) -> None:
    out = tmp_path / "out"
    source = rows(tmp_path, "ab.jsonl", 0, 10)
    create_sharded_dataset(source, str(out), FOLDERS)

    with pytest.raises(UsageError, match=said):
        create_sharded_dataset(source, str(out), plan, append=True)

    assert not (out / "_additions").exists()


def test_there_must_be_a_dataset_to_add_to_and_to_merge(tmp_path: Path, capsys: Any) -> None:
    source = rows(tmp_path, "ab.jsonl", 0, 10)
    out = ["--output_dir", str(tmp_path / "none")]

    assert main([*out, "--merge"]) == 3  # no such folder
    (tmp_path / "none").mkdir()
    assert main(["--input_file", source, *out, "--append"]) == 2
    assert main([*out, "--merge"]) == 2
    assert "no finished dataset" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--input_file", source, *out, "--merge"])
    with pytest.raises(SystemExit):
        main(out)
