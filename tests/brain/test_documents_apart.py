"""Documents packed into one sequence do not see each other: their losses are those of each by itself."""

import numpy as np
import pytest
import torch

from brain.ml.compute import documents_of, loss_sum
from brain.ml.model import build_model
from brain.ml.model_shape import ModelShape, layers_for
from brain.ml.packing import TokenRun
from brain.ml.token_source import Batch, Collate, TokenSource
from brain.ml.tokenizer import load_tokenizer
from tests.training import losses, make_job, text_shards, train_here, write_shards

CPU = torch.device("cpu")
END = 2
MODEL = build_model("quark", ModelShape(layers=2, vocab_size=259, seq_len=32), 1)
FIRST, SECOND, THIRD = [END, 10, 11, 12], [END, 20, 21, 22, 23, 24], [END, 30, 31]


def batch_of(*rows: list[int], end_id: int | None = END) -> Batch:
    collate = Collate(pad_id=0, vocab_size=259, end_id=end_id)
    return collate([{"tokens": np.array(row, np.uint16)} for row in rows])


def loss_of(*rows: list[int], end_id: int | None = END) -> float:
    return float(loss_sum(MODEL, batch_of(*rows, end_id=end_id), "fp32", CPU, apart=True).detach())


def test_packed_documents_have_the_losses_they_have_alone():
    """The last token of a document predicts the end, which begins the next one."""
    packed = FIRST + SECOND + THIRD
    alone = loss_of([*FIRST, END], [*SECOND, END], THIRD)
    assert loss_of(packed) == pytest.approx(alone, abs=1e-4)
    assert loss_of(packed, end_id=None) != pytest.approx(alone, abs=1e-2)


def test_a_document_cut_by_the_border_and_padding_change_nothing():
    rest = [11, 12, *SECOND]  # the border came after 10
    assert loss_of(rest, THIRD + FIRST) == pytest.approx(
        loss_of([11, 12, END], SECOND, [*THIRD, END], FIRST), abs=1e-4
    )


def test_logits_of_a_document_do_not_depend_on_its_neighbours():
    ours, others = batch_of(FIRST + SECOND), batch_of([END, 77, 78, 79, *SECOND])
    found = []
    for batch in (ours, others):
        documents_BT = documents_of(batch)
        found.append(MODEL(batch.tokens_BT[:, :-1].long(), documents_BT)[:, 4:])
    torch.testing.assert_close(*found)


def test_documents_are_told_only_where_there_are_several():
    assert documents_of(batch_of(FIRST, SECOND)) is None
    assert documents_of(batch_of(FIRST + SECOND, end_id=None)) is None
    documents_BT = documents_of(batch_of(FIRST + SECOND + THIRD, [5, END, 6, END, END, 7]))
    assert documents_BT is not None
    assert documents_BT.tolist() == [
        [0] * 4 + [1] * 6 + [2] * 2,
        [0, 1, 1, 2, 3, *[3] * 7],
    ]


@pytest.mark.parametrize(("fields", "end_id"), [({}, None), ({"eos_id": 1, "token_ends": True}, 1)])
def test_token_files_are_cut_at_the_end_token_only_where_it_was_said(tmp_path, fields, end_id):
    data = {f"d/train/train-{n:05d}.bin": np.arange(64, dtype="<u2").tobytes() for n in range(2)}
    job = make_job(tmp_path / "run", write_shards(tmp_path, data), val=(), **fields)
    source = TokenSource(job, job.train[0], load_tokenizer("bytes"), training=True)
    assert isinstance(source.view, TokenRun)
    assert source.collate.end_id == end_id


def test_training_keeps_the_documents_of_text_apart(tmp_path):
    """The first step's loss is that of the packed batch with its documents apart."""
    job = make_job(tmp_path / "run", write_shards(tmp_path, text_shards()), max_steps=1)
    assert train_here(job) == 0
    source = TokenSource(job, job.train[0], load_tokenizer("bytes"), training=True)
    batch = next(iter(source.loader(job.batch_size)))
    assert documents_of(batch) is not None
    fresh = build_model("quark", ModelShape(layers=1, vocab_size=259, seq_len=32), job.seed)
    loss = loss_sum(fresh, batch, "fp32", CPU, apart=True) / batch.num_targets
    assert losses(tmp_path / "run") == pytest.approx([float(loss.detach())], abs=1e-6)


@pytest.mark.parametrize(
    ("parameters", "layers"), [(1, 1), (500_000, 2), (10_000_000, 6), (85_000_000, 12)]
)
def test_dial_of_a_size(parameters: int, layers: int):
    assert layers_for(parameters, vocab_size=259, seq_len=256) == layers
