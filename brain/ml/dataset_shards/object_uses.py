"""Where in an epoch, and in the next, each object is read: for a cache that is smaller than the data."""

from typing import NamedTuple

import numpy as np

from brain.ml.dataset_shards.epoch_plan import EpochPlan
from brain.ml.dataset_shards.shuffle_order import Indices, deal_order


class ObjectUses(NamedTuple):
    """Of every object, in places of the order in which splits are dealt."""

    starts: Indices
    """Where each object's places begin in `places`; one more than there are objects."""
    places: Indices
    """Of all its splits in this epoch, ascending."""
    following: Indices
    """Its first place in the next epoch."""


def object_uses(plan: EpochPlan) -> ObjectUses:
    """Return when the objects of a plan are read; O(splits)."""
    starts, places = _places(plan, plan.start.epoch)
    next_starts, next_places = _places(plan, plan.start.epoch + 1)
    return ObjectUses(starts, places, next_places[next_starts[:-1]])


def _places(plan: EpochPlan, epoch: int) -> tuple[Indices, Indices]:
    table = plan.table
    dealt = (
        deal_order(table.object_of, table.object_bytes, plan.seed, epoch)
        if plan.shuffle
        else np.arange(len(table))
    )
    starts = np.searchsorted(table.object_of, np.arange(len(table.objects) + 1))
    return starts, np.argsort(table.object_of[dealt], kind="stable")
