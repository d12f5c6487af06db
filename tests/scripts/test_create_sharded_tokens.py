"""Token files of two widths: the index says which, every reader goes by it, nobody guesses in silence."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from tests.scripts.test_create_sharded_dataset import samples_of
from tools_utilities.decode_probe import first_records
from tools_utilities.errors import AccessError, UsageError
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import ObjectInfo, StoreSpec, open_store
from tools_utilities.object_stores.memory import MemoryStore
from tools_utilities.sample_source import SourceOptions, open_source
from tools_utilities.scripts.create_sharded_dataset import main
from tools_utilities.scripts.process_shards import ProcessOptions, process_shards
from tools_utilities.scripts.s3_streaming_manager import StreamingManager
from tools_utilities.shard_format import ReadOptions
from tools_utilities.sharding_plan import ShardingPlan

COUNT, LENGTH = 12, 1024
"""Sequences of what readers take for one where nothing is said."""
LAYOUTS: dict[str, tuple[str, ...]] = {
    "folders": (),
    "flat": ("--layout", "flat"),
    "val": ("--val_fraction", "0.3"),
}


def rows(path: Path, first: int = 3) -> Path:
    ids = np.arange(first, first + COUNT * LENGTH).reshape(COUNT, LENGTH).tolist()
    path.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in ids))
    return path


def make(source: Path, out: Path, *flags: str) -> int:
    files = ["--input_file", str(source), "--output_dir", str(out), "--format", "tokens"]
    return main([*files, "--num_shards", "2", *flags])


def streamed(folder: Path, **options: Any) -> list[list[int]]:
    spec = StoreSpec(uri=f"file://{folder}")
    manager = StreamingManager.for_store(spec, cache_dir=None, cache_bytes=0)
    given = ReadOptions(seq_len=LENGTH, **options)
    return sorted(
        sample["input_ids"].tolist() for sample in StreamDataset(manager, "", options=given)
    )


def expected(source: Path) -> list[list[int]]:
    return sorted(json.loads(line)["input_ids"] for line in source.read_text().splitlines())


@pytest.mark.parametrize(
    ("layout", "width", "first"),
    [
        ("folders", "uint16", 3),
        ("folders", "uint32", 70_000),
        ("flat", "uint32", 3),
        ("val", "uint32", 3),
    ],
)
def test_the_index_says_how_wide_and_every_reader_goes_by_it(tmp_path, layout, width, first):
    source, out = rows(tmp_path / "in.jsonl", first=first), tmp_path / "out"

    assert make(source, out, "--token_dtype", width, *LAYOUTS[layout]) == 0

    store = open_store(StoreSpec(uri=f"file://{out}"))
    for side in ("train/", "val/") if layout == "val" else ("",):
        manifest = load_manifest(store, side)
        assert manifest is not None
        assert manifest.token_dtype == width
        info = store.head(next(iter(manifest.chunks)))
        assert first_records(store, info, 1)[0]["input_ids"].dtype == np.dtype(width)
    # What a vocabulary would need is only a guess.
    for guess in ("uint16", "uint32"):
        assert streamed(out, likely_token_dtype=guess) == expected(source)
    ids = np.concatenate([sample["input_ids"] for sample in samples_of(out)])
    assert sorted(ids.tolist()) == list(range(first, first + COUNT * LENGTH))


def test_a_shard_that_is_read_alone_and_a_batch_job_go_by_it_too(tmp_path):
    source, out = rows(tmp_path / "in.jsonl"), tmp_path / "out"
    assert make(source, out, "--token_dtype", "uint32") == 0

    assert streamed(out / "shard_001") == expected(source)[1::2]
    seen: list[list[int]] = []

    def look(samples: list[dict[str, Any]]) -> list[None]:
        seen.extend(sample["input_ids"].tolist() for sample in samples)
        return [None] * len(samples)

    assert not process_shards(str(out), look).failed
    assert sorted(seen) == expected(source)


def test_what_people_say_must_agree_with_the_index(tmp_path):
    assert make(rows(tmp_path / "in.jsonl"), tmp_path / "out", "--token_dtype", "uint32") == 0

    with pytest.raises(ValueError, match="token_dtype=uint16, but its dataset's index says uint32"):
        streamed(tmp_path / "out", token_dtype="uint16")
    assert streamed(tmp_path / "out", token_dtype="uint32")


@pytest.mark.parametrize(("width", "largest"), [("uint16", 65_535), ("uint32", 2**32 - 1)])
def test_an_id_beyond_the_width_is_refused_with_its_row(tmp_path, capsys, width, largest):
    source = tmp_path / "in.jsonl"
    source.write_text('{"input_ids": [1, 2]}\n' * 4 + f'{{"input_ids": [3, {largest + 1}]}}\n')

    assert make(source, tmp_path / "out", "--token_dtype", width) == 3

    told = capsys.readouterr().err
    assert f"ids from 3 to {largest + 1} do not fit in [0, {largest}]" in told
    assert "the input's 4, from 0" in told


def test_files_without_an_index_are_asked_about(tmp_path, capsys):
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "train-00000.bin").write_bytes(np.arange(3, 3 + LENGTH, dtype="<u4").tobytes())
    seen: list[list[int]] = []

    def look(samples: list[dict[str, Any]]) -> list[None]:
        seen.extend(sample["input_ids"].tolist() for sample in samples)
        return [None] * len(samples)

    assert make(folder, tmp_path / "out") == 2
    assert "every second number is 0" in capsys.readouterr().err
    with pytest.raises(UsageError, match="every second number is 0"):
        process_shards(str(folder), look)
    assert seen == []

    assert make(folder, tmp_path / "out", "--input_token_dtype", "uint32") == 0
    ids = [list(range(3, 3 + LENGTH))]
    assert streamed(tmp_path / "out") == ids
    process_shards(str(folder), look, options=ProcessOptions(token_dtype="uint32"))
    assert seen == ids


class OneFile(MemoryStore):
    """Lets one object be read, as a signature does."""

    def head(self, key: str) -> ObjectInfo:
        if not key.endswith(".bin"):
            raise AccessError(f"{key}: 403")
        return super().head(key)


def test_who_may_read_the_file_alone_reads_it_and_is_told(caplog):
    store = OneFile(StoreSpec(uri="memory://one"))
    store.put("d/x.bin", np.arange(5, dtype="<u2").tobytes())

    assert first_records(store, store.head("d/x.bin"), 1)[0]["input_ids"].tolist() == list(range(5))

    assert "d/manifest.json: 403" in caplog.messages[0]


@pytest.mark.parametrize("layout", ["folders", "flat"])
def test_what_is_added_is_as_wide_as_what_is_there(tmp_path, capsys, layout):
    source, more = rows(tmp_path / "in.jsonl"), rows(tmp_path / "more.jsonl", first=70_000)
    wide = ("--token_dtype", "uint32", *LAYOUTS[layout])
    assert make(source, tmp_path / "out", *wide) == 0

    assert make(more, tmp_path / "out", "--append", *LAYOUTS[layout]) == 2
    assert "the dataset there has uint32" in capsys.readouterr().err
    assert make(more, tmp_path / "out", "--append", "--merge", *wide) == 0

    assert streamed(tmp_path / "out") == sorted(expected(source) + expected(more))


def test_a_width_goes_with_token_files_alone(tmp_path, capsys):
    source = rows(tmp_path / "in.jsonl")

    assert make(source, tmp_path / "out", "--format", "jsonl", "--token_dtype", "uint32") == 2

    assert "token_dtype uint32 with jsonl" in capsys.readouterr().err


def test_datasets_from_before_are_still_known_for_what_they_are(tmp_path):
    source = open_source(str(rows(tmp_path / "in.jsonl")), SourceOptions())

    assert "token_dtype" not in ShardingPlan(format="tokens").header(source).settings
    wide = ShardingPlan(format="tokens", token_dtype="uint32").header(source)
    assert wide.settings["token_dtype"] == "uint32"
