"""The Parquet loader's names (section P): one test a row, each of what the name does."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.packing import PackedText, TokenLists, TokenSequences
from brain.ml.text_rule import TextRule
from brain.ml.token_source import Collate
from brain.ml.tokenizer import load_tokenizer
from brain.ml.training_job import TrainingJob
from tests.brain.direct_manager import DirectManager
from tests.brain.stream_data import ids, manager_of, memory_manager, parquet
from tools_utilities.errors import DataNotFoundError, RecordError, UsageError
from tools_utilities.setting_keys import KEYS_BY_NAME
from tools_utilities.shard_format import ReadOptions
from tools_utilities.token_rows import TOKEN_COLUMNS

TESTS = Path(__file__).parents[1]


def rank_stream(count: int, rank: int, world_size: int) -> StreamDataset:
    return StreamDataset(
        memory_manager([2] * count), "data/x/", partition="files", rank=rank,
        world_size=world_size, max_drop=1.0, equalize="none",
    )  # fmt: skip


def test_file_i_belongs_to_rank_i_mod_world_size():
    parts = [rank_stream(10, rank, 3).rank_files() for rank in range(3)]
    assert [len(part) for part in parts] == [4, 3, 3]
    numbers = [[int(key[-11:-6]) for key in part] for part in parts]
    assert numbers == [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]


def test_an_epoch_shuffles_the_order_of_a_ranks_own_files():
    stream = rank_stream(12, 1, 3)
    epochs = [ids(stream) for _ in range(3)]
    own = {id_ for number in (1, 4, 7, 10) for id_ in (2 * number, 2 * number + 1)}
    assert all(set(epoch) == own for epoch in epochs)
    files = [tuple(dict.fromkeys(id_ // 2 for id_ in epoch)) for epoch in epochs]
    assert len(set(files)) > 1


def test_insufficient_files_is_an_error_of_this_strategy_alone():
    with pytest.raises(UsageError, match="insufficient files: 2 files for 3 workers"):
        list(rank_stream(2, 0, 3))
    with pytest.raises(UsageError, match="insufficient files"):
        rank_stream(2, 0, 3).rank_files()
    for other in ("round_robin", "contiguous", "hash"):
        stream = StreamDataset(
            memory_manager([2, 2]), "data/x/", partition=other, rank=0, world_size=3,
            equalize="none",
        )  # fmt: skip
        list(stream)


@pytest.mark.parametrize("contract", ["C-SHARD-001", "C-DATARESUME-001"])
def test_the_contracts_name_their_tests(contract):
    """Each is the name of tests, in the code and in the guide."""
    name = f"test_{contract.lower().replace('-', '_')}"
    found = [
        path.name
        for path in TESTS.rglob("test_*.py")
        if path.parent != Path(__file__).parent
        and re.search(rf"^def {name}_", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert found
    guide = (TESTS.parent / "docs/streaming.md").read_text(encoding="utf-8")
    assert contract in guide
    assert name.removeprefix("test_") in guide


def rows(manager: DirectManager, view: Any = None) -> tuple[list[list[int]], StreamDataset]:
    stream = StreamDataset(
        manager, "d/", shuffle=False, equalize="none",
        options=ReadOptions(first_of=TOKEN_COLUMNS), view=view or TokenLists(),
    )  # fmt: skip
    return [next(iter(sample.values())).tolist() for sample in stream], stream


def test_input_ids_wins_over_token_ids():
    both = parquet(token_ids=[[9, 9]], input_ids=[[1, 2]])
    found, _ = rows(manager_of({"d/a.parquet": both}))
    assert found == [[1, 2]]
    only = parquet(token_ids=[[9, 9]])
    found, _ = rows(manager_of({"d/a.parquet": only}))
    assert found == [[9, 9]]


def test_null_and_empty_rows_are_skipped_and_counted():
    ids_ = pa.array([[1, 2], None, [], [3, 4], None], pa.list_(pa.int32()))
    found, stream = rows(manager_of({"d/a.parquet": parquet(input_ids=ids_)}))
    assert found == [[1, 2], [3, 4]]
    assert stream.get_stats()["skipped"] == {"null": 2, "empty": 1}


def test_batches_are_padded_on_the_right_with_pad_id():
    batch = Collate(pad_id=0, vocab_size=100)([{"tokens": [5, 6, 7]}, {"tokens": [8]}])
    assert torch.equal(batch.tokens_BT.to(torch.int64), torch.tensor([[5, 6, 7], [8, 0, 0]]))
    assert batch.lengths_B.tolist() == [3, 1]
    other = Collate(pad_id=9, vocab_size=100)([{"tokens": [5, 6, 7]}, {"tokens": [8]}])
    assert other.tokens_BT.tolist()[1] == [8, 9, 9]


def test_pad_id_is_0_and_eos_id_2_by_default():
    assert (KEYS_BY_NAME["pad_id"].default, KEYS_BY_NAME["eos_id"].default) == (0, 2)
    job = TrainingJob(name="n", run_dir="/r", train=())
    assert (job.pad_id, job.eos_id, job.overlong) == (0, 2, "split")


def test_documents_end_in_eos_id():
    view = PackedText(
        rule=TextRule(field="text"), tokenizer=load_tokenizer("bytes"), eos_id=2, seq_len=64
    )
    manager = manager_of({"d/a.parquet": parquet(text=["ab", "c"])})
    stream = StreamDataset(manager, "d/", shuffle=False, view=view)
    (sample,) = list(stream)
    assert sample["tokens"].tolist() == [2, ord("a") + 3, ord("b") + 3, 2, ord("c") + 3, 2]


@pytest.mark.parametrize(
    ("overlong", "expected"),
    [("split", [[1, 2, 3, 4], [4, 5, 6]]), ("cut", [[1, 2, 3]]), ("error", None)],
)
def test_overlong_rows_are_cut_split_or_an_error(overlong, expected):
    manager = manager_of({"d/a.parquet": parquet(input_ids=[[1, 2, 3, 4, 5, 6]])})
    view = TokenSequences(vocab_size=100, seq_len=3, overlong=overlong)
    if expected is None:
        with pytest.raises(RecordError, match=r"d/a.parquet: row 1 has 6 tokens, seq_len is 3"):
            rows(manager, view)
        return
    found, _ = rows(manager, view)
    assert found == expected


def test_a_missing_folder_is_named():
    manager = manager_of({"d/a.parquet": parquet(x=[1])})
    stream = StreamDataset(manager, "nowhere/")
    with pytest.raises(DataNotFoundError, match=r"no data at prefix 'nowhere/'") as caught:
        list(stream)
    assert manager.spec.uri in str(caught.value)
    assert caught.value.detail["prefix"] == "nowhere/"


def test_a_folder_without_a_parquet_file_is_named():
    manager = manager_of({"d/a.jsonl": b"{}\n"})
    with pytest.raises(DataNotFoundError, match=r"no parquet file at prefix 'd/'"):
        list(StreamDataset(manager, "d/", format_name="parquet"))
