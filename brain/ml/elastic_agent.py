"""`python -m brain.ml.elastic_agent job.yaml`: starts the ranks of one machine, and starts them again.

torch's elastic engine (the one of `torch.distributed.run`) meets the other machines, numbers the
ranks, watches them, and begins anew when one is lost or a machine comes or goes, with as many ranks
as there are then; they go on from the newest checkpoint. What is added here: a failure that would
only come again ends the run at once, ranks that save get the time they need, and every start has a
number. For `on 2 nodes` without a rendezvous this process keeps one agent a node on this machine,
brings back those that are killed, and holds the store in which they meet.
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from brain.ml.agent_keeper import Keeper
from brain.ml.failure import failed_for_good
from brain.ml.process_group import name_start, read_world
from brain.ml.training_job import TrainingJob, load_job
from tools_utilities.process_identity import ProcessIdentity, identify

MONITOR_SECONDS = 0.25
SAVE_SECONDS = 600
"""What ranks get to save before they are killed."""
STORE_SECONDS = 60
AWAY_SHARE = 3
"""A node stays away longer than the others wait for it: a machine that starts again takes its time."""
FINAL_CODES = (2, 3, 4, 6)
"""Exit codes of a rank that a new start would not change."""
TERMINATED = 143
DEFAULT_PORT = 29400
LOOPBACK = "127.0.0.1"

logger = logging.getLogger("quark.agent")


class QuarkAgent(LocalElasticAgent):
    """torch's agent, with a judgement of failures."""

    def __init__(
        self,
        spec: WorkerSpec,
        logs: DefaultLogsSpecs,
        run_dir: Path,
        store: TCPStore,
        guardians: Sequence[ProcessIdentity],
    ) -> None:
        """`store`: where all agents meet, which counts the starts; `guardians`: who must live."""
        super().__init__(spec, logs, exit_barrier_timeout=30, shutdown_timeout=SAVE_SECONDS)
        self._run_dir = run_dir
        self._starts = PrefixStore("quark", store)
        self._start = 0
        self._guardians = guardians

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        store = cast("Any", worker_group.store)  # of this meeting alone
        if cast("int", worker_group.group_rank) == 0:
            store.set("quark/start", str(self._starts.add("starts", 1)))
        self._start = int(store.get("quark/start"))
        name_start(self._start)

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002 - torch's signature
        self._shutdown(timeout=SAVE_SECONDS)

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if any(not guardian.alive for guardian in self._guardians):
            raise SignalException("whoever started this agent has died", signal.SIGTERM)
        if result.state == WorkerState.FAILED:
            codes = [failure.exitcode for failure in result.failures.values()]
            if failed_for_good(self._run_dir, self._start) or any(
                code in FINAL_CODES for code in codes
            ):
                self._remaining_restarts = 0
            elif all(code == TERMINATED for code in codes):
                # Saved because another machine came or went: no failure of this one.
                self._remaining_restarts += 1
        return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ranks of this machine; returns the exit code."""
    parser = ArgumentParser(prog="python -m brain.ml.elastic_agent")
    parser.add_argument("job", type=Path)
    parser.add_argument("--meet", help="HOST:PORT of a store that is there")
    given = parser.parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s agent %(levelname)s %(message)s"
    )
    logging.getLogger("torch").setLevel(logging.WARNING)
    job = load_job(given.job)
    if given.meet is not None:
        return run_agent(job, given.job, _connect(given.meet), keeper=os.getppid())
    if job.nodes > 1 and job.rendezvous is None:
        return keep_agents(job, given.job)
    if job.rendezvous is not None:
        return run_agent(job, given.job, _meet_at(job.rendezvous))
    return run_agent(job, given.job, _hold(LOOPBACK, 0))


def run_agent(
    job: TrainingJob, job_file: Path, store: TCPStore, *, keeper: int | None = None
) -> int:
    """Be the agent of one machine until the run ends; returns 0, 1 or 128 plus a signal.

    `keeper`: the process that keeps this agent, without which it must not go on.
    """
    parameters = RendezvousParameters(
        backend="c10d",
        endpoint=f"{store.host}:{store.port}",
        run_id=job.name,
        min_nodes=min(job.min_nodes, job.nodes),
        max_nodes=job.nodes,
        local_addr=LOOPBACK if job.rendezvous is None else None,
        last_call_timeout=max(1, round(job.rejoin_seconds)),
        keep_alive_interval=1,
        keep_alive_max_attempt=5,
    )
    handler = create_handler(store, C10dRendezvousBackend(store, job.name), parameters)
    spec = WorkerSpec(
        role="rank",
        local_world_size=job.processes,
        entrypoint=sys.executable,
        args=("-m", "brain.ml.train", str(job_file)),
        rdzv_handler=handler,
        max_restarts=job.max_restarts,
        monitor_interval=MONITOR_SECONDS,
        local_addr=parameters.local_addr,
    )
    with tempfile.TemporaryDirectory(prefix="quark-agent-") as logs:
        guardians = [
            identify(pid) for pid in (keeper, read_world().launcher_pid) if pid is not None
        ]
        agent = QuarkAgent(
            spec, DefaultLogsSpecs(log_dir=logs), Path(job.run_dir), store, guardians
        )
        try:
            result = agent.run()
        except SignalException as error:
            return 128 + int(error.sigval)
        except RendezvousClosedError:
            logger.warning("the run has ended on another machine")
            return 1
    # Whoever waits to come back must not: the run is over.
    handler.shutdown()
    return 0 if result is None or not result.is_failed() else 1


def keep_agents(job: TrainingJob, job_file: Path) -> int:
    """Keep one agent a node on this machine; one that is killed is brought back."""
    store = _hold(LOOPBACK, 0)
    argv = [sys.executable, "-m", "brain.ml.elastic_agent", str(job_file)]
    argv.append(f"--meet={LOOPBACK}:{store.port}")

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL)  # noqa: S603 - our own interpreter, no shell

    keeper = Keeper(
        start, job.nodes, away_seconds=AWAY_SHARE * job.rejoin_seconds, max_returns=job.max_restarts
    )
    signal.signal(signal.SIGTERM, lambda number, _frame: keeper.end(number))
    return keeper.wait()


def _hold(host: str, port: int) -> TCPStore:
    return TCPStore(
        host, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=STORE_SECONDS)
    )


def _connect(endpoint: str) -> TCPStore:
    host, port = _split(endpoint)
    return TCPStore(
        host, port, is_master=False, wait_for_workers=False,
        timeout=timedelta(seconds=STORE_SECONDS),
    )  # fmt: skip


def _meet_at(endpoint: str) -> TCPStore:
    """Hold the store where the endpoint names this machine, else connect to it."""
    from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname

    host, port = _split(endpoint)
    if not _matches_machine_hostname(host):
        return _connect(endpoint)
    try:
        return _hold(host, port)
    except (RuntimeError, OSError):  # another agent of this machine holds it
        return _connect(endpoint)


def _split(endpoint: str) -> tuple[str, int]:
    host, _, port = endpoint.rpartition(":")
    return (host, int(port)) if host else (endpoint, DEFAULT_PORT)


if __name__ == "__main__":
    sys.exit(main())
