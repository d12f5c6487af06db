"""A real stream over a store of fixed delays, and the simulation of the same: what both took."""

import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from brain.ml.dataset_shards.stream_dataset import StreamDataset
from brain.ml.dataset_shards.stream_loader import StreamLoader
from resource_manager.simulated_link import EpochFigures, Link, RunSettings
from resource_manager.simulated_order import SimulatedData, SimulatedOrder, SimulatedWorld
from resource_manager.simulated_run import SimulatedRun
from tests.simulated_store import SimulatedStore
from tools_utilities.scripts.s3_streaming_manager import StreamingManager

RECORD_BYTES = 200


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One run: a store of so many objects, its delays, and who reads it how."""

    objects: int = 200
    records: int = 100
    """Of each."""
    latency: float = 0.0
    rate: float = float("inf")
    """Bytes a second of a connection."""
    connections: int = 4
    step: float = 0.0
    cached: float = 2.0
    """The cache as a share of the data; 0: none."""
    batch: int = 100
    ranks: int = 1
    """Each is a machine of its own."""
    epochs: int = 1
    prefetch: int | None = None
    partition: str = "round_robin"

    @property
    def cache_bytes(self) -> int:
        return int(self.cached * self.objects * self.records * RECORD_BYTES)

    def simulate(self, step: float | None = None) -> list[EpochFigures]:
        """Return the simulation's epochs; `step`: what a step takes whose data is there."""
        size = self.records * RECORD_BYTES
        data = SimulatedData(
            object_bytes=np.full(self.objects, size),
            num_splits=np.ones(self.objects, np.int64),
            num_samples=self.objects * self.records,
            keys=[f"part-{number:07d}.jsonl" for number in range(self.objects)],
        )
        world = SimulatedWorld(nodes=self.ranks, batch_size=self.batch, partition=self.partition)
        settings = RunSettings(
            link=Link(
                latency_seconds=self.latency,
                connection_bytes_per_second=self.rate,
                node_bytes_per_second=float("inf"),
                connections=self.connections,
            ),
            step_seconds=self.step if step is None else step,
            cache_bytes=self.cache_bytes,
            prefetch=self.prefetch,
        )
        run = SimulatedRun(SimulatedOrder(data, world), settings)
        return [run.epoch() for _ in range(self.epochs)]

    def read(self) -> list[tuple[float, int]]:
        """Read for real; returns (seconds, bytes fetched by all ranks) of each epoch."""
        store = SimulatedStore(
            self.objects, self.records, record_bytes=RECORD_BYTES,
            latency_seconds=self.latency, bytes_per_second=self.rate,
        )  # fmt: skip
        found: list[tuple[float, int]] = []
        with tempfile.TemporaryDirectory(prefix="quark-simulated-") as folder:
            quick, store.latency_seconds = store.latency_seconds, 0.0
            rate, store.bytes_per_second = store.bytes_per_second, float("inf")
            self._count(store, Path(folder))
            store.latency_seconds, store.bytes_per_second = quick, rate
            loaders = [self._loader(store, Path(folder), rank) for rank in range(self.ranks)]
            for _ in range(self.epochs):
                began, before = time.perf_counter(), store.got_bytes
                self._pass(loaders)
                found.append((time.perf_counter() - began, store.got_bytes - before))
        return found

    def warm_step(self) -> float:
        """Return what a step takes for real when all data is in the cache: the sleep, and reading."""
        warm = replace(self, latency=0.0, rate=float("inf"), cached=2.0, epochs=2, prefetch=None)
        return warm.read()[1][0] / (self.objects * self.records / self.batch)

    def _loader(self, store: SimulatedStore, folder: Path, rank: int) -> StreamLoader:
        manager = StreamingManager.for_store(
            store.register(), cache_dir=str(folder / f"cache-{rank}"),
            cache_bytes=self.cache_bytes, concurrency=self.connections,
            counts_dir=str(folder / "counts"),
        )  # fmt: skip
        stream = StreamDataset(
            manager, "data/x/", rank=rank, world_size=self.ranks, partition=self.partition,
            prefetch="auto" if self.prefetch is None else self.prefetch,
        )  # fmt: skip
        stream.prepare()
        return StreamLoader(stream, self.batch // self.ranks, collate_fn=len)

    def _count(self, store: SimulatedStore, folder: Path) -> None:
        """Leave the counts, as an earlier run has: several ranks would read everything for them."""
        manager = StreamingManager.for_store(
            store.register(), cache_dir=None, cache_bytes=0, counts_dir=str(folder / "counts")
        )
        ranks = 1 if self.partition == "round_robin" else self.ranks
        stream = StreamDataset(
            manager, "data/x/", rank=0, world_size=ranks, partition=self.partition
        )
        deque(stream, maxlen=0)

    def _pass(self, loaders: list[StreamLoader]) -> None:
        """Read an epoch on all ranks, in step with each other."""
        together = threading.Barrier(len(loaders))
        failed: list[BaseException] = []

        def work(loader: StreamLoader) -> None:
            try:
                for _ in loader:
                    together.wait(60)
                    time.sleep(self.step)
            except BaseException as error:  # noqa: BLE001 - raised below
                failed.append(error)
                together.abort()

        threads = [threading.Thread(target=work, args=(loader,)) for loader in loaders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
