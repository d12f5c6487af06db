"""Small training runs for tests: data, jobs, runs in this process and in processes of their own.

Importing torch takes seconds, so `ForkServer` imports it once and forks a real process for each run.
"""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from brain.ml.training_job import DataSource, TrainingJob, save_job
from resource_manager.runs import read_events, step_events
from tools_utilities.object_store import StoreSpec

WORDS = ("the", "quick", "fox", "jumps", "over", "a", "lazy", "dog", "and", "sleeps")


def text_shards(*, shards: int = 3, records: int = 30, seed: int = 0) -> dict[str, bytes]:
    """Return key → JSONL bytes of made sentences."""
    source = random.Random(seed)
    made = {}
    for split, count in (("train", shards), ("val", 1)):
        for number in range(count):
            lines = [
                json.dumps(
                    {"id": row, "text": " ".join(source.choices(WORDS, k=source.randint(3, 25)))}
                )
                for row in range(records)
            ]
            made[f"d/{split}/{split}-{number:05d}.jsonl"] = ("\n".join(lines) + "\n").encode()
    return made


def write_shards(folder: Path, shards: Mapping[str, bytes]) -> StoreSpec:
    """Write shards into a folder and return it as a store."""
    for key, data in shards.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return StoreSpec(uri=f"file://{folder}")


def make_job(run_dir: Path, store: StoreSpec, **changes: Any) -> TrainingJob:
    """Return a job for a tiny model, its folder and file made."""
    run_dir.mkdir(parents=True, exist_ok=True)
    fields: dict[str, Any] = {
        "name": run_dir.name,
        "run_dir": str(run_dir),
        "layers": 1,
        "seq_len": 32,
        "batch_size": 8,
        "lr": 3e-3,
        "device": "cpu",
        "train": (DataSource(store=store, prefix="d/train/"),),
        "val": (DataSource(store=store, prefix="d/val/"),),
        "epochs": None,
        "max_steps": 12,
        **changes,
    }
    job = TrainingJob(**fields)
    save_job(job, run_dir / "job.yaml")
    return job


def train_here(job: TrainingJob) -> int:
    """Run a job in this process, as its only rank."""
    import torch

    from brain.ml.process_group import World
    from brain.ml.stop_request import StopRequest
    from brain.ml.train import train

    torch.set_num_threads(1)
    return train(job, World(attempt=f"{os.getpid()}-{time.monotonic_ns()}"), StopRequest())


def losses(run_dir: Path) -> list[float]:
    """Return the loss of every step, in order; of a repeated step the last."""
    return [event["loss"] for event in step_events(run_dir)]


def events(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """Return a run's events of one kind."""
    return [event for event in read_events(run_dir) if event["event"] == kind]


def wait_for(condition: Any, seconds: float = 60.0) -> None:
    """Wait until `condition()` is true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def wait_for_step(run_dir: Path, step: int) -> None:
    """Wait until a run has made a step."""
    wait_for(lambda: len(losses(run_dir)) >= step)


class ForkServer:
    """Starts ranks as forks of a process that has torch loaded."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def start(self, job: TrainingJob, **environment: str) -> int:
        """Start one rank of a job and return its pid; output goes to the run's log."""
        return int(self._ask({"job": job.run_dir, "environment": environment}))

    def start_ranks(self, job: TrainingJob, count: int, port: int, **environment: str) -> list[int]:
        """Start all ranks of a job, meeting at a port of loopback."""
        common = {
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCHELASTIC_RUN_ID": str(port),
            **environment,
        }
        return [
            self.start(job, RANK=str(rank), LOCAL_RANK=str(rank), **common) for rank in range(count)
        ]

    def wait(self, pid: int, seconds: float = 60.0) -> int:
        """Return a rank's exit code (-n: ended by signal n)."""
        deadline = time.monotonic() + seconds
        while True:
            code = self._ask({"poll": pid})
            if code is not None:
                return int(code)
            assert time.monotonic() < deadline, f"process {pid} has not ended"
            time.sleep(0.02)

    def run(self, job: TrainingJob, seconds: float = 60.0) -> int:
        """Start a single rank and wait for it."""
        return self.wait(self.start(job), seconds)

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def fork_server() -> Iterator[ForkServer]:
    """Run a fork server; ranks left over are killed at the end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        yield ForkServer(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def _serve() -> None:
    # What a run imports, and what torch imports at its first step: once for all runs.
    for name in (
        "brain.ml.training_run",
        "torch._dynamo",
        "torch.nn.parallel",
        "torch.distributed",
        "torch.distributed.fsdp",
        "torch.distributed.tensor.parallel",
        "brain.ml.sharded_tensors",
    ):
        importlib.import_module(name)
    running: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            running.discard(pid)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                _become_rank(request)
            running.add(answer)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    for pid in running:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _become_rank(request: dict[str, Any]) -> None:
    run_dir = Path(request["job"])
    log = os.open(run_dir / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.close(0)
    os.environ.update(request["environment"])
    from brain.ml.train import end_process, main

    end_process(main([str(run_dir / "job.yaml")]))


if __name__ == "__main__":
    _serve()
