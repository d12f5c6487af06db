"""Batch workers under fire: real processes, killed and paused, before a store that fails through a proxy.

    chaos = Chaos(ChaosPlan(...), endpoint, bucket, folder)
    report = chaos.run()        # raises AssertionError when a shard was lost or committed twice

The workers run `process_shards.py` as a user starts it; one that died is started again under a new name.
What is checked comes from two sides: the outputs that the records name, and every conditional put
that the server accepted, as the proxy saw it.
"""

import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests import faults
from tests.fault_exchange import Logged
from tests.fault_proxy import ALWAYS, FaultProxy, Where
from tests.scripts.test_shard_manager import make_dataset
from tools_utilities.claim_record import ClaimRecord, decode_record
from tools_utilities.object_store import ObjectStore, StoreSpec, open_store

CHECKOUT = Path(__file__).resolve().parents[1]
FUNCTION = """
import time
def double(samples):
    time.sleep({seconds})
    return [{{"id": sample["id"], "twice": 2 * sample["id"]}} for sample in samples]
"""
CLAIMS = r"claim\.json$"
LAST_STRIKES = 3


@dataclass(frozen=True)
class ChaosPlan:
    """How much of it."""

    num_workers: int = 4
    num_shards: int = 40
    samples: int = 320
    batch_seconds: float = 0.5
    kills: int = 10
    pauses: int = 5
    faults: int = 300
    lease_seconds: float = 4.0
    pause_leases: float = 2.5
    seed: int = 0
    limit_seconds: float = 600.0


@dataclass
class Worker:
    """One process and the names it had."""

    number: int
    process: subprocess.Popen[bytes]
    name: str
    resume_at: float | None = None
    """It is stopped until then."""
    ended: bool = False


@dataclass
class ChaosReport:
    """What happened."""

    seconds: float = 0.0
    kills: int = 0
    pauses: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    restarts: list[str] = field(default_factory=list)
    """Exit codes and errors of workers that ended by themselves before everything was done."""
    takeovers: list[tuple[float, bool]] = field(default_factory=list)
    """(seconds from the kill or stop of a holder to the next claim, whether a worker was idle)."""
    accepted: int = 0
    refused: int = 0

    def __str__(self) -> str:
        """Return the figures in one line."""
        idle = [round(seconds, 2) for seconds, was_idle in self.takeovers if was_idle]
        every = [round(seconds, 2) for seconds, _ in self.takeovers]
        return (
            f"seconds={self.seconds:.0f} kills={self.kills} pauses={self.pauses} "
            f"faults={sum(self.faults.values())} restarts={self.restarts} accepted={self.accepted} "
            f"refused={self.refused} takeovers={every} with_idle_worker={idle} {dict(self.faults)}"
        )


class Chaos:
    """One run."""

    def __init__(self, plan: ChaosPlan, endpoint: str, bucket: str, folder: Path) -> None:
        self.plan = plan
        self.folder = folder
        self.uri = f"s3://{bucket}/d"
        self.random = random.Random(plan.seed)
        self.report = ChaosReport()
        self.direct = open_store(StoreSpec(uri=f"s3://{bucket}", endpoint_url=endpoint))
        self.proxy = FaultProxy(endpoint)
        self.workers: list[Worker] = []
        self.seen: dict[str, ClaimRecord] = {}
        self.struck: list[tuple[float, str, int, bool]] = []
        """(when, claim key, generation held, whether a worker was idle)."""

    def run(self) -> ChaosReport:
        """Work everything under fire and check what came of it."""
        self._prepare()
        begun = time.monotonic()
        with self.proxy:
            self._inject()
            try:
                self.workers = [self._start(number, 0) for number in range(self.plan.num_workers)]
                self._fight(begun + self.plan.limit_seconds)
            finally:
                for worker in self.workers:
                    worker.process.kill()
                    worker.process.wait()
        self.report.seconds = time.monotonic() - begun
        self.report.faults = self.proxy.fired
        check_outputs(self.direct, self.plan)
        self._check_writes()
        return self.report

    def _prepare(self) -> None:
        (self.folder / "chaos_code.py").write_text(FUNCTION.format(seconds=self.plan.batch_seconds))
        made = make_dataset(
            self.folder / "made", samples=self.plan.samples, num_shards=self.plan.num_shards
        )
        for path in made.rglob("*.json*"):
            self.direct.put(f"d/{path.relative_to(made)}", path.read_bytes())

    def _inject(self) -> None:
        claims, puts = Where("PUT", CLAIMS), Where("PUT")
        anywhere, gets, chunks = Where(), faults.GETS, Where("GET", r"/chunk_\d+\.jsonl$")
        kinds = [
            (faults.slow_down(), anywhere, 0.14, 0.03),
            (faults.slow_down(429), anywhere, 0.08, 0.02),
            (faults.internal_error(), anywhere, 0.08, 0.02),
            (faults.reset_before(), anywhere, 0.1, 0.02),
            (faults.delay(0.5), anywhere, 0.08, 0.02),
            (faults.silent(0.5), anywhere, 0.08, 0.02),
            (faults.reset_in_body(), gets, 0.08, 0.04),
            (faults.short_body(), gets, 0.08, 0.04),
            (faults.stall(seconds=0.5), gets, 0.06, 0.04),
            (faults.bit_flip(), chunks, 0.03, 0.1),
            (faults.reply_lost(), claims, 0.06, 0.15),
            (faults.reply_lost(), puts, 0.06, 0.05),
            (faults.applied_late(0.5), claims, 0.03, 0.1),
            (faults.applied_twice(), claims, 0.03, 0.1),
        ]
        for number, (fault, where, share, chance) in enumerate(kinds):
            times = round(share * self.plan.faults)
            self.proxy.inject(fault, where, times=times, chance=chance, seed=number)
        # Whatever of these found too few requests of its kind is made up for.
        self.proxy.inject(faults.slow_down(), times=ALWAYS, chance=0.02, seed=99)

    def _start(self, number: int, incarnation: int) -> Worker:
        name = f"w{number}.{incarnation}"
        program = str(CHECKOUT / "tools_utilities/scripts/process_shards.py")
        log = (self.folder / f"{name}.log").open("wb")
        process = subprocess.Popen(
            [
                *(sys.executable, program, "--dataset_dir", self.uri, "--worker_id", name),
                *("--function", "chaos_code:double", "--lease", str(self.plan.lease_seconds)),
                *("--batch_size", "4", "--endpoint_url", self.proxy.url, "--verbose"),
                *("--max_attempts", "50"),
            ],
            env={**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(self.folder)},
            cwd=self.folder,
            stdout=log,
            stderr=log,
        )
        log.close()
        return Worker(number, process, name)

    def _fight(self, deadline: float) -> None:
        strikes = [*["kill"] * self.plan.kills, *["pause"] * self.plan.pauses]
        self.random.shuffle(strikes)
        every = self.plan.num_shards / (len(strikes) + 1)
        at = [int(every * (n + 1)) for n in range(len(strikes))]
        if len(strikes) > LAST_STRIKES:
            # The last ones come when nothing is free any more and workers wait: takeovers are timed.
            at[-LAST_STRIKES:] = [
                self.plan.num_shards - n - 1 for n in reversed(range(LAST_STRIKES))
            ]
        while True:
            records = self._records()
            done = sum(record.state == "done" for record in records.values())
            if done == self.plan.num_shards:
                return
            assert time.monotonic() < deadline, f"{done} done: {self.report}"
            self._revive()
            if strikes and done >= at[len(at) - len(strikes)] and self._strike(strikes[0], records):
                strikes.pop(0)
            time.sleep(0.1)

    def _revive(self) -> None:
        for place, worker in enumerate(self.workers):
            if worker.resume_at is not None and time.monotonic() >= worker.resume_at:
                worker.process.send_signal(signal.SIGCONT)
                worker.resume_at = None
            code = worker.process.poll()
            if code is None:
                continue
            if code != -signal.SIGKILL:
                said = (self.folder / f"{worker.name}.log").read_text(errors="replace").splitlines()
                errors = [line for line in said if line.startswith("error:")]
                self.report.restarts.append(f"{code} {errors[-1] if errors else said[-1:]}")
            incarnation = int(worker.name.partition(".")[2]) + 1
            self.workers[place] = self._start(worker.number, incarnation)

    def _strike(self, how: str, records: dict[str, ClaimRecord]) -> bool:
        """Kill or stop a worker that holds a shard, if there is one."""
        running = {
            worker.name: worker
            for worker in self.workers
            if worker.resume_at is None and worker.process.poll() is None
        }
        held = [
            (key, record)
            for key, record in records.items()
            if record.state == "leased" and record.worker in running
        ]
        if not held:
            return False
        key, record = self.random.choice(held)
        worker = running[record.worker]
        open_shards = self.plan.num_shards - sum(r.state == "done" for r in records.values())
        others_held = sum(r.worker in running for _, r in held) - 1
        idle = open_shards == len(held) and len(running) - 1 > others_held
        self.struck.append((time.monotonic(), key, record.gen, idle))
        if how == "kill":
            worker.process.kill()
            worker.process.wait()
            self.report.kills += 1
        else:
            worker.process.send_signal(signal.SIGSTOP)
            seconds = self.plan.pause_leases * self.plan.lease_seconds
            worker.resume_at = time.monotonic() + seconds
            self.report.pauses += 1
        return True

    def _records(self) -> dict[str, ClaimRecord]:
        found = self.seen
        for number in range(self.plan.num_shards):
            key = f"d/shard_{number:03d}/claim.json"
            if key in found and found[key].state == "done":
                continue
            try:
                found[key] = decode_record(key, b"".join(self.direct.get(key)))
            except FileNotFoundError:
                continue
        return found

    def _check_writes(self) -> None:
        times: dict[str, dict[int, float]] = {}
        for number in range(self.plan.num_shards):
            key = f"d/shard_{number:03d}/claim.json"
            puts = [entry for entry in self.proxy.log if entry.request.key == key and is_put(entry)]
            self.report.refused += sum(not was_accepted(entry) for entry in puts)
            chain = list(accepted_chain(key, [entry for entry in puts if was_accepted(entry)]))
            self.report.accepted += len(chain)
            check_chain(key, [record for record, _ in chain])
            for record, at in chain:
                times.setdefault(key, {}).setdefault(record.gen, at)
        for when, key, gen, idle in self.struck:
            if gen + 1 in times[key]:
                self.report.takeovers.append((times[key][gen + 1] - when, idle))


def is_put(entry: Logged) -> bool:
    """Say whether a request was a put that reached the server."""
    return entry.request.method == "PUT" and entry.applied > 0


def was_accepted(entry: Logged) -> bool:
    """Say whether the server took it."""
    return any(status < 300 for status in entry.answers)


def accepted_chain(key: str, entries: list[Logged]) -> Iterator[tuple[ClaimRecord, float]]:
    """Yield what was accepted, each on the version before: a version has one successor at most."""
    by_parent: dict[str | None, Logged] = {}
    for entry in entries:
        parent = entry.request.headers.get("if-match")
        parent = parent.strip('"') if parent else None
        assert parent not in by_parent, f"{key}: two writes were accepted on one version"
        by_parent[parent] = entry
    version: str | None = None
    for _ in entries:
        entry = by_parent[version]
        yield decode_record(key, entry.request.body), entry.at
        version = hashlib.md5(entry.request.body, usedforsecurity=False).hexdigest()


def check_chain(key: str, records: list[ClaimRecord]) -> None:
    """Check the life of one record: no stale write, one commit, nothing after it."""
    for before, after in itertools.pairwise(records):
        assert before.state != "done", f"{key}: left done"
        assert after.gen >= before.gen, f"{key}: a stale write was accepted"
        assert (after.owner == before.owner) or after.gen > before.gen, f"{key}: robbed"
    assert [record.state for record in records].count("done") == 1, f"{key}: not committed once"


def check_outputs(store: ObjectStore, plan: ChaosPlan) -> None:
    """Check that the committed outputs hold every sample once."""
    ids: list[int] = []
    for number in range(plan.num_shards):
        key = f"d/shard_{number:03d}/claim.json"
        record = decode_record(key, b"".join(store.get(key)))
        assert record.state == "done"
        assert record.output is not None
        folder = record.output.removeprefix(f"{store.spec.uri}/")
        for info in store.list(folder):
            if info.key.endswith(".jsonl"):
                lines = b"".join(store.get(info.key)).splitlines()
                ids += [json.loads(line)["id"] for line in lines]
    assert sorted(ids) == list(range(plan.samples)), "samples were lost or repeated"
