"""How a stream is read, apart from what: the settings of a StreamDataset, checked."""

import operator
from typing import Any

import msgspec

from brain.ml.dataset_shards.epoch_plan import Tolerance
from brain.ml.dataset_shards.partition_strategy import World, find_strategy
from tools_utilities.errors import UsageError

_CHOICES = {
    "equalize": ("drop", "pad", "none"),
    "on_bad": ("fail", "skip"),
    "on_missing": ("fail", "skip"),
}


SKIPPED = 1000
"""Records that `on_bad=skip` skips in an epoch before it is an error, unless a number is given."""


class StreamConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a stream; see StreamDataset."""

    shuffle: bool = True
    seed: int = 42
    prefetch: int | str = "auto"
    batch_size: int | None = None
    partition: str = "round_robin"
    partition_options: dict[str, Any] = {}
    equalize: str = "drop"
    max_drop: float = 0.01
    on_bad: str = "fail"
    bad_budget: int | None = None
    """Records that may be skipped in an epoch; None: none while `on_bad` is `fail`, else `SKIPPED`."""
    on_missing: str = "fail"
    allow_changed: bool = False
    shuffle_bytes: int | None = None
    """Budget over the open splits that samples are mixed over; None: `shuffle_order.py`'s own."""
    tensor_parallel: int = 1
    """So many ranks side by side get the same samples."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "seed", whole_number("seed", self.seed))
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise _bad(name, getattr(self, name), f"one of {', '.join(choices)}")
        world = World(world_size=1, options=self.partition_options)
        find_strategy(self.partition).num_partitions(world)
        if not 0 <= self.max_drop <= 1:
            raise _bad("max_drop", self.max_drop, "a share from 0 to 1")
        if self.batch_size is not None and self.batch_size < 1:
            raise _bad("batch_size", self.batch_size, "at least 1")
        if self.prefetch != "auto" and not (isinstance(self.prefetch, int) and self.prefetch >= 0):
            raise _bad("prefetch", self.prefetch, "`auto` or a number of shards")
        if self.bad_budget is not None and self.bad_budget < 0:
            raise _bad("bad_budget", self.bad_budget, "at least 0")
        if self.tensor_parallel < 1:
            raise _bad("tensor_parallel", self.tensor_parallel, "at least 1")
        if self.shuffle_bytes is not None and self.shuffle_bytes < 1:
            raise _bad("shuffle_bytes", self.shuffle_bytes, "at least 1")

    @property
    def tolerance(self) -> Tolerance:
        """What is skipped instead of raised."""
        return Tolerance(
            on_bad=self.on_bad,
            bad_budget=bad_budget_of(self.on_bad, self.bad_budget),
            on_missing=self.on_missing,
        )

    @property
    def order_partition(self) -> dict[str, Any] | None:
        """What the strategy adds to the order fingerprint; None for turns."""
        if find_strategy(self.partition).by_position:
            return None
        options = msgspec.to_builtins(self.partition_options)
        return {"name": self.partition, "options": options}


def whole_number(name: str, value: Any) -> int:
    """Return a whole number of any library as Python's own.

    Raises:
        UsageError: it is something else.
    """
    try:
        return operator.index(value)
    except TypeError as error:
        raise _bad(name, value, "a whole number") from error


def bad_budget_of(on_bad: str, said: int | None) -> int:
    """Return how many records may be skipped: none unless that was asked for."""
    if on_bad != "skip":
        return 0
    return SKIPPED if said is None else said


def _bad(name: str, value: object, accepted: str) -> UsageError:
    return UsageError(
        f"{name}={value}: not {accepted}",
        hint=f"{name} takes {accepted}.",
        key=name,
        value=str(value),
    )
