"""P11: Quark's trainer beside a bare torch loop over the same batches, interleaved.

    python benchmarks/trainer_overhead.py [--rounds 5] [--steps 60] [--threads 2]

The trainer runs as a run does (stream, metrics, watchdog, clipping, schedule) over shards in memory. The bare
loop has its batches collected beforehand: forward, cross-entropy, backward, clipping, AdamW, and the
loss read once a step. Both build the same weights; their losses are compared, so that nobody does less.
Rounds take turns, each begins with warm-up steps that are not counted, and medians are printed: of a
step's seconds by the clock and of processor time (all threads). The machine must be idle for the clock;
processor time counts what the trainer adds even where it is not. The share of a step spent waiting for
data is the trainer's own figure, summed over the measured steps.
"""

import argparse
import io
import json
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch.nn import functional

from brain.ml.failure import Failure
from brain.ml.guardians import Guardians
from brain.ml.metrics import MetricsLog
from brain.ml.model_making import make_model
from brain.ml.optimizer import build_optimizer
from brain.ml.process_group import ProcessGroup, World
from brain.ml.random_state import seed_everything
from brain.ml.run_files import METRICS_FILE
from brain.ml.session import Session
from brain.ml.stop_request import StopRequest
from brain.ml.training_job import DataSource, TrainingJob
from brain.ml.training_run import prepare
from brain.ml.watchdog import Watchdog
from tools_utilities.object_store import StoreSpec, open_store

STORE = StoreSpec(uri="memory://trainer-overhead")
LEAST_RATIO = 0.97
MOST_WAIT = 0.02
SAME_LOSS = 1e-3


class Clocks:
    """The clock and the processor time at which each step was told of."""

    def __init__(self):
        self.wall, self.cpu, self.losses = [], [], []

    def note(self, loss):
        """Take note of the end of a step."""
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())
        self.losses.append(loss)

    def step_seconds(self, warm_up):
        """Return the mean seconds of a step after the warm-up, by the clock and of processor time."""
        steps = len(self.wall) - 1 - warm_up
        return (
            (self.wall[-1] - self.wall[warm_up]) / steps,
            (self.cpu[-1] - self.cpu[warm_up]) / steps,
        )


class TimedSession(Session):
    """A session that also notes when steps end."""

    clocks: Clocks

    def tell(self, event, **fields):
        """Write an event as ever."""
        super().tell(event, **fields)
        if event == "step":
            self.clocks.note(fields["loss"])


def make_data(job, shards):
    """Put rows of tokens into memory, each a whole sequence, enough for one pass of all steps."""
    store = open_store(STORE)
    rows = -(-job.max_steps * job.batch_size // shards)
    for number in range(shards):
        tokens = np.random.default_rng(number).integers(3, 259, (rows, job.seq_len + 1), np.uint16)
        file = io.BytesIO()
        np.save(file, tokens)
        store.put(f"d/train-{number:05d}.npy", file.getvalue())


def session_of(job):
    """Return what `brain.ml.train` makes for a rank, its watchdog running."""
    folder = Path(job.run_dir)
    folder.mkdir(parents=True, exist_ok=True)
    world = World(attempt=job.name)
    failure = Failure(folder, world)
    metrics = MetricsLog(folder)
    watchdog = Watchdog(world, metrics, failure, Guardians(folder, []))
    session = TimedSession(
        job=job, group=ProcessGroup(world), stop=StopRequest(), metrics=metrics,
        failure=failure, watchdog=watchdog,
    )  # fmt: skip
    session.clocks = Clocks()
    watchdog.start()
    return session


def trained(job):
    """Run the trainer; return its clocks."""
    session = session_of(job)
    try:
        if prepare(session).run():
            raise SystemExit("the run failed")
    finally:
        session.watchdog.stop()
    return session.clocks


def waited_share(job, warm_up):
    """Return the share of the steps after the warm-up that the trainer waited for data."""
    events = [json.loads(line) for line in (Path(job.run_dir) / METRICS_FILE).open()]
    steps = [one for one in events if one["event"] == "step"][1 + warm_up :]
    waited = sum(one["data_wait_share"] * one["step_seconds"] for one in steps)
    return waited / sum(one["step_seconds"] for one in steps)


def collected(job):
    """Return the batches of a run, as its trainer gets them."""
    session = session_of(job)
    session.watchdog.stop()
    stream = prepare(session).stream
    stream.start_epoch(0)
    return [stream.take(1)[0] for _ in range(job.max_steps)]


def bare(job, batches):
    """Train as a short script would; return its clocks."""
    seed_everything(job.seed, 0)
    model = make_model(job).model
    optimizer, _ = build_optimizer(model, job, "cpu")
    model.train()
    clocks = Clocks()
    for batch in batches:
        tokens = batch.tokens_BT.long()
        logits = model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), job.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        clocks.note(loss.item())
    return clocks


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--seq-len", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory(prefix="quark-overhead-") as folder:
        report(args, Path(folder))


def report(args, folder):
    """Run the rounds and print what they showed."""
    job = TrainingJob(
        name="overhead", run_dir=str(folder / "collected"), layers=args.layers,
        seq_len=args.seq_len, batch_size=args.batch_size, device="cpu", schedule="constant",
        train=(DataSource(store=STORE, prefix="d/"),), max_steps=args.steps + args.warm_up,
        epochs=None,
    )  # fmt: skip
    make_data(job, shards=8)
    batches = collected(job)
    found = {"trainer": [], "bare": []}
    waits = []
    for number in range(args.rounds):
        own = msgspec.structs.replace(job, run_dir=str(folder / f"round-{number}"))
        # Who begins changes, so that a machine that slows down favours nobody.
        if number % 2:
            ours, theirs = trained(own), bare(own, batches)
        else:
            theirs, ours = bare(own, batches), trained(own)
        check_same(ours.losses, theirs.losses)
        found["trainer"].append(ours.step_seconds(args.warm_up))
        found["bare"].append(theirs.step_seconds(args.warm_up))
        waits.append(waited_share(own, args.warm_up))
    show(args, found, waits)


def check_same(ours, theirs):
    """Refuse figures of two loops that do not train alike."""
    far = max(abs(one - other) for one, other in zip(ours, theirs, strict=True))
    if far > SAME_LOSS:
        raise SystemExit(f"the losses differ by {far:g}: these are not the same steps")


def show(args, found, waits):
    """Print the medians of the rounds, and the targets."""
    print(
        f"layers={args.layers} seq_len={args.seq_len} batch_size={args.batch_size}"
        f" threads={args.threads}: {args.rounds} rounds of {args.steps} steps, medians"
    )
    print("| a step | bare ms | trainer ms | throughput over bare |\n| --- | --- | --- | --- |")
    ratios = []
    for at, name in enumerate(("wall", "processor time")):
        own, other = (
            statistics.median(one[at] for one in found[who]) for who in ("trainer", "bare")
        )
        pairs = zip(found["bare"], found["trainer"], strict=True)
        ratios.append(statistics.median(theirs[at] / ours[at] for theirs, ours in pairs))
        print(f"| {name} | {other * 1e3:.2f} | {own * 1e3:.2f} | {ratios[-1]:.3f} |")
    wait = statistics.median(waits)
    said = "met" if ratios[0] >= LEAST_RATIO and wait < MOST_WAIT else "missed"
    print(f"data wait {wait:.2%} of the steps' time (below {MOST_WAIT:.0%})")
    print(f"P11 (throughput >= {LEAST_RATIO} by the clock, data wait < {MOST_WAIT:.0%}): {said}")


if __name__ == "__main__":
    main()
