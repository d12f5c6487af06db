"""chunk_size_mb counts bytes as the output writes them, however the source was stored."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scripts.test_create_sharded_dataset import digest
from tools_utilities.scripts.create_sharded_dataset import main

CHUNK = 40_000
ROWS = [{"id": n, "text": "the same words again and again " * 5, "x": n / 7} for n in range(1_600)]


def as_lines(rows: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows)


def write(path: Path) -> Path:
    """Write the rows in the form that the name says; all but the plain lines are far smaller."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path, compression="zstd")
    elif path.name.endswith(".json.gz"):
        path.write_bytes(gzip.compress(json.dumps(ROWS).encode()))
    else:
        lines = as_lines(ROWS)
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)
    return path


def make(source: Path, out: Path, *flags: str) -> list[int]:
    """Make two shards and return their chunks' bytes, all but the last ones of each shard."""
    files = ["--input_file", str(source), "--output_dir", str(out), "--num_shards", "2"]
    assert main([*files, "--chunk_size_mb", str(CHUNK / 1e6), *flags]) == 0
    found = []
    for folder in sorted(out.glob("shard_*")):
        found += [path.stat().st_size for path in sorted(folder.glob("chunk*"))][:-1]
    return found


def about(sizes: Sequence[int], part: float) -> bool:
    return all((1 - part) * CHUNK < size < (1 + part) * CHUNK for size in sizes)


def test_the_same_records_make_the_same_chunks_whatever_they_were_stored_as(tmp_path):
    made = {}
    for name in ("a.jsonl", "b.jsonl.gz", "c.parquet", "d.json.gz"):
        sizes = make(write(tmp_path / name), tmp_path / f"{name}-out")
        assert len(sizes) >= 6
        assert about(sizes, 0.03)
        made[name] = digest(tmp_path / f"{name}-out")
    lines = made.pop("a.jsonl")
    assert all(other == lines for other in made.values())


def test_shuffled_too_and_when_it_is_compressed_again(tmp_path):
    source = write(tmp_path / "c.parquet")
    few = ("--shuffle", "--max_samples", "800")

    sizes = make(source, tmp_path / "shuffled", *few)
    make(source, tmp_path / "packed", *few, "--compression", "gzip")

    assert about(sizes, 0.03)
    for path in (tmp_path / "shuffled").glob("shard_*/chunk*"):
        packed = tmp_path / "packed" / path.parent.name / f"{path.name}.gz"
        assert gzip.decompress(packed.read_bytes()) == path.read_bytes()


def test_a_csv_that_was_compressed(tmp_path):
    rows = "id,text\n" + "".join(f"{n},{'many words ' * 20}\n" for n in range(1_000))
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(rows.encode()))

    sizes = make(tmp_path / "a.csv.gz", tmp_path / "out")

    assert len(sizes) >= 4
    assert about(sizes, 0.03)


@pytest.mark.parametrize("name", ["mds", "webdataset"])
def test_other_formats_by_what_they_hold(tmp_path, name):
    rows = [{"id": n, "vector": [n / 3] * 200, "note": "é" * 40} for n in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet", compression="zstd")

    sizes = make(tmp_path / "in.parquet", tmp_path / "out", "--format", name)

    assert len(sizes) >= 2
    assert about(sizes, 0.3)  # a tar ends on a multiple of 10 KiB


@pytest.mark.parametrize("width", ["uint16", "uint32"])
def test_token_files_are_counted_exactly(tmp_path, width):
    row = {"input_ids": list(range(1000))}
    (tmp_path / "in.jsonl").write_bytes(as_lines([row] * 200))

    sizes = make(
        tmp_path / "in.jsonl", tmp_path / "out", "--format", "tokens", "--token_dtype", width
    )

    num_bytes = 1000 * np.dtype(width).itemsize
    assert set(sizes) == {-(-CHUNK // num_bytes) * num_bytes}
