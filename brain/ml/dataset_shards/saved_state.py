"""State dicts of a stream: made of a standing, and checked against the data before they are used."""

from collections.abc import Mapping
from typing import Any

import msgspec

from brain.ml.dataset_shards.data_changes import keep_listing, refuse_change
from brain.ml.dataset_shards.epoch_plan import EpochStart
from brain.ml.dataset_shards.lane_walk import LaneHint
from brain.ml.dataset_shards.partitioning import PartitionPin
from brain.ml.dataset_shards.stream_index import StreamIndex
from brain.ml.dataset_shards.stream_iteration import Iteration, Standing
from brain.ml.dataset_shards.stream_state import (
    StreamState,
    check_order,
    check_seed,
    damaged_state,
    parse_state,
)
from tools_utilities.prepared_types import prepared


class _Worker(msgspec.Struct, frozen=True, kw_only=True):
    """What a loader worker's own state adds."""

    slot: int = 0


@prepared
class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume takes of a state's `order`."""

    lanes: LaneHint | None = None
    worker: _Worker = _Worker()
    partitions: dict[str, Any] | None = None

    @property
    def positions(self) -> tuple[int, ...]:
        """How far each partition is."""
        return msgspec.convert((self.partitions or {}).get("positions", ()), tuple[int, ...])


def make_state(
    index: StreamIndex, seed: int, standing: Standing, pin: PartitionPin | None
) -> dict[str, Any]:
    """Return the state dict of a standing; JSON would not change it."""
    keep_listing(index)
    order: dict[str, Any] = {
        "settings": index.settings,
        "objects": len(index.table.objects),
        "bytes": index.table.total_bytes,
    }
    if standing.hint is not None:
        order["lanes"] = msgspec.to_builtins(standing.hint)
    if pin is not None:
        order["partitions"] = {**msgspec.to_builtins(pin), "positions": standing.partitions}
    state = StreamState(
        seed=seed,
        epoch=standing.epoch,
        position=standing.position,
        order_fingerprint=index.order_fingerprint,
        change_fingerprint=index.change_fingerprint,
        order=order,
    )
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(state))
    return found


def make_worker_state(
    index: StreamIndex, seed: int, iteration: Iteration, pin: PartitionPin | None
) -> dict[str, Any]:
    """Return a loader worker's own state: what StatefulDataLoader keeps one of for each."""
    start, share = iteration.start, iteration.share
    standing = Standing(start.epoch, start.position, start.hint, start.partitions)
    state = make_state(index, seed, standing, pin)
    state["order"]["worker"] = {
        "worker": share.worker,
        "num_workers": share.num_workers,
        "slot": iteration.slot,
    }
    return state


def read_state(
    state: Mapping[str, Any], index: StreamIndex, seed: int, *, allow_changed: bool
) -> tuple[EpochStart, PartitionPin | None]:
    """Return where a state says the stream stood, after checking that it fits this stream.

    Beside it, what the first launch has fixed of a strategy's partitions.

    Raises:
        UsageError: not a state of this version.
        ChangedError: other data, another seed or other order settings.
    """
    saved = parse_state(state)
    check_seed(saved, seed)
    if not allow_changed:
        refuse_change(saved, index)
        check_order(saved, index.settings, index.order_fingerprint)
    same = saved.order_fingerprint == index.order_fingerprint
    try:
        found = msgspec.convert(saved.order, _Order)
        pin = msgspec.convert(found.partitions, PartitionPin) if found.partitions else None
        positions = found.positions
    except msgspec.ValidationError as error:
        raise damaged_state(str(error)) from error
    sizes = set() if found.lanes is None else set(map(len, msgspec.structs.astuple(found.lanes)))
    if same and (sizes - {index.shape.num_lanes} or found.worker.slot < 0):
        raise damaged_state(f"{sorted(sizes)} lanes, the order has {index.shape.num_lanes}")
    if min(positions, default=0) < 0 or (pin is not None and len(positions) not in {0, pin.count}):
        raise damaged_state(f"positions {list(positions)} in partitions")
    start = EpochStart(
        epoch=saved.epoch,
        position=saved.position,
        hint=found.lanes if same else None,
        slot=found.worker.slot,
        partitions=positions,
    )
    return start, pin
