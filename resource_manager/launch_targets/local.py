"""`local`: the run is a process of this machine, in a session of its own.

Several ranks are started by torch's own launcher. A terminal's Ctrl-C therefore reaches the program that watches, not the run; it passes it on. When
that program dies, the run saves and ends, unless it is detached.
"""

import os
import platform
import signal
import subprocess
import sys
import time
from pathlib import Path

import brain
from brain.ml.process_group import LAUNCHER_VARIABLE
from brain.ml.run_files import JOB_FILE, LOG_FILE, RunProcess, read_process
from brain.ml.training_job import TrainingJob
from resource_manager.launch_target import LaunchPlan, LaunchTarget, RunHandle
from resource_manager.runs import last_events
from tools_utilities.errors import UsageError
from tools_utilities.process_identity import descendants
from tools_utilities.settings import child_environment

PACKAGE_ROOT = Path(brain.__file__).parents[1]
SIGNAL_BASE = 128
"""A shell's exit code for a process ended by signal n is 128 + n."""


class LocalRun:
    """A run started here."""

    def __init__(self, process: subprocess.Popen[bytes], run_dir: Path) -> None:
        self.pid = process.pid
        self._process = process
        self._run_dir = run_dir
        self._started_at = time.time()
        self._asked: list[int] = []

    def poll(self) -> int | None:
        """Return the run's own exit code (torch's launcher says 1 for all), or None."""
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
        self._ask(signal.SIGTERM)

    def kill(self) -> None:
        """End every process of the run now."""
        # Ranks have sessions of their own under torch's launcher, so a group is not enough.
        for pid in (self.pid, *descendants(self.pid), *self._rank_pids()):
            _send(pid, signal.SIGKILL)

    def _ask(self, number: signal.Signals) -> None:
        self._asked.append(number)
        # To the ranks themselves: the launcher would give them 30 s and then kill a save.
        for pid in self._rank_pids() or [self.pid]:
            _send(pid, number)

    def _rank_pids(self) -> list[int]:
        process = read_process(self._run_dir)
        if process is None or not self._is_ours(process):
            return []
        return [rank.pid for rank in process.ranks if rank.alive]

    def _is_ours(self, process: RunProcess) -> bool:
        """Tell this start's processes from those of an earlier start of the same run."""
        return self.pid in (process.parent_pid, process.ranks[0].pid)

    def _own_code(self, code: int) -> int:
        events = [
            event for event in last_events(self._run_dir) if event["time"] >= self._started_at
        ]
        last = events[-1] if events else {}
        if code and last.get("event") in {"end", "error"} and last.get("exit_code"):
            return int(last["exit_code"])
        if code and self._asked:
            return SIGNAL_BASE + self._asked[0]
        return SIGNAL_BASE - code if code < 0 else code


class _LocalTarget:
    name = "local"

    def plan(self, job: TrainingJob) -> LaunchPlan:
        if job.nodes > 1:
            raise UsageError(
                f"nodes={job.nodes}: the local target starts one machine",
                hint="Leave nodes out; gpus= says how many processes this machine runs.",
            )
        run_dir = Path(job.run_dir)
        program: tuple[str, ...] = ("-m", "brain.ml.train", str(run_dir / JOB_FILE))
        environment = {
            # cuBLAS is exact from run to run only with a fixed workspace.
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            # Threads that wait by spinning starve each other on a busy machine (2 cores: 3 to 17
            # times slower there); sleeping costs a sixth of the speed of an idle one.
            "OMP_WAIT_POLICY": "PASSIVE",
            "PYTHONPATH": str(PACKAGE_ROOT),
        }
        if job.processes > 1:
            launcher = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1")
            program = (*launcher, f"--nproc-per-node={job.processes}", *program)
            threads = max(1, (os.cpu_count() or 1) // job.processes)
            environment["OMP_NUM_THREADS"] = str(threads)
            if platform.system() == "Linux":
                environment["GLOO_SOCKET_IFNAME"] = "lo"  # ranks of one machine meet on loopback
        return LaunchPlan(
            job=job,
            argv=(sys.executable, *program),
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
        return LocalRun(process, Path(plan.job.run_dir))


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # ended by itself in between


LAUNCH_TARGET: LaunchTarget = _LocalTarget()
