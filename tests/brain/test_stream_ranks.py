"""Two real ranks joined over gloo: the counting pass, and errors that reach both."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.brain.stream_data import folder_manager

SCRIPT = """
import json, sys
import torch.distributed as dist
from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.brain.direct_manager import DirectManager
from tools_utilities.errors import QuarkError
from tools_utilities.object_store import StoreSpec
folder, rank, meeting, prefix = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
manager = DirectManager(StoreSpec(uri=f"file://{folder}"))
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
folder, rank, meeting, prefix = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
manager = DirectManager(StoreSpec(uri=f"file://{folder}"))
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


def run_ranks(
    folders: list[Path], meeting: Path, prefixes: list[str], script: str = SCRIPT
) -> list[dict[str, Any]]:
    root = Path(__file__).parents[2]
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(folder), str(rank), str(meeting), prefix],
            cwd=root,
            stdout=subprocess.PIPE,
        )
        for rank, (folder, prefix) in enumerate(zip(folders, prefixes, strict=True))
    ]
    found: list[dict[str, Any]] = [json.loads(p.communicate(timeout=100)[0]) for p in running]
    return found


def test_ranks_count_a_share_each_and_read_disjoint_halves(tmp_path):
    folder_manager(tmp_path / "data", [3, 0, 5, 2, 7, 4, 1, 1, 6])
    found = run_ranks([tmp_path / "data"] * 2, tmp_path / "meeting", ["data/x/"] * 2)
    assert not set(found[0]["counted"]) & set(found[1]["counted"])
    assert len(found[0]["counted"] + found[1]["counted"]) == 9
    assert [part["length"] for part in found] == [14, 14]
    together = found[0]["ids"] + found[1]["ids"]
    assert len(together) == len(set(together)) == 28
    assert set(together) < set(range(29))


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
