"""Hold-out split, shuffle, workers, formats, one file: every option of create_sharded_dataset.py."""

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scripts.test_create_sharded_dataset import digest, samples_of, write_tasks
from tools_utilities.dataset_creation import OutputOptions
from tools_utilities.errors import ChangedError
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.sample_codec import decode_sample, encode_sample
from tools_utilities.sample_source import SourceOptions, open_source
from tools_utilities.scripts.create_sharded_dataset import (
    ProgressReporter,
    create_sharded_dataset,
    main,
)
from tools_utilities.sharded_dataset import Dealt
from tools_utilities.sharding_plan import ShardingPlan
from tools_utilities.shuffled_source import ShuffledSource


def make(source: Path, out: Path, *arguments: str) -> None:
    files = ["--input_file", str(source), "--output_dir", str(out)]
    assert main([*files, *arguments]) == 0


def ids(folder: Path) -> list[int]:
    return [row["id"] for row in samples_of(folder)]


def test_held_out_samples_are_the_same_whatever_order_and_number_of_shards(tmp_path):
    source = write_tasks(tmp_path / "a.jsonl", 2_000)
    lines = source.read_text().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_text("".join(reversed(lines)))

    make(source, tmp_path / "a", "--val_fraction", "0.1", "--num_shards", "8")
    make(tmp_path / "b.jsonl", tmp_path / "b", "--val_fraction", "0.1", "--num_shards", "3")

    held_out = set(ids(tmp_path / "a/val"))
    assert held_out == set(ids(tmp_path / "b/val"))
    assert 140 < len(held_out) < 260
    assert sorted([*held_out, *ids(tmp_path / "a/train")]) == list(range(2_000))
    for side in ("train/", "val/"):
        manifest = load_manifest(open_store(StoreSpec(uri=f"file://{tmp_path}/a")), side)
        assert manifest is not None
        counts = [shard.num_samples for shard in manifest.shards]
        assert max(counts) - min(counts) <= 1


def test_a_flat_split_names_both_sides_and_parquet_splits_as_its_lines_did(tmp_path):
    source = write_tasks(tmp_path / "a.jsonl", 500)
    make(source, tmp_path / "a.parquet")
    flat = ("--layout", "flat", "--num_shards", "4", "--val_fraction", "0.25")

    make(source, tmp_path / "lines", *flat)
    make(tmp_path / "a.parquet", tmp_path / "rows", *flat, "--format", "parquet")

    names = sorted(path.name for path in (tmp_path / "lines").glob("*.jsonl"))
    assert names == [f"train-0000{n}-of-00004.jsonl" for n in range(4)] + [
        "val-00000-of-00001.jsonl"
    ]
    assert ids(tmp_path / "lines/val-00000-of-00001.jsonl") == ids(
        tmp_path / "rows/val-00000-of-00001.parquet"
    )
    manifest = json.loads((tmp_path / "lines/manifest.json").read_text())
    assert manifest["num_samples"] == 500
    assert manifest["schema"] == {"id": "integer", "text": "string"}


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_whole_numbers_among_floats_become_the_floats_that_they_are(tmp_path, capsys, name):
    def written(*values: Any) -> tuple[int, list[Any]]:
        source, out = tmp_path / "in.jsonl", tmp_path / f"{len(list(tmp_path.iterdir()))}-out"
        source.write_text("".join(f'{{"x": {json.dumps(value)}}}\n' for value in values))
        flags = ["--format", name, "--num_shards", "1"]
        code = main(["--input_file", str(source), "--output_dir", str(out), *flags])
        return code, [] if code else [row["x"] for row in samples_of(out)]

    exact = [0.5, 0, -7, 2**53, -(2**53)]
    code, back = written(*exact)
    assert (code, back) == (0, exact)
    assert {type(value.item() if hasattr(value, "item") else value) for value in back} == {float}
    capsys.readouterr()

    for rest in (2**53 + 1, -(2**53) - 1, True, "0"):
        assert written(0.5, rest)[0] == 3
        assert "sample 1 cannot be written to" in capsys.readouterr().err
    assert written(0, 0.5)[0] == 3  # the first sample says what the column is
    assert "sample 1 cannot be written to" in capsys.readouterr().err


def test_samples_that_share_the_key_stay_on_one_side(tmp_path):
    source = tmp_path / "in.jsonl"
    rows = [{"id": number, "user": number % 40} for number in range(400)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))

    make(source, tmp_path / "out", "--val_fraction", "0.3", "--val_key", "user")

    train, val = (
        {row["user"] for row in samples_of(tmp_path / "out" / s)} for s in ("train", "val")
    )
    assert train
    assert val
    assert not train & val


def test_a_shuffle_is_exact_seeded_and_the_same_for_any_memory(tmp_path):
    source = write_tasks(tmp_path / "in.jsonl", 3_000)
    plain = open_source(str(source), SourceOptions(json_bytes=True))

    def order(seed: int, memory_bytes: int) -> list[int]:
        shuffled = ShuffledSource(
            plain, seed, tmp_path / f"{seed}-{memory_bytes}", memory_bytes=memory_bytes
        )
        return [
            json.loads(cast("bytes", row))["id"]
            for block in shuffled.blocks(0, None)
            for row in block.records
        ]

    first = order(7, 1 << 24)

    assert sorted(first) == list(range(3_000))
    assert order(7, 500) == first  # every temporary file is dealt again
    assert order(8, 1 << 24) != first
    # Neighbours do not stay together, and no place is preferred.
    assert sum(abs(a - b) == 1 for a, b in pairwise(first)) < 15
    assert abs(np.corrcoef(first, range(3_000))[0, 1]) < 0.08


def test_a_shuffled_run_goes_on_from_any_block(tmp_path):
    source = write_tasks(tmp_path / "in.jsonl", 3_000)
    plain = open_source(str(source), SourceOptions(json_bytes=True))
    shuffled = ShuffledSource(plain, 1, tmp_path / "work")
    blocks = list(shuffled.blocks(0, None))
    middle = blocks[len(blocks) // 2]
    place = {**middle.position, "index": middle.position["index"] + 1}

    rest = ShuffledSource(plain, 1, tmp_path / "work").blocks(middle.first + 1, place)

    everything = [row for block in blocks for row in block.records]
    assert [row for block in rest for row in block.records] == everything[middle.first + 1 :]


def test_the_shuffle_flag_shuffles_by_its_seed(tmp_path):
    source = write_tasks(tmp_path / "in.jsonl", 300)
    for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
        make(source, tmp_path / name, "--shuffle", "--seed", seed, "--num_shards", "2")

    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")
    assert sorted(ids(tmp_path / "c")) == list(range(300))
    assert not list(tmp_path.rglob("*.rows"))


@pytest.mark.parametrize("shard_format", ["jsonl", "parquet", "mds", "webdataset"])
def test_the_bytes_are_the_same_for_any_number_of_workers(tmp_path, shard_format):
    source = write_tasks(tmp_path / "in.jsonl", 2_000)
    compression = ("--compression", "zstd") if shard_format == "jsonl" else ()
    for workers in ("1", "2", "5"):
        make(
            source, tmp_path / workers, "--workers", workers, "--format", shard_format,
            "--chunk_size_mb", "0.05", *compression,
        )  # fmt: skip

    assert digest(tmp_path / "1") == digest(tmp_path / "2") == digest(tmp_path / "5")


@pytest.mark.parametrize("layout", ["folders", "flat"])
@pytest.mark.parametrize(
    "source_format", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "txt", "csv"]
)
@pytest.mark.parametrize(
    "shard_format", ["jsonl", "parquet", "mds", "litdata", "webdataset", "txt"]
)
def test_every_format_into_every_format(tmp_path, source_format, shard_format, layout):
    texts = [f"é {number} \u2028" for number in range(50)]
    source = tmp_path / f"in.{source_format}"
    if source_format == "csv":
        source.write_text("text\n" + "".join(f"{text}\n" for text in texts))
    else:
        rows = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
        (tmp_path / "rows.jsonl").write_text(rows)
        make(tmp_path / "rows.jsonl", source)

    make(source, tmp_path / "out", "--format", shard_format, "--layout", layout, "--num_shards", "3",
         "--chunk_size_mb", "0.0002")  # fmt: skip

    back = samples_of(tmp_path / "out")
    if shard_format == "webdataset":
        back = [json.loads(row["json"]) for row in back]
    assert sorted(row["text"] for row in back) == sorted(texts)


def test_tokens_become_a_token_file(tmp_path):
    rows = np.arange(40 * 16).reshape(40, 16)
    pq.write_table(pa.table({"input_ids": rows.tolist()}), tmp_path / "in.parquet")

    make(tmp_path / "in.parquet", tmp_path / "out", "--format", "tokens", "--layout", "flat",
         "--num_shards", "2")  # fmt: skip

    files = sorted((tmp_path / "out").glob("train-*.bin"))
    back = [np.frombuffer(path.read_bytes(), "<u2").reshape(-1, 16) for path in files]
    assert np.array_equal(back[0], rows[::2])
    assert np.array_equal(back[1], rows[1::2])


def test_an_output_named_like_a_data_file_is_one_file(tmp_path, capsys):
    source = write_tasks(tmp_path / "in.jsonl", 100)

    make(source, tmp_path / "few.jsonl.zst", "--max_samples", "7")

    assert ids(tmp_path / "few.jsonl.zst") == list(range(7))
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != ".quark-locks") == [
        "few.jsonl.zst",
        "in.jsonl",
    ]
    assert main(["--input_file", str(source), "--output_dir", str(tmp_path / "few.jsonl.zst")]) == 2
    assert "exists" in capsys.readouterr().err


def test_what_json_cannot_say_is_refused_not_altered(tmp_path, capsys):
    when = datetime(2026, 1, 1, tzinfo=UTC)
    pq.write_table(pa.table({"when": [when]}), tmp_path / "in.parquet")

    code = main(["--input_file", str(tmp_path / "in.parquet"), "--output_dir", str(tmp_path / "o")])

    assert code == 3
    assert "cannot be written as JSON" in capsys.readouterr().err


def test_waiting_samples_keep_every_type(tmp_path):
    sample: dict[str, Any] = {
        "text": "é", "raw": b"\0", "none": None, "yes": True, "real": 0.1, "big": 1 << 80,
        "nested": {"list": [1, [2.5]]}, "exact": Decimal("1.10"),
        "when": datetime(2026, 1, 2, 3, 4, 5, 6, UTC), "array": np.arange(6, dtype="<u2").reshape(2, 3),
        "scalar": np.float32(1.5),
    }  # fmt: skip

    back = decode_sample(encode_sample(sample))

    array = back.pop("array")
    assert np.array_equal(array, sample.pop("array"))
    assert (array.dtype.name, type(back["scalar"])) == ("uint16", np.float32)
    assert back == sample


def test_a_changed_source_is_refused_with_what_changed(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    write_tasks(folder / "a.jsonl", 10)
    write_tasks(folder / "b.jsonl", 10)
    plan = ShardingPlan(num_shards=2)
    create_sharded_dataset(str(folder), str(tmp_path / "out"), plan)
    write_tasks(folder / "b.jsonl", 11)

    with pytest.raises(ChangedError) as caught:
        create_sharded_dataset(str(folder), str(tmp_path / "out"), plan)

    assert "b.jsonl: " in str(caught.value)
    assert "a.jsonl" not in str(caught.value)


def test_progress_has_rate_and_time_left():
    times = iter([0.0, 10.0, 10.1, 20.0])
    told = io.StringIO()
    report = ProgressReporter(told.write, lambda: next(times))

    for samples in (0, 100, 200):
        report(Dealt(samples=samples, done_bytes=samples * 10, total_bytes=4_000))

    first, *_, last = told.getvalue().splitlines()
    assert first == "0 samples"  # a rate of one report would be 0/s
    assert last.startswith("200 samples, 10/s, 50 %, ")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--val_fraction", "1.5"],
        ["--val_key", "id"],
        ["--val_fraction", "0.1", "--layout", "flat", "--samples_per_shard", "5"],
        ["--format", "parquet", "--compression", "zstd"],
    ],
)
def test_options_that_make_no_sense_are_refused(tmp_path, arguments, capsys):
    source = write_tasks(tmp_path / "in.jsonl", 5)

    code = main(["--input_file", str(source), "--output_dir", str(tmp_path / "out"), *arguments])

    assert code == 2
    assert "error: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_output_options_change_no_byte(tmp_path):
    source = write_tasks(tmp_path / "in.jsonl", 20)
    plan = ShardingPlan(num_shards=2)

    create_sharded_dataset(str(source), str(tmp_path / "a"), plan)
    create_sharded_dataset(str(source), str(tmp_path / "b"), plan, output=OutputOptions(workers=1))

    assert digest(tmp_path / "a") == digest(tmp_path / "b")
