"""Tensor parallelism: the ranks of a group each have a part of every weight, and the same data.

Which part is the model's to say: its method `tensor_plan()` returns what torch's `parallelize_module`
takes, a name (`blocks.*.up`) → a style. Weights it does not name all ranks of a group have whole.
"""

from typing import Any

from torch import Tensor, nn

from brain.ml.process_group import ProcessGroup
from tools_utilities.errors import UsageError


def share_weights(model: nn.Module, group: ProcessGroup, name: str) -> None:
    """Cut a model's weights over the ranks of each tensor-parallel group, in place.

    Every rank calls it with the same weights. Nothing happens where there are no such groups.

    Raises:
        UsageError: the model does not say how.
    """
    if group.mesh is None:
        return
    plan = getattr(model, "tensor_plan", None)
    if plan is None:
        raise UsageError(
            f"tensor_parallel={group.tensor_size}: model {name} has no tensor_plan",
            hint="Give it a method tensor_plan() that returns a plan for parallelize_module.",
        )
    from torch.distributed.tensor.parallel import parallelize_module

    parallelize_module(model, group.mesh["tensor"], plan())


def local_part(tensor: Any) -> Tensor:
    """Return what this rank has of a tensor: all of one that is not shared."""
    found: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def num_parts(tensor: Any) -> int:
    """Return how many ranks make one whole tensor; the others have copies."""
    placements = getattr(tensor, "placements", ())
    parts = 1
    for dimension, placement in enumerate(placements):
        if not placement.is_replicate():
            parts *= tensor.device_mesh.size(dimension)
    return parts
