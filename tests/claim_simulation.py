"""Runs the real claim code of several workers on one thread at a time, under a virtual clock.

A seed decides everything: who goes next, which requests are lost, late, applied without a reply or
delivered twice, who pauses beyond its lease, who crashes, hands a claim on by its ticket or is reset
by an operator, how fast each worker's clock runs and what it shows. A version is a content hash, as
on S3. A failing seed replays exactly:

    python -m tests.claim_simulation --seed 17
"""

import argparse
import hashlib
import random
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tools_utilities.claim_record import ClaimRecord, decode_record
from tools_utilities.errors import ConditionFailedError, ObjectNotFoundError, StoreError
from tools_utilities.object_store import ObjectInfo
from tools_utilities.shard_lease import Clock, ShardLease

LEASE_SECONDS = 6.0
STEPS = 3


class Crash(BaseException):  # not an error: nothing may catch it
    """The process is gone."""


def held_lock() -> threading.Lock:
    """Return a lock that its next taker waits for: a baton, at a fifth of a semaphore's cost."""
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass
class Faults:
    """Chances, per request or step, and how many are left."""

    left: int = 12
    crashes_left: int = 2
    pauses_left: int = 2
    chance: float = 0.15


@dataclass
class Worker:
    name: str
    run: Callable[["Worker"], None]
    clock_rate: float
    clock_offset: float = 0.0
    baton: threading.Lock = field(default_factory=held_lock)
    wake_at: float = 0.0
    crash: bool = False
    finished: bool = False
    thread: threading.Thread | None = None
    incarnation: int = 0


class Simulation:
    def __init__(
        self, seed: int, *, num_workers: int, num_shards: int, lease_type: type[ShardLease]
    ) -> None:
        self.lease_type = lease_type
        self.random = random.Random(seed)
        self.now = 0.0
        self.faults = Faults()
        self.objects: dict[str, bytes] = {}
        self.delayed: list[Callable[[], None]] = []
        self.outputs: dict[tuple[str, int, str], int] = {}
        self.believed: list[tuple[str, int, str]] = []
        self.problems: list[str] = []
        self.ended = held_lock()
        self.error: BaseException | None = None
        self.limit = 0.0
        self.keys = [f"shard_{number:03d}/claim.json" for number in range(num_shards)]
        self.workers = [
            Worker(
                f"w{number}",
                self.work,
                self.random.uniform(0.9, 1.1),
                self.random.uniform(-600, 600),
            )
            for number in range(num_workers)
        ]

    # --- the scheduler: exactly one thread runs at any moment, and who pauses says who is next ---
    def run(self, limit: float = 3_000.0) -> None:
        self.limit = limit
        for worker in self.workers:
            self.start(worker)
        self.hand_on(self.next_worker())
        self.ended.acquire()
        if self.error is not None:
            raise self.error

    def next_worker(self) -> Worker | None:
        """Choose who goes on, time moved to when someone is due; None when all have finished."""
        while True:
            alive = [worker for worker in self.workers if not worker.finished]
            if not alive:
                return None
            due = [worker for worker in alive if worker.wake_at <= self.now]
            if due:
                break
            self.now = min([worker.wake_at for worker in alive])
        if self.now > self.limit:
            self.problems.append("not finished in time")
            for worker in alive:
                worker.crash = True
                self.faults.crashes_left = -1
        return self.random.choice(due)

    def after_step(self) -> Worker | None:
        """Let something late happen, perhaps, then choose who goes on."""
        if self.delayed and self.random.random() < 0.3:
            self.delayed.pop(self.random.randrange(len(self.delayed)))()
        return self.next_worker()

    def hand_on(self, worker: Worker | None) -> None:
        (self.ended if worker is None else worker.baton).release()

    def start(self, worker: Worker) -> None:
        worker.incarnation += 1
        worker.crash = False

        def body() -> None:
            worker.baton.acquire()
            try:
                self.live(worker)
                self.hand_on(self.after_step())
            except BaseException as error:  # noqa: BLE001 - run() raises it
                self.error = error
                self.ended.release()

        worker.thread = threading.Thread(target=body, daemon=True)
        worker.thread.start()

    def live(self, worker: Worker) -> None:
        """Run a worker to its end, or to a crash and its next start."""
        try:
            worker.run(worker)
            worker.finished = True
        except Crash:
            if self.faults.crashes_left < 0:
                worker.finished = True
            else:
                worker.wake_at = self.now + self.random.uniform(0, 5)
                self.start(worker)

    def pause(self, worker: Worker, seconds: float) -> None:
        worker.wake_at = self.now + seconds
        following = self.after_step()
        if following is not worker:
            self.hand_on(following)
            worker.baton.acquire()
        if worker.crash:
            raise Crash

    def moment(self, worker: Worker) -> None:
        """Anything may happen between two instructions of a worker."""
        faults = self.faults
        if faults.crashes_left > 0 and self.random.random() < 0.02:
            faults.crashes_left -= 1
            raise Crash
        if faults.pauses_left > 0 and self.random.random() < 0.03:
            faults.pauses_left -= 1
            self.pause(worker, LEASE_SECONDS * self.random.uniform(1, 4))
        else:
            self.pause(worker, self.random.uniform(0.001, 0.2))

    # --- what each worker does ---
    def work(self, worker: Worker) -> None:
        owner = f"host/{worker.name}/{worker.incarnation}"
        clock = Clock(
            now=lambda: self.now * worker.clock_rate + worker.clock_offset,
            sleep=lambda seconds: self.pause(worker, seconds / worker.clock_rate),
            jitter=self.random.random,
        )
        store = SimulatedStore(self, worker)

        def new_lease(key: str, owner: str) -> ShardLease:
            return self.lease_type(
                store,  # type: ignore[arg-type] # only what the lease calls
                key,
                owner,
                lease_seconds=LEASE_SECONDS,
                clock=clock,
            )

        leases = [new_lease(key, owner) for key in self.keys]
        while True:
            for lease in leases:
                try:
                    if lease.try_claim():
                        self.consume(worker, lease, new_lease)
                    elif self.random.random() < 0.01:
                        new_lease(lease.key, f"operator/{owner}/{self.now}").reset()
                except StoreError:
                    self.pause(worker, 1.0)
            records = [self.record(key) for key in self.keys]
            if all(record is not None and record.state == "done" for record in records):
                return
            self.pause(worker, 1.0)

    def consume(
        self, worker: Worker, lease: ShardLease, new_lease: Callable[[str, str], ShardLease]
    ) -> None:
        """Work a claimed shard to its end, as a worker does."""
        record = lease.record
        assert record is not None
        fenced = (lease.key, record.gen, record.owner)
        if not self.produce(worker, lease, fenced):
            return
        if self.random.random() < 0.2:  # another process goes on, by the ticket
            self.moment(worker)
            lease = new_lease(lease.key, record.owner)
            if not lease.adopt(record.gen):
                self.check_lost(fenced)
                return
        if lease.complete(output=str(fenced)):
            self.believed.append(fenced)
        else:
            self.check_lost(fenced)

    def produce(self, worker: Worker, lease: ShardLease, fenced: tuple[str, int, str]) -> bool:
        for _ in range(STEPS):
            self.moment(worker)
            if lease.in_danger() and not lease.renew():
                self.check_lost(fenced)
                return False
            self.outputs[fenced] = self.outputs.get(fenced, 0) + 1
            if not lease.renew():
                self.check_lost(fenced)
                return False
            if self.random.random() < 0.03:
                lease.release("gave up")
                return False
        return True

    def check_lost(self, fenced: tuple[str, int, str]) -> None:
        """Nobody gives up a shard that is leased to, or was completed by, itself."""
        key, gen, owner = fenced
        record = self.record(key)
        if record and (record.gen, record.owner) == (gen, owner) and record.state != "free":
            self.problems.append(f"{key}: {owner} gave up its own {record.state} shard")

    # --- the store ---
    def record(self, key: str) -> ClaimRecord | None:
        found = self.objects.get(key)
        return decode_record(key, found) if found else None

    def apply(self, key: str, data: bytes, expected: str | None) -> str:
        found = self.objects.get(key)
        if (version_of(found) if found else None) != expected:
            raise ConditionFailedError(f"{key}: 412")
        self.check_move(key, data)
        self.objects[key] = data
        return version_of(data)

    def check_move(self, key: str, data: bytes) -> None:
        before, after = self.record(key), decode_record(key, data)
        if before is None or before == after:
            return
        if before.state == "done":
            self.problems.append(f"{key}: left done")
        if after.gen < before.gen:
            self.problems.append(f"{key}: generation fell")
        if after.owner != before.owner and after.gen <= before.gen:
            self.problems.append(f"{key}: new owner without a new generation")

    def check_end(self) -> None:
        for key in self.keys:
            record = self.record(key)
            if record is None or record.state != "done":
                self.problems.append(f"{key}: not done")
            elif self.outputs.get((key, record.gen, record.owner), 0) < STEPS:
                self.problems.append(f"{key}: done without its output")
        for key, gen, owner in self.believed:
            record = self.record(key)
            if record is None or (record.gen, record.owner) != (gen, owner):
                self.problems.append(f"{key}: {owner} believes it completed it")


class SimulatedStore:
    """What the lease calls, with faults."""

    def __init__(self, simulation: Simulation, worker: Worker) -> None:
        self.simulation = simulation
        self.worker = worker

    def get(self, key: str) -> "SimulatedBody":
        simulation = self.simulation
        simulation.moment(self.worker)
        if self.fault():
            raise StoreError(f"{key}: reset", transient=True)
        found = simulation.objects.get(key)
        if found is None:
            raise ObjectNotFoundError(key)
        return SimulatedBody(key, found)

    def put_if_absent(self, key: str, data: bytes) -> ObjectInfo:
        return self.put(key, data, None)

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectInfo:
        return self.put(key, data, etag)

    def put(self, key: str, data: bytes, expected: str | None) -> ObjectInfo:
        simulation = self.simulation
        simulation.moment(self.worker)
        kinds = ("reply lost", "lost", "late", "412", "twice")
        kind = simulation.random.choice(kinds) if self.fault() else ""
        if kind == "lost":
            raise StoreError(f"{key}: reset", transient=True)
        if kind == "late":
            simulation.delayed.append(lambda: self.deliver_late(key, data, expected))
            raise StoreError(f"{key}: timed out", transient=True)
        if kind == "twice":
            simulation.delayed.append(lambda: self.deliver_late(key, data, expected))
        version = simulation.apply(key, data, expected)
        simulation.moment(self.worker)
        if kind == "reply lost":
            raise StoreError(f"{key}: reset", transient=True)
        if kind == "412":  # the SDK retried a put that had been applied
            raise ConditionFailedError(f"{key}: 412")
        return ObjectInfo(key=key, size_bytes=len(data), etag=version)

    def deliver_late(self, key: str, data: bytes, expected: str | None) -> None:
        try:
            self.simulation.apply(key, data, expected)
        except ConditionFailedError:
            return

    def fault(self) -> bool:
        faults = self.simulation.faults
        if faults.left > 0 and self.simulation.random.random() < faults.chance:
            faults.left -= 1
            return True
        return False


class SimulatedBody:
    def __init__(self, key: str, data: bytes) -> None:
        self.info = ObjectInfo(key=key, size_bytes=len(data), etag=version_of(data))
        self._data = data

    def __iter__(self):
        yield self._data

    def close(self) -> None:
        pass


def version_of(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def simulate(
    seed: int,
    *,
    num_workers: int = 3,
    num_shards: int = 2,
    lease_type: type[ShardLease] = ShardLease,
) -> list[str]:
    """Return the problems found under one seed: an empty list when the protocol held."""
    simulation = Simulation(
        seed, num_workers=num_workers, num_shards=num_shards, lease_type=lease_type
    )
    simulation.run()
    simulation.check_end()
    return simulation.problems


def replay_command(seed: int) -> str:
    """Return the command that runs one seed again."""
    return f"python -m tests.claim_simulation --seed {seed}"


def failures(seeds: range) -> str:
    """Return the problems under many seeds, each with the command that replays it; empty if none."""
    found = []
    for seed in seeds:
        problems = simulate(seed)
        if problems:
            found.append(f"{replay_command(seed)}\n  " + "\n  ".join(problems))
    return "\n".join(found)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the claim simulation under one seed.")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--shards", type=int, default=2)
    options = parser.parse_args()
    problems = simulate(options.seed, num_workers=options.workers, num_shards=options.shards)
    sys.stdout.write("\n".join(problems or ["no problem"]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
