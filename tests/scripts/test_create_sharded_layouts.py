"""Sharding beyond the documented layout: flat files, other sources, and failures that publish nothing."""

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.documented.hub_fake import Hub, stand_in
from tests.scripts.test_create_sharded_dataset import digest, samples_of, write_tasks
from tools_utilities.dataset_creation import OutputOptions
from tools_utilities.errors import DataError, ObjectNotFoundError, StoreError, UsageError
from tools_utilities.manifest import load_manifest
from tools_utilities.object_store import StoreSpec, open_store
from tools_utilities.object_stores.memory import STORE_SCHEME, MemoryStore
from tools_utilities.sample_source import SourceOptions, open_source, open_sources
from tools_utilities.sample_sources.huggingface import HuggingFaceRecords
from tools_utilities.scripts.create_sharded_dataset import create_sharded_dataset, main
from tools_utilities.sharding_plan import ShardingPlan

CHECKOUT = Path(__file__).resolve().parents[2]


def test_flat_files_are_numbered_of_the_whole_and_have_a_manifest(tmp_path):
    source = write_tasks(tmp_path / "tasks.jsonl", 10)

    create_sharded_dataset(
        str(source), str(tmp_path / "out"), ShardingPlan(num_shards=3, layout="flat")
    )

    names = [f"train-0000{n}-of-00003.jsonl" for n in range(3)]
    manifest = load_manifest(open_store(StoreSpec(uri=f"file://{tmp_path}/out")), "")
    assert manifest is not None
    assert [(s.chunks[0].key, s.num_samples) for s in manifest.shards] == list(
        zip(names, [4, 3, 3], strict=True)
    )
    for shard in manifest.shards:
        data = (tmp_path / "out" / shard.chunks[0].key).read_bytes()
        assert hashlib.sha256(data).hexdigest() == shard.chunks[0].sha256
    again = create_sharded_dataset(
        str(source), str(tmp_path / "out"), ShardingPlan(num_shards=3, layout="flat")
    )
    assert again == {"total_tasks": 10, "num_shards": 3}


def test_samples_per_shard_takes_consecutive_records(tmp_path):
    source = write_tasks(tmp_path / "tasks.jsonl", 10_001)
    plan = ShardingPlan(layout="flat", samples_per_shard=4_000, name="val", compression="zstd")

    create_sharded_dataset(str(source), str(tmp_path / "out"), plan)

    files = sorted(path.name for path in (tmp_path / "out").glob("val-*"))
    assert files == [f"val-0000{n}.jsonl.zst" for n in range(3)]
    back = samples_of(tmp_path / "out")
    assert [row["id"] for row in back] == list(range(10_001))
    assert len(samples_of(tmp_path / "out/val-00002.jsonl.zst")) == 2_001


def test_parquet_becomes_json_lines(tmp_path):
    pq.write_table(pa.table({"id": [1, 2, 3], "text": ["a", "é", None]}), tmp_path / "in.parquet")

    create_sharded_dataset(
        str(tmp_path / "in.parquet"), str(tmp_path / "out"), ShardingPlan(num_shards=2)
    )

    back = sorted(samples_of(tmp_path / "out"), key=lambda row: row["id"])
    assert [row["text"] for row in back] == ["a", "é", None]


def test_several_inputs_are_one_and_go_on_after_a_failure_in_the_second(tmp_path):
    first = write_tasks(tmp_path / "a.jsonl", 5_000)
    lines = first.read_bytes().splitlines(keepends=True)
    second, third = tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    third.write_bytes(b"".join(lines[:7]))
    arguments = ["--input_file", *map(str, (first, second, third)), "--chunk_size_mb", "0.02"]
    second.write_bytes(b"".join(lines[:3_000]))
    assert main([*arguments, "--output_dir", str(tmp_path / "whole")]) == 0
    source = open_sources([str(first), str(second), str(third)], SourceOptions())
    everything = [row for block in source.blocks(0, None) for row in block.records]
    blocks = list(source.blocks(0, None))

    again = list(source.blocks(blocks[2].first, blocks[2].position))

    assert len(everything) == 8_007
    assert again[0].first == blocks[2].first
    assert [row for block in again for row in block.records] == everything[blocks[2].first :]
    assert len(samples_of(tmp_path / "whole")) == 8_007


@pytest.mark.parametrize(
    "arguments",
    [["--layout", "folders", "--samples_per_shard", "3"], ["--format", "jsnol"]],
)
def test_plans_that_make_no_sense_are_refused(tmp_path, arguments, capsys):
    source = write_tasks(tmp_path / "tasks.jsonl", 5)

    code = main(["--input_file", str(source), "--output_dir", str(tmp_path / "out"), *arguments])

    assert code == 2
    assert "error: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_hugging_face_without_its_extra_names_the_command():
    try:
        import datasets  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError) as caught:
            open_source("hf://some/name", SourceOptions())
        assert "pip install 'quark-launcher[hf]'" in caught.value.hint
    else:
        pytest.skip("the [hf] extra is installed")


class RefusingStore(MemoryStore):
    """Answers 500 to the first chunk of shard 2 while it is told to."""

    refusing = True

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.written: list[str] = []

    def put(self, key, data):
        self.written.append(key)
        if self.refusing and key.endswith("shard_002/chunk_0000.jsonl"):
            raise StoreError(f"{key}: 500", status=500, transient=True)
        return super().put(key, data)


@pytest.fixture
def refusing(monkeypatch):
    """A store behind `memory://refusing` that fails one upload."""
    from tools_utilities.object_stores import memory

    store = RefusingStore(StoreSpec(uri="memory://refusing"))
    monkeypatch.setitem(memory._STORES, "memory://refusing", store)
    assert STORE_SCHEME.open(StoreSpec(uri="memory://refusing")) is store
    return store


def test_b43_no_index_without_its_data_and_a_second_run_completes_it(tmp_path, refusing):
    source = write_tasks(tmp_path / "tasks.jsonl", 100)
    pauses: list[float] = []
    output = OutputOptions(state_dir=tmp_path / "s", sleep=pauses.append)

    def make() -> None:
        create_sharded_dataset(
            str(source), "memory://refusing/d", ShardingPlan(num_shards=8), output=output
        )

    with pytest.raises(StoreError, match="500") as caught:
        make()
    assert caught.value.exit_code != 0
    assert sum(pauses) > 10
    with pytest.raises(ObjectNotFoundError):
        refusing.head("d/master_metadata.json")
    there = {info.key for info in refusing.list("")}
    assert not any(key.endswith("metadata.json") for key in there)

    refusing.refusing = False
    refusing.written.clear()
    make()

    # Only what was missing, and the index after everything else.
    chunks = {f"d/shard_{number:03d}/chunk_0000.jsonl" for number in range(8)}
    written = refusing.written
    assert {key for key in written if "/chunk_" in key} == chunks - there
    assert len(written) == len(set(written))
    assert written[-1] == "d/master_metadata.json"
    manifest = load_manifest(refusing, "d/")
    assert manifest is not None
    assert [shard.num_samples for shard in manifest.shards] == [13] * 4 + [12] * 4
    assert manifest.num_samples == 100
    for key, chunk in manifest.chunks.items():
        data = b"".join(refusing.get(key))
        assert (len(data), hashlib.sha256(data).hexdigest()) == (chunk.num_bytes, chunk.sha256)


def test_b44_an_error_while_writing_publishes_nothing_and_keeps_its_cause(tmp_path):
    source = write_tasks(tmp_path / "tasks.jsonl", 3_000)
    broken = tmp_path / "broken.jsonl"
    lines = source.read_bytes().splitlines(keepends=True)
    broken.write_bytes(b"".join(lines[:1500]) + b'{"boom": 500\n' + b"".join(lines[1501:]))
    plan = ShardingPlan(layout="flat", samples_per_shard=1000, format="parquet")

    with pytest.raises(DataError, match="line 1501"):
        create_sharded_dataset(str(broken), str(tmp_path / "out"), plan)

    left = sorted(path.name for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert not any("00001" in name or name == "manifest.json" for name in left)
    whole = tmp_path / "whole"
    create_sharded_dataset(str(source), str(whole), plan)
    again = tmp_path / "again"
    create_sharded_dataset(str(source), str(again), plan)
    assert digest(whole) == digest(again)


class FailingRows:
    """An iterable dataset, as `datasets` has them, that fails at one of its rows."""

    def __init__(self, fails_at: int, first: int = 0, error: type[Exception] = ValueError) -> None:
        self.fails_at, self.first, self.error = fails_at, first, error

    def skip(self, count: int) -> "FailingRows":
        return FailingRows(self.fails_at, count, self.error)

    def __iter__(self):
        for number in range(self.first, 3000):
            if number == self.fails_at:
                raise self.error("boom 500")
            yield {"id": number}


@pytest.mark.parametrize("fails_at", [0, 1024, 1500])
def test_b44_a_dataset_of_the_hub_that_fails_is_told_with_its_sample(tmp_path, fails_at):
    source = HuggingFaceRecords("hf://failing", FailingRows(fails_at), "1")

    with pytest.raises(ValueError, match="boom 500") as caught:
        create_sharded_dataset(source, str(tmp_path / "out"), ShardingPlan(num_shards=2))

    assert str(caught.value) == f"hf://failing: at sample {fails_at}: ValueError: boom 500"
    assert caught.value.__cause__ is not None
    assert not list(tmp_path.glob("out/*.json"))
    assert [
        block.first for block in HuggingFaceRecords("", FailingRows(9999), "1").blocks(5, {})
    ] == [
        5,
        1029,
        2053,
    ]


@pytest.mark.parametrize(
    ("error", "code"), [(ValueError, 3), (KeyError, 3), (ConnectionResetError, 1)]
)
def test_a_dataset_of_the_hub_that_fails_is_told_in_a_line_and_a_hint(
    tmp_path, monkeypatch, capsys, error, code
):
    rows: Any = FailingRows(7, error=error)
    stand_in(monkeypatch, Hub({("org/set", None, "train"): rows}))

    assert main(["--input_file", "hf://org/set", "--output_dir", str(tmp_path / "out")]) == code

    told, hint = capsys.readouterr().err.splitlines()
    assert told == f"error: hf://org/set: at sample 7: {error.__name__}: {error('boom 500')}"
    assert "run the same command again" in hint
    assert not list(tmp_path.glob("out/*.json"))


MEASURED = """
import sys, threading
from pathlib import Path
from tools_utilities.scripts.create_sharded_dataset import main
# Not ru_maxrss: that counts what the parent held when it forked.
def most(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024
children, ended = {}, threading.Event()
def look():
    while not ended.wait(0.1):
        for path in Path("/proc/self/task").glob("*/children"):
            try:
                children.update((pid, most(pid)) for pid in path.read_text().split())
            except (OSError, IndexError):
                pass  # a thread or a process has just ended
looking = threading.Thread(target=look)
looking.start()
code = main(sys.argv[1:])
ended.set()
looking.join()
print(most("self") + sum(children.values()))
sys.exit(code)
"""
LINE = json.dumps({"id": 7, "text": "x" * 4000}).encode() + b"\n"


def check_memory(tmp_path: Path, num_bytes: int, *more: str, name: str = "big.jsonl") -> None:
    source = tmp_path / name
    INPUTS[name](source, num_bytes // len(LINE))
    command = [
        *(sys.executable, "-c", MEASURED, "--input_file", str(source)),
        *("--output_dir", str(tmp_path / "out"), "--chunk_size_mb", "20", *more),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(CHECKOUT)}
    )
    used = int(done.stdout.splitlines()[-1])
    assert used <= 300, f"{name} {' '.join(more)}: {used} MB"


def write_lines(path: Path, count: int) -> None:
    with path.open("wb") as file:
        for _ in range(count // 256):
            file.write(LINE * 256)


def write_gzip(path: Path, count: int) -> None:
    with gzip.open(path, "wb", 1) as file:
        for _ in range(count // 256):
            file.write(LINE * 256)


def write_one_row_group(path: Path, count: int) -> None:
    table = pa.table({"id": pa.nulls(256, pa.int64()).fill_null(7), "text": ["x" * 4000] * 256})
    with pq.ParquetWriter(path, table.schema, use_dictionary=False) as writer:
        writer.write_table(pa.concat_tables([table] * (count // 256)), row_group_size=1 << 30)


def write_table_text(path: Path, count: int) -> None:
    with path.open("wb") as file:
        file.write(b"id,text\n")
        for _ in range(count // 256):
            file.write((b"7," + b"x" * 4000 + b"\n") * 256)


def write_list(path: Path, count: int) -> None:
    with path.open("wb") as file:
        file.write(b"[\n")
        for _ in range(count // 256):
            file.write((LINE.strip() + b",\n") * 256)
        file.write(b"{}]\n")


def write_tokens(path: Path, count: int) -> None:
    with path.open("wb") as file:
        for _ in range(count // 256):
            file.write(b'{"input_ids":[%s]}\n' % b",".join([b"50256"] * 1024) * 160)


INPUTS = {
    "big.jsonl": write_lines,
    "big.jsonl.gz": write_gzip,
    "big.parquet": write_one_row_group,
    "big.csv": write_table_text,
    "big.json": write_list,
    "tokens.jsonl": write_tokens,
}


@pytest.mark.slow
def test_memory_stays_below_300_mb(tmp_path):
    check_memory(tmp_path, 300_000_000)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "more",
    [
        (),
        ("--compression", "zstd"),
        ("--format", "parquet"),
        ("--format", "parquet", "--num_shards", "64"),
        ("--format", "mds"),
        ("--format", "litdata"),
        ("--format", "webdataset"),
        ("--shuffle",),
        ("--compression", "zstd", "--num_shards", "64"),
    ],
    ids=" ".join,
)
def test_memory_stays_below_300_mb_for_2_gb(tmp_path, more):
    check_memory(tmp_path, 2_000_000_000, *more)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("big.jsonl.gz", ()),
        ("big.parquet", ()),
        ("big.json", ()),
        ("big.csv", ("--format", "parquet")),
        ("tokens.jsonl", ("--format", "tokens")),
    ],
)
def test_memory_stays_below_300_mb_from_2_gb_of_other_inputs(tmp_path, name, more):
    check_memory(tmp_path, 2_000_000_000, *more, name=name)
