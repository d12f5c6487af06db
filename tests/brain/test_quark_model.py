"""The `quark` model: its dial, its seed, and that no position sees what comes after it."""

from typing import Any

import pytest
import torch

from brain.ml.compute import loss_sum
from brain.ml.model import build_model, model_kinds
from brain.ml.model_shape import ModelShape
from brain.ml.optimizer import build_optimizer
from brain.ml.token_source import Batch, Collate, empty_batch
from brain.ml.training_job import DataSource, TrainingJob
from tools_utilities.errors import UsageError
from tools_utilities.object_store import StoreSpec

SHAPE = ModelShape(layers=2, vocab_size=259, seq_len=16)
CPU = torch.device("cpu")


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 259, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_dial_gives_the_size_that_the_plan_says(layers: int):
    shape = ModelShape(layers=layers, vocab_size=259, seq_len=16)
    model = build_model("quark", shape, 0)
    assert sum(weight.numel() for weight in model.parameters()) == shape.num_parameters
    assert (shape.width, shape.heads) == (64 * layers, layers)


def test_weights_follow_the_seed_alone():
    torch.manual_seed(99)
    first = build_model("quark", SHAPE, 7).state_dict()
    torch.manual_seed(1)
    again, other = build_model("quark", SHAPE, 7).state_dict(), build_model("quark", SHAPE, 8)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["head.weight"], other.state_dict()["head.weight"])


def test_no_position_sees_a_later_token():
    model = build_model("quark", SHAPE, 0)
    tokens_BT = _tokens(2, 16)
    changed_BT = tokens_BT.clone()
    changed_BT[:, 9] = (changed_BT[:, 9] + 1) % 259
    before_BTV, after_BTV = model(tokens_BT), model(changed_BT)
    assert torch.equal(before_BTV[:, :9], after_BTV[:, :9])
    assert not torch.allclose(before_BTV[:, 9:], after_BTV[:, 9:])


def test_positions_matter():
    model = build_model("quark", SHAPE, 0)
    tokens_BT = torch.tensor([[5, 6, 7, 8], [6, 5, 7, 8]])
    logits_BTV = model(tokens_BT)
    assert not torch.allclose(logits_BTV[0, 3], logits_BTV[1, 3], atol=1e-6)


def test_padding_changes_neither_loss_nor_count():
    model = build_model("quark", SHAPE, 0)
    collate = Collate(pad_id=0, vocab_size=259)
    rows: list[dict[str, Any]] = [
        {"tokens": _tokens(9).numpy()}, {"tokens": _tokens(4).numpy()}, {"tokens": _tokens(1).numpy()}
    ]  # fmt: skip
    together = collate(rows)
    apart = [collate([row]) for row in rows[:2]]
    assert together.tokens_BT.shape == (3, 9)
    assert together.num_targets == 8 + 3 + 0
    total = loss_sum(model, together, "fp32", CPU)
    expected = sum(float(loss_sum(model, batch, "fp32", CPU).detach()) for batch in apart)
    assert float(total.detach()) == pytest.approx(expected, rel=1e-5)


def test_empty_batch_has_no_loss_and_no_gradient():
    model = build_model("quark", SHAPE, 0)
    batch: Batch = empty_batch(0)
    assert batch.num_targets == 0
    torch.autograd.backward(loss_sum(model, batch, "fp32", CPU))
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert gradients
    assert all(not gradient.any() for gradient in gradients)


def test_matrices_alone_decay():
    model = build_model("quark", SHAPE, 0)
    source = DataSource(store=StoreSpec(uri="memory://m"), prefix="")
    job = TrainingJob(name="n", run_dir="/r", train=(source,), weight_decay=0.3)
    optimizer, names = build_optimizer(model, job, "cpu")
    decayed, others = optimizer.param_groups
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.3, 0.0)
    assert all(weight.dim() == 1 for weight in others["params"])
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_unknown_model_lists_the_known_ones():
    with pytest.raises(UsageError, match="model nosuch") as caught:
        build_model("nosuch", SHAPE, 0)
    assert all(name in caught.value.hint for name in model_kinds())
