"""Where this process stands: its rank (torch.distributed, else the launcher's variables), its worker."""

import logging
from typing import NamedTuple

import torch.distributed as dist
from torch.utils.data import get_worker_info

from brain.ml.process_group import read_world
from tools_utilities.errors import UsageError

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """A rank among ranks."""

    rank: int
    world_size: int
    replicas: int = 1
    """Processes that have this place: a tensor-parallel group, ranks of torch side by side."""


def find_place(rank: int | None, world_size: int | None, replicas: int = 1) -> Place:
    """Return the place given, else the one this process has.

    Raises:
        UsageError: a rank that is not in the world, or ranks that do not make whole groups.
    """
    if rank is None and world_size is None:
        own, ranks = _own()
        if ranks % replicas:
            raise UsageError(
                f"tensor_parallel={replicas}: {ranks} ranks do not make whole groups",
                hint=f"Use a multiple of {replicas} ranks.",
            )
        return Place(own // replicas, ranks // replicas, replicas)
    place = Place(rank or 0, 1 if world_size is None else world_size, replicas)
    if not 0 <= place.rank < place.world_size:
        raise UsageError(
            f"rank={rank}, world_size={world_size}: not a rank of that world",
            hint="Give both, with 0 <= rank < world_size, or neither.",
        )
    return place


def can_exchange(place: Place) -> bool:
    """Tell whether the ranks of `place` are joined, so that they may exchange what they know."""
    if place.world_size == 1 or get_worker_info() is not None or not _joined():
        return False
    rank, ranks = _own()
    return place == (rank // place.replicas, ranks / place.replicas, place.replicas)


def warn_of_workers() -> None:
    """Warn, once an iteration, that without a batch size the order depends on the workers."""
    worker = get_worker_info()
    if worker is not None and worker.num_workers > 1 and worker.id == 0:
        logger.warning(
            "StreamDataset has no batch_size: with %d loader workers the order depends on their "
            "number; give it the DataLoader's batch_size",
            worker.num_workers,
        )


def gather(value: object, place: Place) -> list[object]:
    """Return every rank's value, by rank; a collective, so all ranks must call it.

    Of ranks that share a place all take part, and the first one's value counts.
    """
    values: list[object] = [None] * (place.world_size * place.replicas)
    dist.all_gather_object(values, value)
    return values[:: place.replicas]


def _own() -> tuple[int, int]:
    if _joined():
        return dist.get_rank(), dist.get_world_size()
    world = read_world()
    return world.rank, world.world_size


def _joined() -> bool:
    return dist.is_available() and dist.is_initialized()
