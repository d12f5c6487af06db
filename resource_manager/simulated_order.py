"""The order of an epoch as the machines of a run meet it: which objects are opened, and at which step.

Made by the order's own code (`deal_order`, `choose_shape`, `window_bounds`' rule and the partition
strategies), on splits instead of samples. What is approximate: samples lie evenly over the bytes, and a
dataset of more than `MAX_SPLITS` splits is cut coarser, with as many lanes and as many bytes open. A window
is entered when its lane's turn comes, so positions are exact but for that.

Who opens what (`EpochReader`): ranks that divide the lanes read lanes of their own; any other number of
ranks reads all lanes, and then every machine needs every object.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from brain.ml.dataset_shards.epoch_reader import WINDOWS_AHEAD
from brain.ml.dataset_shards.partition_strategy import Shard, World, find_strategy
from brain.ml.dataset_shards.shuffle_order import Indices, LaneShape, choose_shape, deal_order
from tools_utilities.errors import UsageError

MAX_SPLITS = 2_000_000
"""More are joined: the simulation walks over each once an epoch."""


@dataclass(frozen=True, kw_only=True)
class SimulatedData:
    """The objects of a dataset, real or described."""

    object_bytes: Indices
    num_splits: Indices
    """Of each object."""
    num_samples: int
    """In all, as the stream counts them (sequences of text, else records)."""
    keys: Sequence[str] = ()
    """Relative, for strategies that go by them; empty: numbered."""


@dataclass(frozen=True, kw_only=True)
class SimulatedWorld:
    """Who reads the data, and how it is dealt."""

    nodes: int = 1
    ranks_per_node: int = 1
    batch_size: int = 32
    """Of all ranks."""
    seed: int = 42
    shuffle: bool = True
    shuffle_bytes: int | None = None
    partition: str = "round_robin"
    partition_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.nodes * self.ranks_per_node


class Epoch(NamedTuple):
    """The windows of an epoch in the order in which they are entered; one entry each.

    Numbers of other windows are -1 where there is none. `objects` and `split_bytes` lie end to end: those
    of window w from `firsts[w]` to `firsts[w + 1]`.
    """

    steps: Indices
    """The step whose batch needs it first."""
    readers: Indices
    """Which reader (a rank, or all alike ranks of a machine) opens it."""
    before: Indices
    """The window before it in its lane, which is closed for it."""
    after_next: Indices
    """The window after the next in its lane, which is announced now."""
    opening: npt.NDArray[np.bool_]
    """Whether its lane begins with it or has it next: it is asked for at the start."""
    firsts: Indices
    objects: Indices
    split_bytes: Indices
    num_steps: int


class _Lanes(NamedTuple):
    """Windows of one walk: where each begins, in samples of the walk and in the flat splits."""

    positions: Indices
    lanes: Indices
    splits: list[Indices]


class SimulatedOrder:
    """Makes the epochs of one dataset for one world."""

    def __init__(self, data: SimulatedData, world: SimulatedWorld) -> None:
        """Cut the data and deal it.

        Raises:
            UsageError: the strategy cannot deal this data, or needs what only the records tell.
        """
        self.data, self.world = data, world
        filled = np.maximum(1, data.num_splits)
        self.coarser = max(1, -(-int(filled.sum()) // MAX_SPLITS))
        counts = np.maximum(1, filled // self.coarser)
        self.object_of = np.repeat(np.arange(len(counts)), counts)
        self.split_bytes = np.maximum(
            1, data.object_bytes[self.object_of] // counts[self.object_of]
        )
        self.shape = self._shape(filled, counts)
        ends = np.rint(np.cumsum(self.split_bytes) / self.split_bytes.sum() * data.num_samples)
        self.counts = np.diff(ends.astype(np.int64), prepend=0)
        self._parts = None if self.is_by_turns else self._partitions(counts)

    @property
    def is_by_turns(self) -> bool:
        """Whether positions of one order are dealt to the ranks."""
        return find_strategy(self.world.partition).by_position

    @property
    def own_lanes(self) -> bool:
        """Whether each rank opens objects of its own alone."""
        return not self.is_by_turns or self.shape.num_lanes % self.world.world_size == 0

    @property
    def most_open_bytes(self) -> int:
        """What lanes and windows hold open, those opened ahead included, were nothing cut coarser."""
        windows = self.shape.num_lanes + WINDOWS_AHEAD
        largest = self.data.object_bytes / np.maximum(1, self.data.num_splits)
        return int(windows * self._window_splits * np.quantile(largest, 0.75))

    @property
    def num_readers(self) -> int:
        """Readers that differ; where all ranks open everything, one stands for all."""
        return self.world.world_size if self.own_lanes else 1

    @property
    def node_of(self) -> list[int]:
        """Machine of each reader."""
        return [reader // self.world.ranks_per_node for reader in range(self.num_readers)]

    @property
    def alike_nodes(self) -> int:
        """Machines that each simulated one stands for."""
        return 1 if self.own_lanes else self.world.nodes

    def epoch(self, number: int) -> Epoch:
        """Return an epoch; O(splits log splits)."""
        walks = list(self._walks(number))
        positions = np.concatenate([walk.positions for _, walk in walks])
        readers = np.concatenate(
            [np.full(len(walk.lanes), reader, np.int64) for reader, walk in walks]
        )
        lane_base = np.cumsum([0, *(len(walk.splits) for _, walk in walks)])
        lanes = np.concatenate([walk.lanes + lane_base[at] for at, (_, walk) in enumerate(walks)])
        if self.is_by_turns and self.own_lanes:
            readers = lanes % self.world.world_size
        flat = [lane for _, walk in walks for lane in walk.splits]
        bounds = [window_starts(len(lane), at, self.shape) for at, lane in self._numbered(walks)]
        return self._laid(positions, readers, lanes, flat, bounds)

    def _numbered(self, walks: Sequence[tuple[int, _Lanes]]) -> Iterator[tuple[int, Indices]]:
        for _, walk in walks:
            yield from enumerate(walk.splits)

    def _laid(
        self,
        positions: Indices,
        readers: Indices,
        lanes: Indices,
        flat: Sequence[Indices],
        bounds: Sequence[Indices],
    ) -> Epoch:
        """Return the windows of all lanes, given lane by lane, in the order of their positions."""
        order = np.argsort(positions, kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        ends = [np.append(starts[1:], len(lane)) for starts, lane in zip(bounds, flat, strict=True)]
        lengths = np.concatenate(ends) - np.concatenate(bounds) if bounds else np.zeros(0, np.int64)
        lane_firsts = np.cumsum([0, *(len(lane) for lane in flat)])[:-1]
        starts = np.concatenate(
            [first + begins for first, begins in zip(lane_firsts, bounds, strict=True)]
        )
        splits = np.concatenate(flat)
        taken = np.repeat(starts[order] - _firsts(lengths[order])[:-1], lengths[order])
        taken = splits[taken + np.arange(int(lengths.sum()))]
        return Epoch(
            steps=positions[order] // self.world.batch_size,
            readers=readers[order],
            before=_neighbour(lanes, rank, -1)[order],
            after_next=_neighbour(lanes, rank, 2)[order],
            opening=(_neighbour(lanes, rank, -2)[order] < 0),
            firsts=_firsts(lengths[order]),
            objects=self.object_of[taken],
            split_bytes=self.split_bytes[taken],
            num_steps=max(1, -(-int(self.counts.sum()) // self.world.batch_size)),
        )

    def _walks(self, epoch: int) -> Iterator[tuple[int, _Lanes]]:
        """Yield (reader, windows) of every order that is walked; positions are the whole epoch's."""
        world = self.world
        if self._parts is None:
            numbers = self._dealt(np.arange(len(self.object_of)), world.seed, epoch)
            yield 0, self._walk(numbers, self.shape, positions_of=None)
            return
        totals = [int(self.counts[part].sum()) for part in self._parts]
        for number, part in enumerate(self._parts):
            reader = number % world.world_size
            own = totals[reader :: world.world_size]
            dealt = self._dealt(part, world.seed + (number << 40), epoch)
            shape = LaneShape(
                num_lanes=max(1, min(self._lanes_each, len(part))),
                num_window_splits=self.shape.num_window_splits,
            )
            yield reader, self._walk(dealt, shape, positions_of=own)

    @property
    def _lanes_each(self) -> int:
        per_rank = max(1, -(-len(self._parts or ()) // self.world.world_size))
        return max(1, -(-self.shape.num_lanes // per_rank))

    def _walk(self, dealt: Indices, shape: LaneShape, positions_of: Sequence[int] | None) -> _Lanes:
        """Return the windows of an order; `positions_of`: totals of the partitions it is dealt among."""
        lanes = [dealt[lane :: shape.num_lanes] for lane in range(shape.num_lanes)]
        totals = np.array([int(self.counts[lane].sum()) for lane in lanes])
        positions, owners = [], []
        for at, lane in enumerate(lanes):
            before = np.cumsum(self.counts[lane]) - self.counts[lane]
            rounds = before[window_starts(len(lane), at, shape)]
            place = np.minimum(rounds[:, None], totals[None, :]).sum(axis=1) + at
            if positions_of is not None:
                # Turns of a rank that has several partitions, then positions of all ranks.
                among = np.minimum(place[:, None], np.array(positions_of)[None, :]).sum(axis=1)
                place = among * self.world.world_size
            positions.append(place)
            owners.append(np.full(len(rounds), at, np.int64))
        return _Lanes(np.concatenate(positions), np.concatenate(owners), lanes)

    def _dealt(self, own: Indices, seed: int, epoch: int) -> Indices:
        if not self.world.shuffle or not len(own):
            return own
        objects, local = np.unique(self.object_of[own], return_inverse=True)
        sizes = np.zeros(len(objects), np.int64)
        np.add.at(sizes, local, self.split_bytes[own])
        if len(own) == len(self.object_of):
            sizes = self.data.object_bytes
        return own[deal_order(local.astype(np.int64), sizes, seed, epoch)]

    def _shape(self, num_splits: Indices, joined: Indices) -> LaneShape:
        world = self.world
        sizes = np.repeat(self.data.object_bytes // num_splits, joined)
        shape = choose_shape(sizes, shuffle=world.shuffle, open_bytes=world.shuffle_bytes)
        self._window_splits = shape.num_window_splits
        window = max(1, shape.num_window_splits // self.coarser)
        return LaneShape(num_lanes=shape.num_lanes, num_window_splits=window)

    def _partitions(self, counts: Indices) -> list[Indices]:
        """Return the splits of each partition, as `make_partitioning` assigns them."""
        world, strategy = self.world, find_strategy(self.world.partition)
        if strategy.name == "stratified":
            raise UsageError(
                "partition=stratified: only the records tell who gets what",
                hint="Simulate partition=hash, which deals as many splits to each.",
            )
        firsts = _firsts(counts)
        files = [
            (key or f"part-{number:09d}", size)
            for number, (key, size) in enumerate(
                zip(
                    self.data.keys or [""] * len(counts),
                    self.data.object_bytes.tolist(),
                    strict=True,
                )
            )
        ]
        if strategy.whole_files:
            shards = [Shard(key=key, size_bytes=size) for key, size in files]
        else:
            shards = [
                Shard(key=f"{files[owner][0]}\0{number:020}", size_bytes=size)
                for number, (owner, size) in enumerate(
                    zip(self.object_of.tolist(), self.split_bytes.tolist(), strict=True)
                )
            ]
        options = dict(world.partition_options)
        count = strategy.num_partitions(World(world_size=world.world_size, options=options))
        if count < world.world_size:
            raise UsageError(
                f"insufficient partitions: {count} for {world.world_size} ranks",
                hint="Use num_partitions of at least as many as there are ranks.",
            )
        dealt = strategy.assign(shards, World(world_size=count, options=options))
        parts = [np.sort(np.array(part, np.int64)) for part in dealt]
        if not strategy.whole_files:
            return parts
        return [_joined([np.arange(firsts[at], firsts[at + 1]) for at in part]) for part in parts]


def window_starts(num_splits: int, lane: int, shape: LaneShape) -> Indices:
    """Return where the windows of a lane begin, as `window_bounds` has them, all at once."""
    second = 2 + lane % shape.num_window_splits
    later = np.arange(second, max(second, num_splits), shape.num_window_splits)
    starts = np.concatenate([np.array([0, 1], np.int64), later])
    return starts[starts < num_splits]


def _joined(pieces: Sequence[Indices]) -> Indices:
    return np.concatenate([np.zeros(0, np.int64), *pieces])


def _firsts(lengths: Indices) -> Indices:
    """Return where pieces of these lengths begin when laid end to end, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _neighbour(lanes: Indices, rank: Indices, offset: int) -> Indices:
    """Return, window by window (lane by lane, in a lane's order), the place of the one `offset` away."""
    at = np.arange(len(lanes)) + offset
    inside = (at >= 0) & (at < len(lanes))
    found = np.full(len(lanes), -1, np.int64)
    known = at[inside]
    same = lanes[known] == lanes[inside]
    found[inside.nonzero()[0][same]] = rank[known[same]]
    return found
