"""Where in an epoch, and in the next, each object is read: for a cache that is smaller than the data."""

from typing import NamedTuple

import numpy as np

from brain.ml.dataset_shards.epoch_plan import EpochPlan
from brain.ml.dataset_shards.shuffle_order import Indices, deal_order


class ObjectUses(NamedTuple):
    """Of every object, in places of the order in which splits are dealt."""

    first: Indices
    last: Indices
    following: Indices
    """Its first place in the next epoch."""


def object_uses(plan: EpochPlan) -> ObjectUses:
    """Return when the objects of a plan are read; O(splits)."""
    first, last = _places(plan, plan.start.epoch)
    return ObjectUses(first, last, _places(plan, plan.start.epoch + 1)[0])


def _places(plan: EpochPlan, epoch: int) -> tuple[Indices, Indices]:
    table = plan.table
    dealt = (
        deal_order(table.object_of, table.object_bytes, plan.seed, epoch)
        if plan.shuffle
        else np.arange(len(table))
    )
    owners, places = table.object_of[dealt], np.arange(len(dealt))
    first = np.zeros(len(table.objects), np.int64)
    last = np.zeros(len(table.objects), np.int64)
    # Of several assignments to one place, the last one holds.
    last[owners], first[owners[::-1]] = places, places[::-1]
    return first, last
