"""Where lines begin, and what objects decode to, is found once for later runs, by whichever process is first."""

import bz2
import decimal
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.cache_parts import entries
from tests.fakes import StubS3
from tests.stream_parts import stub_manager
from tools_utilities import split_content
from tools_utilities.arrow_rows import ArrowRows
from tools_utilities.checksum import crc32c
from tools_utilities.compression import decompress_to_spill
from tools_utilities.errors import RecordError
from tools_utilities.shard_format import ReadOptions
from tools_utilities.shard_formats import jsonl
from tools_utilities.shard_formats import parquet as parquet_format
from tools_utilities.spill import Spill

NUM_SAMPLES = 4_000
OBJECTS = {
    "data/x/train-0.jsonl": b"".join(
        json.dumps({"id": number, "text": "x" * 500}).encode() + b"\n"
        for number in range(NUM_SAMPLES)
    )
}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "k")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    monkeypatch.setenv("AWS_REGION", "us-east-1")


def read_epoch(
    stub: StubS3, cache: Path, *, num_workers: int = 0, prefetch: bool = True
) -> list[int]:
    stream = StreamDataset(stub_manager(stub, cache), "data/x/", batch_size=50, prefetch=prefetch)
    loader = StreamLoader(stream, 50, num_workers=num_workers, collate_fn=list)
    return [sample["id"] for batch in loader for sample in batch]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_second_run_reads_no_line_ends(tmp_path, monkeypatch, num_workers):
    with StubS3(OBJECTS) as stub:
        first = read_epoch(stub, tmp_path / "cache", num_workers=num_workers)
        assert sorted(first) == list(range(NUM_SAMPLES))
        sizes = sorted(path.stat().st_size for path in entries(tmp_path / "cache"))
        assert sizes == [4 * (NUM_SAMPLES + 1), len(OBJECTS["data/x/train-0.jsonl"])]

        def refuse(*_arguments: object) -> None:
            raise AssertionError("lines were looked for")

        monkeypatch.setattr(jsonl, "index_json_lines", refuse)
        # Without threads: one that comes while another has just begun looks for itself.
        assert read_epoch(stub, tmp_path / "cache", prefetch=False) == first


def test_a_cache_without_room_for_them_is_read_as_before(tmp_path):
    with StubS3(OBJECTS) as stub:
        room = len(OBJECTS["data/x/train-0.jsonl"]) + 9_000
        manager = stub_manager(stub, tmp_path / "cache", cache_bytes=room)
        stream = StreamDataset(manager, "data/x/")
        assert sorted(sample["id"] for sample in stream) == list(range(NUM_SAMPLES))
        assert len(entries(tmp_path / "cache")) == 1


def zstd(data: bytes) -> bytes:
    found: bytes = zstandard.ZstdCompressor().compress(data)
    return found


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize(
    ("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress), ("zst", zstd)]
)
def test_a_third_run_decodes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    suffix: str,
    compress: Callable[[bytes], bytes],
    num_workers: int,
):
    plain = OBJECTS["data/x/train-0.jsonl"]
    stored = compress(plain)
    with StubS3({f"data/x/train-0.jsonl.{suffix}": stored}) as stub:
        first = read_epoch(stub, tmp_path / "cache")
        assert sorted(first) == list(range(NUM_SAMPLES))
        assert len(entries(tmp_path / "cache")) == 1  # most runs read an object once
        assert read_epoch(stub, tmp_path / "cache", num_workers=num_workers) == first
        sizes = sorted(path.stat().st_size for path in entries(tmp_path / "cache"))
        assert sizes == sorted([len(stored), len(plain)])

        def refuse(*_arguments: object, **_options: object) -> None:
            raise AssertionError("something was decoded")

        monkeypatch.setattr(split_content, "decompress_to_spill", refuse)
        assert read_epoch(stub, tmp_path / "cache") == first


def test_the_next_epoch_of_a_run_decodes_nothing_from_its_third_on(tmp_path, monkeypatch):
    with StubS3({"data/x/a.jsonl.gz": gzip.compress(OBJECTS["data/x/train-0.jsonl"])}) as stub:
        stream = StreamDataset(stub_manager(stub, tmp_path / "cache"), "data/x/")
        times: list[object] = []

        def counted(data: memoryview, compression: str, *, key: str) -> Spill:
            times.append(key)
            return decompress_to_spill(data, compression, key=key)

        monkeypatch.setattr(split_content, "decompress_to_spill", counted)
        for _ in range(4):
            assert sorted(sample["id"] for sample in stream) == list(range(NUM_SAMPLES))
        assert len(times) == 2


def test_damage_to_what_was_decoded_is_seen_and_decoded_anew(tmp_path):
    with StubS3({"data/x/a.jsonl.gz": gzip.compress(OBJECTS["data/x/train-0.jsonl"])}) as stub:
        first = read_epoch(stub, tmp_path / "cache")
        assert read_epoch(stub, tmp_path / "cache") == first
        [path] = spare_entries(tmp_path / "cache")
        data = bytearray(path.read_bytes())
        data[99_999] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
        assert read_epoch(stub, tmp_path / "cache") == first


# Parquet.

NUM_ROWS = 3_000


def parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=1_000, store_schema=True)
    return file.getvalue()


def odd_table(*, odd_row: int | None = None) -> pa.Table:
    """Rows of every kind that is decoded in a way of its own; one that has no exact Python form."""
    numbers = range(NUM_ROWS)
    times = [number * 1_000 for number in numbers]
    if odd_row is not None:
        times[odd_row] += 1
    return pa.table(
        {
            "id": pa.array(numbers, pa.int32()),
            "text": pa.array([None if n % 7 == 0 else "é" * (n % 90) for n in numbers]),
            "kind": pa.array([f"kind {n % 3}" for n in numbers]).dictionary_encode(),
            "ids": pa.array([[n, None, n + 1] if n % 5 else None for n in numbers]),
            "fixed": pa.array([[n, n] for n in numbers], pa.list_(pa.uint16(), 2)),
            "nested": pa.array([{"a": {"b": n}, "c": [{"d": str(n)}]} for n in numbers]),
            "map": pa.array([[("k", n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
            "time": pa.array(times, pa.timestamp("ns", tz="UTC")),
            "price": pa.array([decimal.Decimal(n) / 4 for n in numbers], pa.decimal128(12, 2)),
            "raw": pa.array([bytes([n % 256]) * 9 for n in numbers], pa.large_binary()),
            "nothing": pa.nulls(NUM_ROWS),
        }
    )


def read_rows(stub: StubS3, cache: Path, **options: Any) -> list[dict[str, Any]]:
    stream = StreamDataset(
        stub_manager(stub, cache), "data/x/", options=ReadOptions(**options), prefetch=False
    )
    return list(stream)


@pytest.mark.parametrize("memory_bytes", [8 << 20, 0], ids=["small", "spilled"])
def test_a_third_run_decodes_no_row_group(tmp_path, monkeypatch, memory_bytes):
    monkeypatch.setattr(ArrowRows.__init__, "__kwdefaults__", {
        **(ArrowRows.__init__.__kwdefaults__ or {}), "memory_bytes": memory_bytes
    })  # fmt: skip
    with StubS3({"data/x/a.parquet": parquet(odd_table())}) as stub:
        first = read_rows(stub, tmp_path / "cache")
        assert sorted(row["id"] for row in first) == list(range(NUM_ROWS))
        assert read_rows(stub, tmp_path / "cache") == first
        chosen = read_rows(stub, tmp_path / "cache", columns=("text", "id"))
        assert {tuple(row) for row in chosen} == {("id", "text")}

        def refuse(*_arguments: object) -> None:
            raise AssertionError("a row group was decoded")

        monkeypatch.setattr(parquet_format, "_load", refuse)
        assert read_rows(stub, tmp_path / "cache") == first
        assert read_rows(stub, tmp_path / "cache", columns=("text", "id")) == chosen


def test_a_row_that_cannot_be_read_is_named_as_before(tmp_path):
    table = odd_table(odd_row=2_345).select(["id", "text", "time"])
    with StubS3({"data/x/a.parquet": parquet(table)}) as stub:
        said = []
        for _ in range(3):
            with pytest.raises(RecordError, match="row 2346") as raised:
                read_rows(stub, tmp_path / "cache")
            said.append((str(raised.value), raised.value.detail))
        assert said[0] == said[1] == said[2]
        assert len(spare_entries(tmp_path / "cache")) > 0


def test_small_row_groups_are_decoded_rather_than_kept(tmp_path):
    table = pa.table({"id": pa.array(range(100))})
    with StubS3({"data/x/a.parquet": parquet(table)}) as stub:
        for _ in range(2):
            assert len(read_rows(stub, tmp_path / "cache")) == 100
        assert len(entries(tmp_path / "cache")) == 1


def test_rows_that_this_pyarrow_cannot_read_are_decoded_anew(tmp_path):
    table = pa.table({"id": range(NUM_ROWS), "text": ["x" * 40] * NUM_ROWS})
    with StubS3({"data/x/a.parquet": parquet(table)}) as stub:
        first = read_rows(stub, tmp_path / "cache")
        assert read_rows(stub, tmp_path / "cache") == first
        for path in spare_entries(tmp_path / "cache"):
            other = b"of a later pyarrow" * 5
            path.unlink()
            path.with_name(f"{path.name[:40]}-{len(other)}-{crc32c(other):08x}-spare").write_bytes(
                other
            )
        assert len(spare_entries(tmp_path / "cache")) > 0
        assert read_rows(stub, tmp_path / "cache") == first


def spare_entries(cache: Path) -> list[Path]:
    return [path for path in entries(cache) if path.name.endswith("-spare")]


@pytest.mark.parametrize("bounds", [(1 << 30, 1, 1 << 30), (1, 1 << 30, 1 << 30), (1, 1, 1000)])
def test_what_decodes_to_little_or_to_very_much_is_not_kept(tmp_path, monkeypatch, bounds):
    for name, num_bytes in zip(
        ["_LEAST_STORED_BYTES", "_LEAST_BYTES", "_MOST_BYTES"], bounds, strict=True
    ):
        monkeypatch.setattr(split_content, name, num_bytes)
    lines = b"".join(b'{"id": %d}\n' % number for number in range(500))
    with StubS3({"data/x/a.jsonl.gz": gzip.compress(lines)}) as stub:
        for _ in range(2):
            assert sorted(read_epoch(stub, tmp_path / "cache")) == list(range(500))
        assert spare_entries(tmp_path / "cache") == []
