"""Two real ranks joined over gloo: the counting pass, and errors that reach both."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from brain.ml.dataset_shards.shared_counts import SharedCounts
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.stream_data import folder_manager, memory_manager, put_shards
from tools_utilities.errors import AccessError
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store
from tools_utilities.object_stores.memory import MemoryStore

SCRIPT = """
import json, sys
import torch.distributed as dist
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.direct_manager import DirectManager
from tools_utilities.errors import QuarkError
from tools_utilities.object_store import StoreSpec
uri, rank, meeting, prefix = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
manager = DirectManager(StoreSpec(uri=uri))
stream = StreamDataset(manager, prefix, prefetch=0)
try:
    stream.prepare()
    counted = sorted(set(manager.opened))
    result = {"counted": counted, "ids": [s["id"] for s in stream], "length": len(stream)}
except QuarkError as error:
    result = {"error": type(error).__name__, "message": str(error)}
print(json.dumps(result))
"""

PARTITIONS = """
import json, sys
import torch.distributed as dist
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.direct_manager import DirectManager
from tools_utilities.errors import QuarkError
from tools_utilities.object_store import StoreSpec
uri, rank, meeting, prefix = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
manager = DirectManager(StoreSpec(uri=uri))
def make(prefix, partition, **options):
    return StreamDataset(
        manager, prefix, prefetch=0, partition=partition, partition_options=options, equalize="none"
    )
result = {}
try:
    next(iter(make(prefix + "train-00000", "files")))
except QuarkError as error:
    result["error"] = str(error)
for name, options in {"files": {}, "stratified": {"key": "id"}}.items():
    manager.opened.clear()
    stream = make(prefix, name, **options)
    stream.prepare()
    result[name] = {"read_before": len(manager.opened), "ids": [s["id"] for s in stream]}
print(json.dumps(result))
"""


class Refusing(MemoryStore):
    """May only be read."""

    def put(self, key: str, data: bytes) -> ObjectInfo:
        raise AccessError(f"{key}: {len(data)} bytes: access denied")


def run_ranks(
    places: list[Path | str], meeting: Path, prefixes: list[str], script: str = SCRIPT
) -> list[dict[str, Any]]:
    root = Path(__file__).parents[2]
    uris = [f"file://{place}" if isinstance(place, Path) else place for place in places]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, uri, str(rank), str(meeting), prefix],
            cwd=root,
            stdout=subprocess.PIPE,
        )
        for rank, (uri, prefix) in enumerate(zip(uris, prefixes, strict=True))
    ]
    found: list[dict[str, Any]] = [json.loads(p.communicate(timeout=100)[0]) for p in running]
    return found


def test_ranks_count_a_share_each_and_read_disjoint_halves(
    tmp_path, aws_environment, moto_endpoint, make_bucket
):
    aws_environment.setenv("AWS_ENDPOINT_URL", moto_endpoint)
    uri = f"s3://{make_bucket(moto_endpoint)}"
    store = open_store(StoreSpec(uri=uri))
    put_shards(store, [3, 0, 5, 2, 7, 4, 1, 1, 6])
    found = run_ranks([uri] * 2, tmp_path / "meeting", ["data/x/"] * 2)
    assert not set(found[0]["counted"]) & set(found[1]["counted"])
    assert len(found[0]["counted"] + found[1]["counted"]) == 9
    assert [part["length"] for part in found] == [14, 14]
    together = found[0]["ids"] + found[1]["ids"]
    assert len(together) == len(set(together)) == 28
    assert set(together) < set(range(29))
    # Other machines, of which nobody has counted anything: the bucket knows.
    again = run_ranks([uri] * 2, tmp_path / "again", ["data/x/"] * 2)
    assert again == [{**part, "counted": []} for part in found]
    [kept] = [info.key for info in store.list("data/x/") if "train" not in info.key]
    assert kept.startswith("data/x/_quark_counts/")


def test_counts_in_a_store_are_whole_of_these_splits_or_none():
    manager = memory_manager([3, 5])
    index, store = StreamDataset(manager, "data/x/").index, manager.store
    shared = SharedCounts(store, index)
    assert shared.load() is None
    shared.save(np.array([3, -1]))
    found = SharedCounts(store, index).load()
    assert found is not None
    assert found.tolist() == [3, -1]
    assert len(StreamDataset(manager, "data/x/").index.table.objects) == 2
    [(key, data)] = [(i.key, b"".join(store.get(i.key))) for i in store.list("data/x/_")]
    for damaged in (data[:-1], data + b"x", data.replace(b"\x03", b"\x04"), b"", data[:-8]):
        store.put(key, damaged)
        assert shared.load() is None
    put_shards(store, [3, 5, 2])
    assert SharedCounts(store, StreamDataset(manager, "data/x/").index).key != key


def test_counts_are_never_put_where_they_do_not_belong(tmp_path, caplog):
    manager = folder_manager(tmp_path, [3])
    shared = SharedCounts(manager.store, StreamDataset(manager, "data/x/").index)
    shared.save(np.array([3]))
    assert not shared.is_possible
    assert not list(tmp_path.rglob("_quark*"))
    refusing = Refusing(StoreSpec(uri="memory://refusing"))
    shared = SharedCounts(refusing, StreamDataset(manager, "data/x/").index)
    shared.save(np.array([3]))
    assert shared.load() is None
    assert not [record for record in caplog.records if record.levelname != "DEBUG"]


def test_what_fails_on_one_rank_is_raised_on_both(tmp_path):
    folder_manager(tmp_path / "data", [3, 5])
    folder_manager(tmp_path / "more", [3, 5, 2])
    found = run_ranks([tmp_path / "data"] * 2, tmp_path / "meeting", ["data/x/", "data/nothing/"])
    assert [part["error"] for part in found] == ["DataNotFoundError"] * 2
    assert all("data/nothing/" in part["message"] for part in found)
    folders = [tmp_path / "data", tmp_path / "more"]
    found = run_ranks(folders, tmp_path / "again", ["data/x/"] * 2)
    assert [part["error"] for part in found] == ["ChangedError"] * 2


def test_joined_ranks_count_and_label_a_share_each_and_fail_together(tmp_path):
    folder_manager(tmp_path / "data", [3, 0, 5, 2, 7, 4, 1, 1])
    found = run_ranks([tmp_path / "data"] * 2, tmp_path / "meeting", ["data/x/"] * 2, PARTITIONS)
    assert all("insufficient files: 1 files for 2 workers" in part["error"] for part in found)
    for name in ("files", "stratified"):
        assert sorted(found[0][name]["ids"] + found[1][name]["ids"]) == list(range(23))
    assert [part["files"]["read_before"] for part in found] == [4, 4]
    # Each counts its four, then reads the labels of those of its share that have samples.
    assert sum(part["stratified"]["read_before"] for part in found) == 8 + 7
