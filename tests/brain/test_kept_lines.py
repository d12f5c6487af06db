"""Where lines begin is found once for all later runs, by whichever process reads an object first."""

import json
from pathlib import Path

import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from tests.cache_parts import entries
from tests.fakes import StubS3
from tests.stream_parts import stub_manager
from tools_utilities.shard_formats import jsonl

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
