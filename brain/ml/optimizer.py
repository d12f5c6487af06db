"""The optimizer: AdamW or SGD, weight decay on matrices alone (not on norms or biases)."""

import inspect
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from brain.ml.training_job import TrainingJob

MATRIX_DIMENSIONS = 2


class _Eager(torch.optim.Optimizer):
    """What torch's optimizers do, without what loads torch's compiler at their first call.

    Torch wraps these methods to keep its compiler out of them, and imports that compiler to say so: more
    than a second of every run's start. A compiled model (`compile`) is no concern of the optimizer's.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = inspect.unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = inspect.unwrap(torch.optim.Optimizer.load_state_dict)


class _AdamW(_Eager, torch.optim.AdamW):
    step = torch.no_grad()(inspect.unwrap(torch.optim.AdamW.step))


class _SGD(_Eager, torch.optim.SGD):
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))


def _adamw(groups: list[dict[str, Any]], job: TrainingJob, *, fused: bool) -> torch.optim.Optimizer:
    return _AdamW(groups, lr=job.lr, betas=job.betas, fused=fused)


def _sgd(groups: list[dict[str, Any]], job: TrainingJob, *, fused: bool) -> torch.optim.Optimizer:
    shared = any(_mesh_of(weight) is not None for group in groups for weight in group["params"])
    # Torch's fused SGD takes no weights that ranks share (2.13), as its fused AdamW does.
    return _SGD(groups, lr=job.lr, momentum=0.9, fused=fused and not shared)


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {"adamw": _adamw, "sgd": _sgd}


_SLOTS: dict[type[torch.optim.Optimizer], set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.SGD: {"momentum_buffer"},
}
"""What each keeps for a weight; torch looks for it at the first step only."""


def slots_differ(optimizer: torch.optim.Optimizer, slots: Collection[str]) -> str | None:
    """Say how what was kept for a weight is not what this optimizer keeps; None: it is."""
    for kind, kept in _SLOTS.items():
        if isinstance(optimizer, kind) and set(slots) != kept:
            found, needed = (", ".join(sorted(names)) for names in (slots, kept))
            return f"it is {found}, {kind.__name__} keeps {needed}"
    return None


def build_optimizer(
    model: nn.Module, job: TrainingJob, device_type: str
) -> tuple[torch.optim.Optimizer, list[str]]:
    """Return the optimizer and the parameters' names in the order it numbers them."""
    named = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    matrices = [(name, weight) for name, weight in named if weight.dim() >= MATRIX_DIMENSIONS]
    others = [(name, weight) for name, weight in named if weight.dim() < MATRIX_DIMENSIONS]
    decayed, plain = _by_mesh(matrices), _by_mesh(others)
    groups = [
        {"params": [weight for _, weight in members], "weight_decay": decay}
        for alike, decay in ((decayed, job.weight_decay), (plain, 0.0))
        for members in alike
    ]
    optimizer = OPTIMIZERS[job.optimizer](groups, job, fused=device_type in {"cpu", "cuda"})
    return optimizer, [name for members in (*decayed, *plain) for name, _ in members]


def _by_mesh(named: list[tuple[str, nn.Parameter]]) -> list[list[tuple[str, nn.Parameter]]]:
    """Return weights in groups that one call may update: those shared by the same ranks, or by none."""
    found: dict[Any, list[tuple[str, nn.Parameter]]] = {}
    for name, weight in named:
        found.setdefault(_mesh_of(weight), []).append((name, weight))
    return list(found.values())


def _mesh_of(weight: nn.Parameter) -> Any:
    """Return which ranks share a weight; None: it is whole."""
    return getattr(weight, "device_mesh", None)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give every parameter group the rate of the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
