"""What loader workers will open, fetched by the process that delivers their batches.

Workers say what comes next and what they have opened (`worker_shards.py`); the manager here has the
client, the listing and the read-ahead, so each object is downloaded once.
"""

from collections.abc import Sequence
from typing import Any

from brain.ml.dataset_shards.epoch_plan import EpochPlan
from brain.ml.dataset_shards.shuffle_order import Indices
from brain.ml.dataset_shards.stream_partitions import objects_first_needed
from tools_utilities.object_store import ObjectInfo

_EXPECTED = 256
"""Objects fetched before the workers say what they need; bytes are bounded by the manager."""


class BroughtObjects:
    """The owner's side: fetches what workers will open, until one of them has it."""

    def __init__(self, manager: Any, objects: Sequence[ObjectInfo]) -> None:
        self._manager = manager
        self._objects = objects
        self._wanted: dict[int, None] = {}

    def begin(self) -> None:
        """Forget what an earlier pass wanted."""
        self._wanted = {}

    def expect(self, plan: EpochPlan, counts: Indices) -> None:
        """Fetch what an epoch begins with, before there is a worker to say so."""
        infos = objects_first_needed(plan, counts, _EXPECTED)
        self._wanted = dict.fromkeys(self._objects.index(info) for info in infos)
        self._manager.prefetch_shards(infos)

    def wanted(self, numbers: Sequence[int]) -> None:
        """Fetch what a worker will need, and before what was wanted of the others."""
        self._wanted = {**dict.fromkeys(numbers), **self._wanted}
        self._manager.prefetch_shards([self._objects[number] for number in self._wanted])

    def opened(self, number: int) -> None:
        """Note that an object has come into use: it takes no part of the read-ahead any more."""
        if number in self._wanted:
            del self._wanted[number]
            self._manager.opened_elsewhere(self._objects[number])
