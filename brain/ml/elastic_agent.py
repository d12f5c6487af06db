"""`python -m brain.ml.elastic_agent job.yaml`: starts the ranks of one machine, and starts them again.

torch's elastic engine (the one of `torch.distributed.run`) meets the other machines, numbers the
ranks, watches them, and begins anew when one is lost or a machine comes or goes, with as many ranks
as there are then; they go on from the newest checkpoint. What is added here: a failure that would
only come again ends the run at once, ranks that save get the time they need, and every start has a
number. What a person asks (SIGINT, SIGTERM) ends the run; only `ASK_AGAIN`, which agents send, lets
ranks save and begin anew. A machine with a `rendezvous` that gets SIGTERM leaves, and the others go on
without it. For `on 2 nodes` without a rendezvous this process keeps one agent a node on this machine,
brings back those that are killed, and holds the store in which they meet.
"""

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, cast

import msgspec
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousParameters,
)
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from brain.ml.agent_keeper import Keeper
from brain.ml.agent_pulse import SILENT_SECONDS, Pulse
from brain.ml.failure import Failure, failed_for_good
from brain.ml.guardians import Guardians
from brain.ml.metrics import MetricsLog
from brain.ml.process_group import World, attempt_of, name_start, read_world
from brain.ml.stop_request import ASK_AGAIN, PERSONS, REGROUPED
from brain.ml.training_job import TrainingJob, load_job
from tools_utilities.process_environment import own_program
from tools_utilities.process_identity import ProcessIdentity, identify
from tools_utilities.redaction import guard_process

MONITOR_SECONDS = 0.25
LOOK_SECONDS = 0.05
SAVE_SECONDS = 600
"""What ranks get to save before they are killed."""
END_SECONDS = 8
"""What ranks get to end by themselves after one failed: they find out, and tell why."""
KILL_SECONDS = 2
STORE_SECONDS = 60
AWAY_SHARE = 3
"""A node stays away longer than the others wait for it: a machine that starts again takes its time."""
FINAL_CODES = (2, 3, 4, 6)
"""Exit codes of a rank that a new start would not change."""
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
        *,
        leaves: bool = False,
    ) -> None:
        """Be one of the agents of a run.

        Args:
            spec: The ranks.
            logs: Where torch puts files of its own.
            run_dir: Of the run.
            store: Where all agents meet, which counts the starts.
            guardians: Who must live.
            leaves: On SIGTERM only this machine goes; else the run ends.
        """
        self._leaves = leaves
        super().__init__(spec, logs, exit_barrier_timeout=30, shutdown_timeout=SAVE_SECONDS)
        self._run_dir = run_dir
        self._starts = PrefixStore("quark", store)
        self._start = 0
        self._guardians = Guardians(run_dir, guardians)
        self._connect = lambda: _connect(f"{store.host}:{store.port}")
        self._pulse: Pulse | None = None

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        if self._pulse is not None:
            self._pulse.stop()
        super()._rendezvous(worker_group)
        store = cast("Any", worker_group.store)  # of this meeting alone
        if cast("int", worker_group.group_rank) == 0:
            store.set("quark/start", str(self._starts.add("starts", 1)))
        self._start = int(store.get("quark/start"))
        name_start(self._start)
        own, count = cast("Any", worker_group.group_rank), worker_group.group_world_size
        self._pulse = Pulse(self._connect, f"pulse/{self._start}", own, cast("int", count))
        self._pulse.start()

    def _stop_workers(self, worker_group: WorkerGroup) -> None:  # noqa: ARG002 - torch's signature
        self._shutdown(ASK_AGAIN, timeout=SAVE_SECONDS)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        machines: Any = self._worker_group.group_world_size  # None before they have met
        others = machines is not None and machines > 1
        leaving = self._leaves and others and death_sig == signal.SIGTERM
        super()._shutdown(ASK_AGAIN if leaving else death_sig, timeout)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        started: dict[int, Any] = super()._start_workers(worker_group)
        context = cast("Any", self._pcontext)
        close = context.close

        def close_patiently(death_sig: signal.Signals | None = None, timeout: int = 30) -> None:
            if death_sig is not None:
                close(death_sig, timeout)
                return
            # torch would ask the others to go when the first one has ended, and kill them after 30 s.
            # They may be saving, or about to tell why it ended.
            codes = [failure.exitcode for failure in context._failures.values()]  # noqa: SLF001 - nothing public tells of it
            wait_ended(context, SAVE_SECONDS if set(codes) <= {REGROUPED} else END_SECONDS)
            close(signal.SIGTERM, KILL_SECONDS)

        context.close = close_patiently
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if self._guardians.missed:
            raise SignalException("whoever started this agent has died", signal.SIGTERM)
        if result.state == WorkerState.HEALTHY and self._pulse is not None:
            silent = self._pulse.silent()
            if silent:
                self._give_up(silent[0])
                return RunResult(state=WorkerState.FAILED)
        if result.state == WorkerState.FAILED:
            codes = [failure.exitcode for failure in result.failures.values()]
            if failed_for_good(self._run_dir, self._start) or any(
                code in FINAL_CODES for code in codes
            ):
                self._remaining_restarts = 0
            elif all(code == REGROUPED for code in codes):
                # Saved because another machine came or went: no failure of this one.
                self._remaining_restarts += 1
        return result

    def _give_up(self, machine: int) -> None:
        """Tell of a machine that has fallen silent, and end the ranks that would wait for it."""
        # Not rank 0, whose events stop at the claim.
        failure = Failure(self._run_dir, World(rank=1, attempt=attempt_of(self._start)))
        first = machine * self._worker_group.spec.local_world_size
        failure.tell_silent(MetricsLog(self._run_dir), first, machine, SILENT_SECONDS)
        logger.warning("machine %d has fallen silent", machine)
        self._shutdown(signal.SIGKILL)


def wait_ended(context: Any, seconds: float) -> None:
    """Wait until no process of a torch `SubprocessContext` is left, at most so long."""
    deadline = time.monotonic() + seconds
    handlers = context.subprocess_handlers.values()
    while time.monotonic() < deadline and any(one.proc.poll() is None for one in handlers):
        time.sleep(LOOK_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the ranks of this machine; returns the exit code."""
    guard_process()
    parser = ArgumentParser(prog="python -m brain.ml.elastic_agent")
    parser.add_argument("job", type=Path)
    parser.add_argument("--meet", help="HOST:PORT of a store that is there")
    parser.add_argument("--rendezvous", help="HOST:PORT instead of the job's: known when it starts")
    given = parser.parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s agent %(levelname)s %(message)s"
    )
    logging.getLogger("torch").setLevel(logging.WARNING)
    job = load_job(given.job)
    if given.rendezvous is not None:
        job = msgspec.structs.replace(job, rendezvous=given.rendezvous)
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
        join_timeout=2 * SAVE_SECONDS,  # who comes back waits until the others have saved
    )
    handler = create_handler(store, C10dRendezvousBackend(store, job.name), parameters)
    program = own_program("brain.ml.train", str(job_file))
    spec = WorkerSpec(
        role="rank",
        local_world_size=job.processes,
        entrypoint=program[0],
        args=program[1:],
        rdzv_handler=handler,
        max_restarts=job.max_restarts,
        monitor_interval=MONITOR_SECONDS,
        local_addr=parameters.local_addr,
    )
    with tempfile.TemporaryDirectory(prefix="quark-agent-") as logs:
        guardians = [
            identify(pid) for pid in (keeper, read_world().launcher_pid) if pid is not None
        ]
        leaves = job.rendezvous is not None
        agent = QuarkAgent(
            spec, DefaultLogsSpecs(log_dir=logs), Path(job.run_dir), store, guardians, leaves=leaves
        )
        try:
            for number in PERSONS:  # torch does so only when it has started the ranks
                signal.signal(number, _raise)
            result = agent.run()
        except SignalException as error:
            if not leaves or error.sigval != signal.SIGTERM:
                handler.shutdown()
            return 128 + int(error.sigval)
        except RendezvousClosedError:
            logger.warning("the run has ended on another machine")
            return 1
        except RendezvousError as error:
            logger.warning("the machines of the run do not find together: %s", error)
            return 1
    # Whoever waits to come back must not: the run is over.
    handler.shutdown()
    return 0 if result is None or not result.is_failed() else 1


def keep_agents(job: TrainingJob, job_file: Path) -> int:
    """Keep one agent a node on this machine; one that is killed is brought back."""
    store = _hold(LOOPBACK, 0)
    meet = f"--meet={LOOPBACK}:{store.port}"
    argv = own_program("brain.ml.elastic_agent", str(job_file), meet)

    def start() -> "subprocess.Popen[bytes]":
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL)  # noqa: S603 - our own interpreter, no shell

    keeper = Keeper(
        start, job.nodes, away_seconds=AWAY_SHARE * job.rejoin_seconds, max_returns=job.max_restarts
    )
    for number in PERSONS:
        signal.signal(number, lambda number, _frame: keeper.end(number))
    return keeper.wait()


def _raise(number: int, _frame: FrameType | None) -> None:
    name = signal.Signals(number)
    raise SignalException(f"got {name.name}", name)


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
