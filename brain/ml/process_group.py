"""Rank and world size, and the few exchanges ranks make; the only reader of RANK, WORLD_SIZE ….

One process needs no group: every exchange is then the identity, and torch.distributed is never
imported. Several are started by torch's own launcher, which sets the variables read here.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

START_VARIABLE = "QUARK_START"
LAUNCHER_VARIABLE = "QUARK_LAUNCHER_PID"
"""Process that must outlive the run; not set when the run is detached."""


class World(msgspec.Struct, frozen=True, kw_only=True):
    """Where this process stands among the ranks of a run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    attempt: str = ""
    """The same text in every rank of one start, another in the next start."""
    start: int = 0
    """Which start of a run that begins anew by itself, from 1; 0: it does not."""
    launcher_pid: int | None = None


def read_world(environ: Mapping[str, str] = os.environ) -> World:
    """Return this process's place as torch's launcher wrote it; alone when it did not."""
    launcher = environ.get(LAUNCHER_VARIABLE, "")
    start = int(environ.get(START_VARIABLE, "0"))
    return World(
        rank=int(environ.get("RANK", "0")),
        world_size=int(environ.get("WORLD_SIZE", "1")),
        local_rank=int(environ.get("LOCAL_RANK", "0")),
        attempt=attempt_of(start)
        if start
        else f"{environ.get('TORCHELASTIC_RUN_ID', '')}-{environ.get('MASTER_PORT', os.getpid())}",
        start=start,
        launcher_pid=int(launcher) if launcher.isdigit() else None,
    )


def attempt_of(start: int) -> str:
    """Return `World.attempt` of a numbered start."""
    return f"start-{start}"


def name_start(start: int) -> None:
    """Tell the ranks that this process will start which start of the run theirs is."""
    os.environ[START_VARIABLE] = str(start)


class ProcessGroup:
    """The ranks of a run, joined. All ranks make the same calls in the same order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.saving: Any = None
        """A group of the same ranks for exchanges beside the training; None when alone."""
        self.tensor_size = 1
        """Ranks that share each weight and get the same data: neighbours, a tensor-parallel group."""
        self.mesh: Any = None
        """Ranks as (data, tensor), where there are such groups."""
        self._joined = False

    @property
    def rank(self) -> int:
        """This process's number."""
        return self.world.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.world.world_size

    @property
    def data_size(self) -> int:
        """How many ranks (tensor-parallel groups) have data of their own."""
        return self.world.world_size // self.tensor_size

    @property
    def data_rank(self) -> int:
        """Which of these this process belongs to."""
        return self.world.rank // self.tensor_size

    @property
    def speaks_for_data(self) -> bool:
        """Whether this rank stands for its tensor-parallel group where all of it know the same."""
        return self.world.rank % self.tensor_size == 0

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes what is written once."""
        return self.world.rank == 0

    def join(self, device_type: str, tensor_parallel: int = 1) -> None:
        """Meet the other ranks; control values always travel over gloo, gradients over nccl on cuda.

        `tensor_parallel`: the size of the groups that share each weight; divides the ranks.
        """
        if self.world_size == 1:
            return
        import torch.distributed as dist

        dist.init_process_group("cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo")
        self.saving = dist.new_group(backend="gloo")
        self._joined = True
        if tensor_parallel > 1:
            from torch.distributed.device_mesh import init_device_mesh

            self.tensor_size = tensor_parallel
            self.mesh = init_device_mesh(
                device_type, (self.data_size, tensor_parallel), mesh_dim_names=("data", "tensor")
            )

    def once(self, values: Sequence[float]) -> list[float]:
        """Return values that a tensor-parallel group has in common so that `total` counts them once."""
        return [float(value) if self.speaks_for_data else 0.0 for value in values]

    def total(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, equal to the last bit on each of them."""
        if not self._joined:
            return [float(value) for value in values]
        import torch
        import torch.distributed as dist

        sums = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(sums)
        return [float(value) for value in sums.tolist()]

    def gather_numbers(self, value: int) -> list[int]:
        """Return every rank's value, by rank."""
        if not self._joined:
            return [value]
        import torch
        import torch.distributed as dist

        slots = torch.zeros(self.world_size, dtype=torch.int64)
        slots[self.rank] = value
        dist.all_reduce(slots)
        return [int(slot) for slot in slots.tolist()]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.total([0.0])

    def wrap(self, model: Any, device_type: str) -> Any:
        """Return the model with its gradients averaged over the ranks (DDP), or itself when alone.

        Itself too where tensor-parallel groups share its weights, which DDP does not know.
        """
        if not self._joined or self.mesh is not None:
            return model
        from torch.nn.parallel import DistributedDataParallel

        devices = [self.world.local_rank] if device_type == "cuda" else None
        return DistributedDataParallel(model, device_ids=devices)

    def shard(self, model: Any, device_type: str) -> None:
        """Cut a model's weights over the ranks (FSDP2), block by block; in place.

        Each of its `blocks` is gathered when it computes, and let go again. All ranks call it, with
        the same weights.
        """
        if not self._joined:
            return
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        # Every group of ranks that share weights cuts its own: over those that have other data.
        mesh = self.mesh and self.mesh["data"]
        mesh = mesh or init_device_mesh(device_type, (self.world_size,))
        for block in getattr(model, "blocks", ()):
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)

    def share(self, tensors: Sequence[Any]) -> None:
        """Give every rank rank 0's values, in place; all ranks call it."""
        if not self._joined:
            return
        import torch.distributed as dist

        for tensor in tensors:
            dist.broadcast(tensor, 0)

    def leave(self) -> None:
        """Part from the other ranks in order; an error path does not call it, since it may wait."""
        if self._joined:
            import torch.distributed as dist

            dist.destroy_process_group()
            self._joined = False


def host_name() -> str:
    """Return the name of this machine, by which a reader knows whether a pid means anything to it."""
    return socket.gethostname()
