"""What a sentence that makes shards may say: shuffle, seed, workers, name, and the rest."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.resource_manager.test_processing import project, say
from tests.scripts.test_create_sharded_dataset import samples_of

__all__ = ["project"]


def ids(folder: Path) -> list[int]:
    return [row["id"] for row in samples_of(folder)]


def test_shuffled_with_a_seed(project, capsys):
    for name, words in (("a", "seed 3"), ("b", "seed 3"), ("c", "seed 4"), ("d", "")):
        code, _ = say(
            capsys, f"shard ./tasks.jsonl into 1 shards to ./{name} shuffled {words}".strip()
        )
        assert code == 0

    orders = [ids(project / name) for name in "abcd"]
    assert orders[0] == orders[1] != orders[2]
    assert all(sorted(order) == list(range(20)) != order for order in orders)


def test_workers_and_no_shuffle_change_no_byte(project, capsys):
    say(capsys, "shard ./tasks.jsonl into 2 shards to ./a")
    code, _ = say(
        capsys, "shard ./tasks.jsonl into 2 shards to ./b with 4 workers without shuffling"
    )

    assert code == 0
    for shard in ("shard_000", "shard_001"):
        name = f"{shard}/chunk_0000.jsonl"
        assert (project / "a" / name).read_bytes() == (project / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("into 2 shards", "genomes/shard_001/chunk_0000.jsonl"),
        ("into 2 shards to ./out", "out/genomes/shard_001/chunk_0000.jsonl"),
        ("10 samples each to ./out", "out/genomes-00001.jsonl"),
    ],
)
def test_a_name_is_the_folders_or_the_files(project, capsys, words, expected):
    code, _ = say(capsys, f"shard ./tasks.jsonl {words}, call it genomes")

    assert code == 0
    assert (project / expected).is_file()


def test_the_plan_says_that_it_shuffles_and_writes_nothing(project, capsys):
    code, printed = say(capsys, "shard ./tasks.jsonl to ./out shuffled seed 5, dry run")

    assert code == 0
    assert "shuffled with seed 5" in json.dumps(printed)
    assert not (project / "out").exists()


def test_token_files_are_read_as_wide_as_is_said(project, capsys):
    (project / "plain.bin").write_bytes(np.array([70_000, 5, 6], "<u4").tobytes())
    words = "shard ./plain.bin into 1 shards as parquet to ./rows"

    code, _ = say(capsys, words, "--override", "token_dtype=uint32")

    assert code == 0
    assert [row["input_ids"] for row in samples_of(project / "rows")] == [[70_000, 5, 6]]
