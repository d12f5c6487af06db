"""What is written is read back by the format's own library, in its own environment.

QUARK_PEERS_PYTHON names a Python that has litdata, mosaicml-streaming and polars.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from tests.scripts.test_create_sharded_dataset import samples_of, write_tasks
from tests.tools_utilities.test_shard_format_webdataset import peer_reads
from tools_utilities.scripts.create_sharded_dataset import main

CHECKOUT = Path(__file__).resolve().parents[2]
COUNT = 60
READERS = {
    "mds": """
from streaming import LocalDataset
def read(folder): return [{"id": int(s["id"]), "text": s["text"]} for s in LocalDataset(folder)]
""",
    "litdata": """
from litdata import StreamingDataset
def read(folder): return [dict(s) for s in StreamingDataset(folder, shuffle=False)]
""",
    "parquet": """
import polars
def read(folder): return polars.read_parquet(folder + "/*.parquet").to_dicts()
""",
    "jsonl": """
import polars
def read(folder): return polars.read_ndjson(folder + "/*.jsonl.zst").to_dicts()
""",
}
PROGRAM = """
import json, sys
{reader}
if __name__ == "__main__":
    print()
    print(json.dumps([row for folder in sys.argv[1:] for row in read(folder)]))
"""


def make(tmp_path: Path, shard_format: str, layout: str) -> list[dict[str, Any]]:
    source = write_tasks(tmp_path / "in.jsonl", COUNT)
    more = ["--compression", "zstd"] if shard_format == "jsonl" else []
    files = ["--input_file", str(source), "--output_dir", str(tmp_path / "out")]
    plan = ["--num_shards", "3", "--chunk_size_mb", "0.002", "--layout", layout]
    assert main([*files, *plan, "--format", shard_format, *more]) == 0
    return samples_of(source)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["flat", "folders"])
@pytest.mark.parametrize("shard_format", sorted(READERS))
def test_the_peer_reads_back_what_was_written(tmp_path, shard_format, layout):
    python = os.environ.get("QUARK_PEERS_PYTHON")
    if not python:
        pytest.skip("QUARK_PEERS_PYTHON names no Python that has the peers")
    expected = make(tmp_path, shard_format, layout)
    out = tmp_path / "out"
    folders = sorted(out.glob("shard_*")) if layout == "folders" else [out]
    program = PROGRAM.replace("{reader}", READERS[shard_format])

    done = subprocess.run(
        [python, "-c", program, *map(str, folders)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    assert sorted(rows, key=lambda row: row["id"]) == expected


def test_webdataset_reads_back_what_was_written(tmp_path):
    expected = make(tmp_path, "webdataset", "flat")
    files = sorted((tmp_path / "out").glob("*.tar"))

    rows = [json.loads(row["json"]) for path in files for row in peer_reads(path)]

    assert sorted(rows, key=lambda row: row["id"]) == expected


@pytest.mark.parametrize("layout", ["flat", "folders"])
def test_pyarrow_reads_back_what_was_written(tmp_path, layout):
    expected = make(tmp_path, "parquet", layout)
    files = sorted(map(str, (tmp_path / "out").rglob("*.parquet")))

    rows = pa.dataset.dataset(files, format="parquet").to_table().to_pylist()

    assert sorted(rows, key=lambda row: row["id"]) == expected
    assert sum(pq.read_metadata(name).num_rows for name in files) == COUNT


HUGGING_FACE = """
import json, os, sys
from pathlib import Path
from tools_utilities.dataset_creation import OutputOptions, create_sharded_dataset
from tools_utilities.errors import ChangedError, DataNotFoundError
from tools_utilities.sample_source import SourceOptions, open_source
from tools_utilities.scripts.create_sharded_dataset import main
from tools_utilities.sharding_plan import ShardingPlan
folder, out = sys.argv[1:]
uri = "hf://" + folder
assert main(["--input_file", uri, "--output_dir", out, "--num_shards", "3", "--split", "train"]) == 0
few = out + "-few.jsonl"
assert main(["--input_file", uri, "--output_dir", few, "--max_samples", "7"]) == 0
assert len(Path(few).read_text().splitlines()) == 7
source = open_source(uri, SourceOptions())
whole = [row for block in source.blocks(0, None) for row in block.records]
again = [row for block in source.blocks(1500, {"index": 0}) for row in block.records]
assert again == whole[1500:], len(again)
assert open_source(uri, SourceOptions()).fingerprint == source.fingerprint
try:
    open_source(uri, SourceOptions(split="nosuch"))
except DataNotFoundError as error:
    assert "nosuch" in str(error)
else:
    raise SystemExit("a split that is not there was opened")
try:
    open_source(uri + "-none", SourceOptions())
except DataNotFoundError:
    pass
else:
    raise SystemExit("a dataset that is not there was opened")
with open(folder + "/a.jsonl", "a") as file:
    file.write('{"id": 9999, "text": "new"}\\n')
try:
    create_sharded_dataset(uri, out, ShardingPlan(num_shards=3))
except ChangedError:
    print("ok")
"""


def test_a_real_hugging_face_dataset_becomes_shards(tmp_path):
    python = os.environ.get("QUARK_PEERS_PYTHON")
    if not python:
        pytest.skip("QUARK_PEERS_PYTHON names no Python that has datasets")
    folder = tmp_path / "set"
    folder.mkdir()
    write_tasks(folder / "a.jsonl", 1200)
    write_tasks(folder / "b.jsonl", 1100)
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "hf"),
        "PYTHONPATH": str(CHECKOUT),
    }

    done = subprocess.run(
        [python, "-c", HUGGING_FACE, str(folder), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("ok\n")
    assert len(samples_of(tmp_path / "out")) == 2300
