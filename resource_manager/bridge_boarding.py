"""A bridge's pipeline as the cargo of a rented machine: how it is sent, started and watched there."""

import io
import secrets
from pathlib import Path

import msgspec

from brain.ml.run_files import LOG_FILE, METRICS_FILE
from brain.ml.training_job import Remote
from resource_manager.bridge_order import RentedPipeline
from resource_manager.bridge_start import BRIDGE_FILE
from resource_manager.launch_target import RunHandle
from resource_manager.launch_targets.ssh import RUNS_FOLDER
from resource_manager.quark_wheel import Wheel, build_wheel
from resource_manager.remote_host import RemoteHost
from resource_manager.remote_install import installed
from resource_manager.remote_mirror import RunMirror
from resource_manager.remote_preflight import check_installer, check_reach
from resource_manager.remote_record import (
    REMOTE_FILE,
    RemoteRecord,
    read_record,
    write_record,
)
from resource_manager.remote_run import Connect, RemoteRun
from resource_manager.rental.cargo import Tell
from tools_utilities.bridge.checkout import NOT_NEEDED
from tools_utilities.bridge.rented_process import ORDER_VARIABLE
from tools_utilities.errors import MachineError, UsageError
from tools_utilities.private_files import write_private
from tools_utilities.terminal_text import human_bytes

ORDER_FILE = "order"
"""What tells the order of the machine that was rented last."""
LEAST_FREE_BYTES = 2_000_000_000
"""Packages, and shards on their way."""


class PipelineCargo:
    """As of `Cargo`."""

    def __init__(self, rented: RentedPipeline) -> None:
        self.rented = rented
        self.name, self.folder = rented.name, rented.folder
        self.terms, self.remote, self.max_seconds = rented.terms, rented.remote, rented.max_seconds
        self.only_offer = rented.offer_id is not None
        self.goes_on = "Run the same command again: it goes on where it stopped."
        self._begun = False

    def boarding(self, remote: Remote, tell: Tell, deadline_seconds: float) -> "PipelineBoarding":
        """As of Cargo; whoever asks has the rental's lock."""
        if not self._begun:
            self._begun = True
            begin_records(self.rented)
        return PipelineBoarding(self.rented, remote, tell, deadline_seconds)

    def again(self, remote: Remote, tell: Tell) -> "PipelineBoarding":
        """Return the way to a machine that runs it already."""
        self._begun = True
        return PipelineBoarding(self.rented, remote, tell, 1.0)

    def lost(self) -> None:
        """As of Cargo: its progress is beside its output, where the next one finds it."""


def begin_records(rented: RentedPipeline) -> None:
    """Note which order it is, and forget what earlier machines have said."""
    for name in (LOG_FILE, METRICS_FILE, REMOTE_FILE):
        (rented.folder / name).unlink(missing_ok=True)
    write_private(rented.folder / ORDER_FILE, rented.identity.encode())


class PipelineBoarding:
    """As of `Boarding`."""

    def __init__(
        self, rented: RentedPipeline, remote: Remote, tell: Tell, deadline_seconds: float
    ) -> None:
        self._rented, self._remote, self._tell = rented, remote, tell
        self._deadline_seconds = deadline_seconds
        self._host: RemoteHost | None = RemoteHost(remote)

    def look(self) -> None:
        """As of Boarding."""
        host = self._connected()
        found = host.look(self._rented.endpoints)
        check_installer(self._remote.where, self._remote.packages, found)
        check_reach(self._remote.where, found)
        free = int(found["free_bytes"])
        if not found["writable"] or free < LEAST_FREE_BYTES:
            raise MachineError(
                f"{self._remote.where}: {human_bytes(free)} free below {host.folder}, and packages and"
                f" shards on their way take {human_bytes(LEAST_FREE_BYTES)}",
                hint="Give more: vast.storage_gb, or another vast.workdir.",
            )

    def launch(self) -> RunHandle:
        """As of Boarding."""
        rented, folder, host = self._rented, self._rented.folder, self._connected()
        record = write_record(
            folder,
            RemoteRecord(
                remote=self._remote,
                run=f"{RUNS_FOLDER}/{rented.name}-{secrets.token_hex(4)}",
                metrics_base=_length(folder / METRICS_FILE),
                log_base=_length(folder / LOG_FILE),
            ),
        )
        python, code = installed(host, pipeline_wheel(rented), self._tell)
        told = msgspec.json.encode({"schema": 1, "name": rented.name})
        host.put(f"{record.run}/{BRIDGE_FILE}", io.BytesIO(told))
        order = msgspec.json.encode(rented.order).decode()
        variables = {**rented.sent.variables, ORDER_VARIABLE: order}
        answer, _ = host.ask(
            "start", msgspec.json.encode(variables), run=record.run, python=python, code=code,
            deadline_seconds=self._deadline_seconds,
        )  # fmt: skip
        record = write_record(folder, msgspec.structs.replace(record, state="running"))
        return self._watched(int(answer["pid"]), record)

    def attach(self) -> RunHandle:
        """Return the pipeline that was launched there before; nothing is asked yet."""
        record = read_record(self._rented.folder)
        if record is None:
            raise UsageError(f"{self._rented.name}: nothing was launched for it")
        return self._watched(0, record)

    def break_off(self) -> None:
        """As of Boarding."""
        if self._host is not None:
            self._host.break_off()

    def close(self) -> None:
        """As of Boarding."""
        if self._host is not None:
            self._host.close()

    def _connected(self) -> RemoteHost:
        if self._host is None:
            self._host = RemoteHost(self._remote)
        self._host.enter()
        return self._host

    def _watched(self, pid: int, record: RemoteRecord) -> RunHandle:
        return PipelineRun(pid, RunMirror(self._rented.folder, record), self._handed_over)

    def _handed_over(self) -> RemoteHost:
        """Return the open connection, once; then new ones."""
        host, self._host = self._host, None
        if host is None:
            host = RemoteHost(self._remote)
            host.enter()
        return host


class PipelineRun(RemoteRun):
    """A pipeline over there; what it says comes as news."""

    def __init__(self, pid: int, mirror: RunMirror, connect: Connect) -> None:
        super().__init__(pid, mirror, connect)
        self._log = LogTail(mirror.run_dir / LOG_FILE, mirror.record.log_base)

    def news(self) -> list[str]:
        """As of RunHandle."""
        return [*super().news(), *self._log.lines()]


class LogTail:
    """The lines added to a log since the last look; half-written ones wait."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path, self._offset = path, offset

    def lines(self) -> list[str]:
        """Return the new lines."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.decode("utf-8", "backslashreplace").splitlines()


def pipeline_wheel(rented: RentedPipeline) -> Wheel:
    """Return the wheel that a pipeline is shipped with; what only training loads is not needed."""
    return build_wheel(("hf",) if rented.reads_hub else (), without=NOT_NEEDED)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
