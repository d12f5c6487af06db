"""`ssh:HOST`: the run is on any machine that the system's ssh reaches, and outlives the connection.

A wheel of this Quark and the job are sent, the environment (credentials) over the connection into a
0600 file that the run's supervisor removes when it has read it. Everything there lies below one folder
(`~/.quark`): environments/ and code/ by content, shared by all runs, and runs/NAME-NUMBER.
"""

import contextlib
import io
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from brain.ml.model_name import is_hf
from brain.ml.run_files import JOB_FILE, LOG_FILE, METRICS_FILE
from brain.ml.training_job import Remote, TrainingJob, load_job
from resource_manager.launch_target import (
    LaunchPlan,
    LaunchTarget,
    Machine,
    RunHandle,
    RunStatus,
)
from resource_manager.quark_wheel import Wheel, build_wheel
from resource_manager.remote_credentials import (
    Sent,
    endpoint_of,
    sent_variables,
    specs_of,
    travelling_spec,
)
from resource_manager.remote_host import OutOfReachError, RemoteHost
from resource_manager.remote_install import installed
from resource_manager.remote_mirror import RunMirror
from resource_manager.remote_preflight import machine_of
from resource_manager.remote_record import (
    RemoteRecord,
    read_record,
    try_mirror_lock,
    write_record,
)
from resource_manager.remote_run import RemoteRun, collect
from resource_manager.remote_shipping import Shipment, check_shipping, pointer, shipment_of
from tools_utilities.errors import MachineError, QuarkError, UsageError

RUNS_FOLDER = "runs"
Tell = Callable[[str], None]


def _quiet(_line: str) -> None:
    """Nobody is told."""


class SshTarget:
    """A machine for the time of one command: its connection stays open from the look to the launch."""

    name = "ssh"

    def __init__(
        self,
        tell: Tell = _quiet,
        *,
        may_ask: bool = False,
        deadline_seconds: float | None = None,
    ) -> None:
        """`deadline_seconds`: what a run may take from its launch on, enforced over there."""
        self._tell = tell
        self._deadline_seconds = deadline_seconds
        self._may_ask = may_ask
        self._host: RemoteHost | None = None

    def for_command(self, tell: Tell, *, may_ask: bool = True) -> "SshTarget":
        """As of LaunchTarget."""
        return SshTarget(tell, may_ask=may_ask)

    def plan(self, job: TrainingJob) -> LaunchPlan:
        """As of LaunchTarget."""
        remote = remote_in(job)
        check_shipping(job)
        run = f"{remote.folder}/{RUNS_FOLDER}/{job.name}"
        return LaunchPlan(
            job=job,
            argv=(remote.python, "-m", "brain.ml.train", f"{run}/{JOB_FILE}"),
            environment={},
            log_path=Path(job.run_dir) / LOG_FILE,
        )

    def look(self, job: TrainingJob) -> Machine:
        """As of LaunchTarget."""
        remote = remote_in(job)
        sent = sent_variables(job)
        specs = [travelling_spec(spec) for spec in specs_of(job)]
        endpoints = tuple(dict.fromkeys(filter(None, map(endpoint_of, specs))))
        host = self._connected(remote)
        found = {**host.look(endpoints), "folder": host.folder}
        run = f"{host.folder}/{RUNS_FOLDER}/{job.name}-…"
        return machine_of(job, found, sent, wheel_bytes=len(wheel_for(job).data), run=run)

    def launch(self, plan: LaunchPlan) -> RunHandle:
        """As of LaunchTarget."""
        job = plan.job
        remote, run_dir = remote_in(job), Path(job.run_dir)
        record = RemoteRecord(
            remote=remote,
            # Every launch has a folder of its own: nothing of an earlier one is taken for it.
            run=f"{RUNS_FOLDER}/{job.name}-{secrets.token_hex(4)}",
            metrics_base=_length(run_dir / METRICS_FILE),
            log_base=_length(run_dir / LOG_FILE),
        )
        sent = sent_variables(job, within_seconds=self._deadline_seconds)
        # Held meanwhile: who lists the runs must not take one that is being sent for lost.
        lock = try_mirror_lock(run_dir)
        try:
            pid, record = self._launched(job, write_record(run_dir, record), sent)
        finally:
            if lock is not None:
                lock.close()
        mirror = RunMirror(run_dir, record, keep=job.keep)
        return RemoteRun(pid, mirror, lambda: self._handed_over(remote))

    def _launched(
        self, job: TrainingJob, record: RemoteRecord, sent: Sent
    ) -> tuple[int, RemoteRecord]:
        run_dir = Path(job.run_dir)
        host: RemoteHost | None = None
        try:
            host = self._connected(record.remote)
            pid = self._start(host, job, record, sent)
        except QuarkError:
            if host is not None:
                with contextlib.suppress(MachineError):
                    host.ask("signal", run=record.run, name="kill", token=secrets.token_hex(8))
                    host.ask("remove", run=record.run)
            write_record(run_dir, msgspec.structs.replace(record, state="lost"))
            raise
        return pid, write_record(run_dir, msgspec.structs.replace(record, state="running"))

    def attach(self, run_dir: Path) -> RunHandle:
        """As of LaunchTarget."""
        record = _record_of(run_dir)
        pid = next(iter(self._ask(record, "living")["living"]), 0)
        mirror = _mirror(run_dir, record)
        return RemoteRun(pid, mirror, lambda: self._handed_over(record.remote), looks_on=True)

    def status(self, run_dir: Path) -> RunStatus:
        """As of LaunchTarget."""
        record = _record_of(run_dir)
        lock = None if record.ended else try_mirror_lock(run_dir)
        if lock is None:  # over, or another process keeps it up to date
            return RunStatus(state=record.state, exit_code=record.exit_code)
        mirror = _mirror(run_dir, record)
        try:
            status = mirror.read(self._connected(record.remote))
            mirror.note(status)
        except OutOfReachError as error:
            self._host = None
            return RunStatus(state="unreachable", why=str(error))
        finally:
            lock.close()
        return status

    def collect(self, run_dir: Path) -> None:
        """As of LaunchTarget."""
        record = _record_of(run_dir)
        lock = None if record.collected or not record.ended else try_mirror_lock(run_dir)
        if lock is None:
            return
        mirror = _mirror(run_dir, record)
        try:
            host = self._connected(record.remote)
            self._tell(f"{record.remote.where}: bringing the checkpoints of {run_dir.name}")
            collect(mirror, host, mirror.read(host))
        finally:
            lock.close()

    def logs(self, run_dir: Path) -> Path:
        """As of LaunchTarget."""
        status = self.status(run_dir)
        if status.state == "unreachable":
            self._tell(f"{status.why}; this is the log as far as it is here")
        return run_dir / LOG_FILE

    def stop(self, run_dir: Path) -> None:
        """As of LaunchTarget."""
        token = secrets.token_hex(8)
        self._ask(_record_of(run_dir), "signal", name="interrupt", token=token)

    def verify_gone(self, run_dir: Path) -> tuple[str, ...]:
        """As of LaunchTarget; what costs something is a process."""
        record = _record_of(run_dir)
        answer = self._ask(record, "living")
        return tuple(f"process {pid} on {record.remote.where}" for pid in answer["living"])

    def remove(self, run_dir: Path) -> None:
        """As of LaunchTarget."""
        self._ask(_record_of(run_dir), "remove")

    def _ask(self, record: RemoteRecord, op: str, **fields: Any) -> dict[str, Any]:
        """Ask about a run; over a new connection if the open one turns out to be gone."""
        is_new = self._host is None
        try:
            return self._connected(record.remote).ask(op, run=record.run, **fields)[0]
        except OutOfReachError:
            if is_new:
                raise
            self.close()
        return self._connected(record.remote).ask(op, run=record.run, **fields)[0]

    def break_off(self) -> None:
        """End the connection now, from any thread: who waits for an answer gets OutOfReachError."""
        host = self._host
        if host is not None:
            host.break_off()

    def close(self) -> None:
        """End the connection, if one is open."""
        if self._host is not None:
            self._host.close()
            self._host = None

    def _connected(self, remote: Remote) -> RemoteHost:
        if self._host is not None and self._host.remote != remote:
            self.close()
        if self._host is None:
            self._host = RemoteHost(remote, may_ask=self._may_ask)
        self._host.enter()
        return self._host

    def _handed_over(self, remote: Remote) -> RemoteHost:
        """Return the open connection, once: the run's from now on; then new ones, which ask nobody."""
        host, self._host = self._host, None
        if host is not None:
            return host
        host = RemoteHost(remote)
        host.enter()
        return host

    def _start(self, host: RemoteHost, job: TrainingJob, record: RemoteRecord, sent: Sent) -> int:
        """Send everything and start the supervisor; returns its process number there."""
        wheel = wheel_for(job)
        python, code = installed(host, wheel, self._tell)
        cache_dir = None if job.cache_dir is None else host.there(job.cache_dir)
        shipment = shipment_of(job, f"{host.folder}/{record.run}", cache_dir, sent.grants)
        self._send(host, record.run, shipment)
        answer, _ = host.ask(
            "start", msgspec.json.encode(sent.variables), run=record.run, python=python, code=code,
            deadline_seconds=self._deadline_seconds,
        )  # fmt: skip
        return int(answer["pid"])

    def _send(self, host: RemoteHost, run: str, shipment: Shipment) -> None:
        job = msgspec.yaml.encode(shipment.job)
        host.put(f"{run}/{JOB_FILE}", io.BytesIO(job))
        total = sum(path.stat().st_size for path, _ in shipment.files)
        if shipment.files:
            self._tell(f"{host.where}: sending {len(shipment.files)} files, {total:,} bytes")
        for path, name in shipment.files:
            with path.open("rb") as file:
                host.put(f"{run}/{name}", file)
        pointed = pointer(shipment)
        if pointed is not None:
            host.put(f"{run}/{pointed[0]}", io.BytesIO(pointed[1]))


def wheel_for(job: TrainingJob) -> Wheel:
    """Return the wheel that a job is shipped with."""
    return build_wheel(("hf",) if is_hf(job.model) else ())


def remote_in(job: TrainingJob) -> Remote:
    """Return the machine that a job names."""
    if job.remote is None:
        raise UsageError("this job names no machine", hint="Say where: on ssh host NAME.")
    return job.remote


def _record_of(run_dir: Path) -> RemoteRecord:
    record = read_record(run_dir)
    if record is None:
        raise UsageError(f"run {run_dir.name} is not on another machine")
    return record


def _mirror(run_dir: Path, record: RemoteRecord) -> RunMirror:
    return RunMirror(run_dir, record, keep=load_job(run_dir / JOB_FILE).keep)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


LAUNCH_TARGET: LaunchTarget = SshTarget()
