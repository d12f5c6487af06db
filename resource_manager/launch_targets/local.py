"""`local`: the run is a process of this machine, in a session of its own.

A terminal's Ctrl-C therefore reaches the program that watches, not the run; it passes it on. When that
program dies, the run saves and ends, unless it is detached. Several ranks are started by
`brain.ml.elastic_agent` (torch's engine); several nodes without a rendezvous are agents on this machine.
"""

import os
import platform
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from brain.ml.job_check import check_job
from brain.ml.process_group import LAUNCHER_VARIABLE
from brain.ml.run_files import JOB_FILE, LOG_FILE, read_process
from brain.ml.training_job import TrainingJob
from resource_manager.accelerators import accelerators_here
from resource_manager.launch_target import (
    LaunchPlan,
    LaunchTarget,
    Machine,
    RunHandle,
    RunStatus,
)
from resource_manager.runs import last_events, read_run, stop_run
from tools_utilities.process_environment import OWN_PATH, child_environment, own_program
from tools_utilities.process_identity import descendants

POLL_SECONDS = 0.25
LOST_CODE = 1
SIGNAL_BASE = 128
"""A shell's exit code for a process ended by signal n is 128 + n."""


class LocalRun:
    """A run started here."""

    def __init__(
        self, process: subprocess.Popen[bytes], run_dir: Path, *, launcher: bool = False
    ) -> None:
        """`launcher`: the process is an agent with ranks below it."""
        self._launcher = launcher
        self.pid = process.pid
        self._process = process
        self._run_dir = run_dir
        self._started_at = time.time()
        self._asked: list[int] = []

    def poll(self) -> int | None:
        """Return the run's own exit code (an agent says 1 for all), or None."""
        code = self._process.poll()
        return None if code is None else self._own_code(code)

    def wait(self, timeout_seconds: float | None = None) -> int:
        """Wait for the end; TimeoutError when it takes longer."""
        try:
            return self._own_code(self._process.wait(timeout_seconds))
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"run {self._run_dir.name} has not ended") from error

    def interrupt(self) -> None:
        """Ask every rank to save and stop (130); asked again, they end at once."""
        if signal.SIGINT in self._asked:
            self.kill()
        self._ask(signal.SIGINT)

    def terminate(self) -> None:
        """Ask every rank to save and stop (143)."""
        if self._launcher:
            # The agent passes it on and starts none again; with a rendezvous, only this machine leaves.
            self._asked.append(signal.SIGTERM)
            _send(self.pid, signal.SIGTERM)
        else:
            self._ask(signal.SIGTERM)

    def kill(self) -> None:
        """End every process of the run now."""
        # Ranks have sessions of their own under an agent, so a group is not enough.
        for pid in (self.pid, *descendants(self.pid), *self._rank_pids()):
            _send(pid, signal.SIGKILL)

    def news(self) -> list[str]:
        """Nothing: there is no way between."""
        return []

    def _ask(self, number: signal.Signals) -> None:
        self._asked.append(number)
        # To the ranks themselves: together they agree to stop, on whatever machine they are.
        # While none has begun, to who starts them.
        for pid in self._rank_pids() or [self.pid]:
            _send(pid, number)

    def _rank_pids(self) -> list[int]:
        process = read_process(self._run_dir)
        if process is None:
            return []
        # Not those of an earlier start of the same run, nor of another agent of this machine.
        ours = {self.pid, *descendants(self.pid)}  # an agent may stand between
        here = [rank.pid for rank in process.alive_here]
        if process.ranks[0].pid in here and process.parent_pid == self.pid:
            return here  # where the system does not tell who started whom
        return [pid for pid in here if pid in ours]

    def _own_code(self, code: int) -> int:
        events = [
            event for event in last_events(self._run_dir) if event["time"] >= self._started_at
        ]
        last = events[-1] if events else {}
        told = last.get("exit_code") if last.get("event") in {"end", "error"} else None
        # Ranks under an agent end with 0 when asked to, lest they are started again.
        if told and (code or last["event"] == "end"):
            return int(told)
        if code and self._asked:
            return SIGNAL_BASE + self._asked[0]
        return SIGNAL_BASE - code if code < 0 else code


class AttachedRun:
    """A run of this machine that somebody else started: it is asked by its own files."""

    def __init__(self, run_dir: Path) -> None:
        process = read_process(run_dir)
        self._run_dir = run_dir
        self.pid = process.ranks[0].pid if process is not None else 0

    def poll(self) -> int | None:
        """As of RunHandle."""
        info = read_run(self._run_dir)
        if info.status == "running":
            return None
        return LOST_CODE if info.exit_code is None else info.exit_code

    def wait(self, timeout_seconds: float | None = None) -> int:
        """As of RunHandle."""
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self._run_dir.name} has not ended")
            time.sleep(POLL_SECONDS)
        return code

    def interrupt(self) -> None:
        """Nothing: it is looked at."""

    terminate = kill = interrupt

    def news(self) -> list[str]:
        """As of RunHandle."""
        return []


class _LocalTarget:
    name = "local"

    def for_command(
        self,
        tell: Callable[[str], None],  # noqa: ARG002 - nothing takes long
        *,
        may_ask: bool = True,  # noqa: ARG002 - nothing asks
    ) -> LaunchTarget:
        return self

    def close(self) -> None:
        """Nothing is open."""

    def look(self, job: TrainingJob) -> Machine:  # noqa: ARG002 - the same for every job
        return Machine(accelerators=accelerators_here())

    def plan(self, job: TrainingJob) -> LaunchPlan:
        check_job(job, job.processes * job.nodes)
        run_dir = Path(job.run_dir)
        program = "brain.ml.train"
        environment = {
            # cuBLAS is exact from run to run only with a fixed workspace.
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            # Threads that wait by spinning starve each other on a busy machine (2 cores: 3 to 17
            # times slower there); sleeping costs a sixth of the speed of an idle one.
            "OMP_WAIT_POLICY": "PASSIVE",
            **OWN_PATH,
        }
        if _has_agent(job):
            program = "brain.ml.elastic_agent"
            here = job.processes if job.rendezvous else job.processes * job.nodes
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // here))
            # A store of its own for each start: torch's shared one keeps the keys of earlier ones.
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            if platform.system() == "Linux" and job.rendezvous is None:
                environment["GLOO_SOCKET_IFNAME"] = "lo"  # ranks of one machine meet on loopback
        return LaunchPlan(
            job=job,
            argv=own_program(program, str(run_dir / JOB_FILE)),
            environment=environment,
            log_path=run_dir / LOG_FILE,
        )

    def launch(self, plan: LaunchPlan) -> RunHandle:
        added = dict(plan.environment)
        if not plan.job.detach:
            added[LAUNCHER_VARIABLE] = str(os.getpid())
        with plan.log_path.open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter, no shell
                plan.argv,
                env=child_environment(added),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return LocalRun(process, Path(plan.job.run_dir), launcher=_has_agent(plan.job))

    def attach(self, run_dir: Path) -> RunHandle:
        return AttachedRun(run_dir)

    def status(self, run_dir: Path) -> RunStatus:
        info = read_run(run_dir)
        if info.status in ("running", "lost"):
            return RunStatus(state=info.status)
        return RunStatus(state="ended", exit_code=info.exit_code)

    def collect(self, run_dir: Path) -> None:
        """Nothing: they are here."""

    def logs(self, run_dir: Path) -> Path:
        return run_dir / LOG_FILE

    def stop(self, run_dir: Path) -> None:
        stop_run(run_dir)

    def remove(self, run_dir: Path) -> None:
        """Nothing: the run's folder is all there is."""

    def verify_gone(self, run_dir: Path) -> tuple[str, ...]:
        return tuple(f"process {pid}" for pid in _living(run_dir))


def _living(run_dir: Path) -> list[int]:
    """Return the processes of a run that live here: its agent first, which would start others."""
    process = read_process(run_dir)
    if process is None:
        return []
    agent = [process.agent.pid] if process.agent is not None and process.agent_alive else []
    return [*agent, *(rank.pid for rank in process.alive_here)]


def _has_agent(job: TrainingJob) -> bool:
    return job.processes * job.nodes > 1


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # ended by itself in between


LAUNCH_TARGET: LaunchTarget = _LocalTarget()
