"""`simulate`: a run's data played through for its machines, links and caches. Starts nothing.

The data is found and listed as a run's would be (its objects' real sizes, as if they lay in a store), or
only described: `data_shards`, `data_samples`, `data_gb`. `simulated_run.py` says what is approximate.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from brain.ml.dataset_shards.shuffle_order import SPLIT_BYTES
from brain.ml.training_job import TrainingJob
from resource_manager.data_finding import FoundData
from resource_manager.estimating import Measured
from resource_manager.job_settings import job_fields
from resource_manager.order_looking import OrderLook
from resource_manager.simulated_link import EpochFigures, Link, RunSettings
from resource_manager.simulated_order import SimulatedData, SimulatedOrder, SimulatedWorld
from resource_manager.simulated_run import SimulatedRun
from tools_utilities.errors import InputNeededError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.scripts.s3_streaming_manager import MEMORY_BYTES
from tools_utilities.settings import Settings
from tools_utilities.terminal_text import (
    Line,
    Span,
    human_bytes,
    human_count,
    human_seconds,
    pairs,
)

MOST_PLAYED = 3
"""Epochs; later ones are taken to be as the last of these …"""
MOST_OBJECTS_PLAYED = 3_000_000
"""… or fewer, of many objects, but one."""
MOST_TIMES = 1.2
"""That the machines together fetch the data in an epoch; beyond that it is said what would help."""
INDEX_BYTES_PER_OBJECT = 200
INDEX_BYTES_PER_SPLIT = 64


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """What was played, and what came of it."""

    shards: int
    bytes: int
    samples: int
    nodes: int
    ranks: int
    batch_size: int
    step_seconds: float
    step_from: str
    """The run that told it, or `step_ms`."""
    latency_seconds: float
    connection_bytes_per_second: float
    node_bytes_per_second: float
    cache_bytes: int
    cache_policy: str
    listing_seconds: float
    epochs: float
    played: tuple[EpochFigures, ...]
    seconds: float
    """Of all epochs."""
    rank_memory_bytes: int
    """About what a rank holds of the data: index, open splits, and without a cache whole objects."""
    own_lanes: bool
    """Whether each rank opens what its own lanes hold; else every machine needs every shard."""
    coarser: int
    """How many splits were taken as one."""
    notes: tuple[str, ...] = ()


def described_data(settings: Settings) -> SimulatedData | None:
    """Return data that is only described; None: it is not.

    Raises:
        InputNeededError: one of its three numbers is missing.
    """
    names = ("data_shards", "data_samples", "data_gb")
    values = [settings.value(name) for name in names]
    if values == [None, None, None]:
        return None
    missing = [name for name, value in zip(names, values, strict=True) if value is None]
    if missing:
        raise InputNeededError(
            f"simulate: {', '.join(missing)} of the described data is not said",
            hint="Say all three: data_shards=1000000 data_samples=1000000000 data_gb=1000.",
        )
    shards, samples, gigabytes = values
    size = max(1, round(gigabytes * 1e9 / shards))
    return SimulatedData(
        object_bytes=np.full(shards, size, np.int64),
        num_splits=np.full(shards, max(1, round(size / SPLIT_BYTES)), np.int64),
        num_samples=samples,
    )


def described_job(settings: Settings) -> TrainingJob:
    """Return the job of a run over described data."""
    return TrainingJob(name="simulated", run_dir="", train=(), **job_fields(settings))


def step_of(settings: Settings, like: Iterable[Measured]) -> tuple[float, str]:
    """Return the seconds of a step whose data is there, and who says so: `step_ms`, or a run like it.

    Raises:
        InputNeededError: neither does.
    """
    said = settings.value("step_ms")
    if said is not None:
        return said / 1e3, "step_ms"
    for run in like:
        return run.targets_per_step / run.targets_per_second, f"as in {run.run}"
    raise InputNeededError(
        "simulate: nothing tells how long a step takes; no run like it has finished here",
        hint="Say it: step_ms=250.",
    )


def found_data(
    data: FoundData, objects: Sequence[Sequence[ObjectInfo]], num_samples: float | None
) -> SimulatedData:
    """Return data as it was listed: `objects` of each training group, `num_samples` of an epoch.

    Raises:
        InputNeededError: nobody knows how many samples there are.
    """
    if num_samples is None:
        raise InputNeededError(
            "simulate: how many samples the data has is not known before it is read",
            hint="Describe it: data_shards=…, data_samples=…, data_gb=….",
        )
    keys: list[str] = []
    sizes: list[int] = []
    splits: list[int] = []
    for source, look, infos in zip(data.train, data.looks, objects, strict=True):
        folder = source.prefix[: source.prefix.rfind("/") + 1]
        for info in infos:
            if info.size_bytes:
                keys.append(info.key.removeprefix(folder))
                sizes.append(info.size_bytes)
                splits.append(_splits_of(info.size_bytes, look))
    return SimulatedData(
        object_bytes=np.array(sizes, np.int64),
        num_splits=np.array(splits, np.int64),
        num_samples=max(1, round(num_samples)),
        keys=keys,
    )


def _splits_of(num_bytes: int, look: OrderLook | None) -> int:
    """Return about into how many splits an object is cut, by those that were looked at."""
    if look is None or (look.layout.num_splits <= 1).all():
        return 1
    per_byte = float(look.layout.num_splits.sum()) / float(look.layout.object_bytes.sum())
    return max(1, round(num_bytes * per_byte))


def simulate(
    data: SimulatedData, job: TrainingJob, settings: Settings, step: tuple[float, str]
) -> Simulation:
    """Play a job's epochs over its data; `step`: the seconds of one whose data is there, and who says so.

    Raises:
        UsageError: the partition strategy cannot deal this data.
    """
    world = SimulatedWorld(
        nodes=job.nodes, ranks_per_node=job.processes, batch_size=job.batch_size, seed=job.seed,
        shuffle=job.shuffle, shuffle_bytes=job.shuffle_bytes, partition=job.partition,
        partition_options=job.partition_options,
    )  # fmt: skip
    link = Link(
        latency_seconds=settings.value("latency_ms") / 1e3,
        connection_bytes_per_second=settings.value("connection_mb_s") * 1e6,
        node_bytes_per_second=settings.value("node_mb_s") * 1e6,
        connections=job.fetch_concurrency,
    )
    order = SimulatedOrder(data, world)
    run = SimulatedRun(
        order,
        RunSettings(
            link=link, step_seconds=step[0], cache_bytes=job.cache_bytes,
            cache_policy=job.cache_policy, prefetch=job.prefetch,
        ),
    )  # fmt: skip
    epochs = job.epochs or 1.0
    count = min(math.ceil(epochs), MOST_PLAYED, 1 + MOST_OBJECTS_PLAYED // len(data.object_bytes))
    played = [run.epoch() for _ in range(count)]
    memory = played[-1].open_bytes + (0 if job.cache_bytes else MEMORY_BYTES)
    memory += INDEX_BYTES_PER_OBJECT * len(data.object_bytes)
    memory += INDEX_BYTES_PER_SPLIT * int(data.num_splits.sum() - len(data.num_splits))
    return Simulation(
        shards=len(data.object_bytes),
        bytes=int(data.object_bytes.sum()),
        samples=data.num_samples,
        nodes=job.nodes,
        ranks=world.world_size,
        batch_size=job.batch_size,
        step_seconds=step[0],
        step_from=step[1],
        latency_seconds=link.latency_seconds,
        connection_bytes_per_second=link.connection_bytes_per_second,
        node_bytes_per_second=link.node_bytes_per_second,
        cache_bytes=job.cache_bytes,
        cache_policy=job.cache_policy,
        listing_seconds=run.listing_seconds,
        epochs=epochs,
        played=tuple(played),
        seconds=_all_seconds(played, epochs),
        rank_memory_bytes=memory,
        own_lanes=order.own_lanes,
        coarser=order.coarser,
        notes=_notes(job, order, played),
    )


def _all_seconds(played: Sequence[EpochFigures], epochs: float) -> float:
    """Return the seconds of all epochs; what was not played is as the last one that was."""
    whole = sum(one.seconds for one in played[: math.floor(epochs)])
    left = epochs - min(len(played), math.floor(epochs))
    last = played[min(len(played), math.ceil(epochs)) - 1]
    return whole + left * last.seconds


def _notes(
    job: TrainingJob, order: SimulatedOrder, played: Sequence[EpochFigures]
) -> tuple[str, ...]:
    notes = []
    times = played[0].fetched_bytes / max(1, int(order.data.object_bytes.sum()))
    if job.nodes > 1 and times > MOST_TIMES and job.partition != "contiguous":
        notes.append(
            f"{job.nodes} machines fetch the data {times:.1f} times in the first epoch; with"
            " partition=contiguous each rank has its own (simulate that too)"
        )
    if any(rule is not None for rule in (job.max_steps, job.max_samples, job.max_tokens)):
        notes.append("whole epochs are played, whatever other rule may end the run earlier")
    if len(job.train) > 1:
        notes.append("the groups are played as one dataset, without their weights")
    if order.coarser > 1:
        notes.append(f"{order.coarser} splits were taken as one")
    if len(played) < math.ceil(job.epochs or 1):
        notes.append(f"epochs after {len(played)} are taken to be as that one")
    return tuple(notes)


def simulation_lines(found: Simulation, settings: Settings, width: int | None) -> list[Line]:
    """Return the simulation for people."""
    data = f"{human_count(found.shards)} shards, {human_bytes(found.bytes)}"
    cache = f"{human_bytes(found.cache_bytes)} a machine, {found.cache_policy}"
    first = human_seconds(found.played[0].first_batch_seconds)
    listing = human_seconds(found.listing_seconds)
    rows = [
        ("data", f"{data}, {human_count(found.samples)} samples"),
        ("machines", f"{found.nodes}, {found.ranks} ranks in all, batch {found.batch_size:,}"),
        ("link", _link(found, settings)),
        ("step", f"{human_seconds(found.step_seconds)} ({found.step_from})"),
        ("cache", cache if found.cache_bytes else "none"),
        ("first batch", f"{first}, of which listing {listing}"),
        *((f"epoch {number}", _epoch(one)) for number, one in enumerate(found.played, start=1)),
        ("in all", f"about {human_seconds(found.seconds)} for {found.epochs:g} epochs"),
        ("memory", f"about {human_bytes(found.rank_memory_bytes)} of data a rank"),
    ]
    lines: list[Line] = [[Span("simulate", "title"), "  nothing is started"]]
    lines += pairs(rows, width=width)
    return lines + [[Span("note: ", "dim"), note] for note in found.notes]


def _link(found: Simulation, settings: Settings) -> str:
    keys = ("latency_ms", "connection_mb_s", "node_mb_s")
    assumed = [key for key in keys if not settings.is_set(key)]
    text = (
        f"{found.latency_seconds * 1e3:g} ms, {found.connection_bytes_per_second / 1e6:g} MB/s a"
        f" connection, {found.node_bytes_per_second / 1e6:g} MB/s a machine"
    )
    return text + (f" (assumed: {', '.join(assumed)})" if assumed else "")


def _epoch(one: EpochFigures) -> str:
    twice = one.again_bytes + one.elsewhere_bytes
    again = f", {human_bytes(twice)} of it twice" if twice else ""
    if one.again_bytes and one.elsewhere_bytes:
        again += f" ({human_bytes(one.again_bytes)} by the same machine)"
    return (
        f"{human_seconds(one.seconds)}, data wait {one.data_wait_share:.1%}"
        f" ({human_seconds(one.stall_seconds)}); fetched {human_bytes(one.fetched_bytes)} in"
        f" {human_count(one.requests)} requests{again}"
    )


def as_json(found: Simulation) -> dict[str, Any]:
    """Return the simulation for `--json`."""
    return {"schema": 1, "simulation": msgspec.to_builtins(found)}
