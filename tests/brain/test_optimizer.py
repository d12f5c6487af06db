"""The optimizers: torch's own arithmetic, without the compiler that torch's classes load."""

import copy
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import nn

from brain.ml.optimizer import build_optimizer, set_learning_rate
from brain.ml.training_job import DataSource, TrainingJob
from tools_utilities.object_store import StoreSpec

SOURCE = DataSource(store=StoreSpec(uri="file:///data"), prefix="d/")
TORCHS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda groups: torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), fused=True),
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9, fused=True),
}


def job_of(optimizer: str) -> TrainingJob:
    return TrainingJob(
        name="x", run_dir="/x", train=(SOURCE,), optimizer=optimizer, lr=0.01, betas=(0.9, 0.95)
    )


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    for step in range(count):
        set_learning_rate(optimizer, 0.01 / (1 + step))
        optimizer.zero_grad(set_to_none=True)
        model(torch.randn(8, 4, generator=chance)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("kind", TORCHS)
def test_the_weights_are_those_of_torchs_own(kind):
    torch.manual_seed(1)
    ours, theirs = nn.Linear(4, 3), nn.Linear(4, 3)
    theirs.load_state_dict(ours.state_dict())
    optimizer, _ = build_optimizer(ours, job_of(kind), "cpu")
    decay = job_of(kind).weight_decay
    other = TORCHS[kind](
        [
            {"params": [theirs.weight], "weight_decay": decay},
            {"params": [theirs.bias], "weight_decay": 0.0},
        ]
    )
    steps(ours, optimizer, 5, seed=2)
    steps(theirs, other, 5, seed=2)

    # A state goes on in either, and one that was loaded does too.
    saved = copy.deepcopy(other.state_dict())
    assert optimizer.state_dict()["param_groups"] == saved["param_groups"]
    optimizer.load_state_dict(saved)
    steps(ours, optimizer, 5, seed=3)
    steps(theirs, other, 5, seed=3)

    assert torch.equal(ours.weight, theirs.weight)
    assert torch.equal(ours.bias, theirs.bias)


def test_torchs_compiler_is_not_loaded():
    program = """
import sys
from torch import nn
from tests.brain.test_optimizer import TORCHS, build_optimizer, job_of, steps
for kind in TORCHS:
    model = nn.Linear(4, 3)
    optimizer, _ = build_optimizer(model, job_of(kind), "cpu")
    steps(model, optimizer, 2, seed=1)
    optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
