"""Brings what a run writes on another machine into its folder here: metrics, log, checkpoints.

Metrics and log are appended to, and how far they go is their own length: what was cut off anywhere
goes on there, and nothing comes twice. A checkpoint appears here when every byte of it was checked,
as it does where it is written.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Annotated, Any

import msgspec

from brain.ml import checkpoint_files
from brain.ml.checkpoint_files import COMPLETE_FILE
from brain.ml.run_files import BROKEN_FILE, CHECKPOINTS_FOLDER, LOG_FILE, METRICS_FILE
from resource_manager.launch_target import RunStatus
from resource_manager.remote_host import PIECE_BYTES, RemoteHost
from resource_manager.remote_record import RemoteRecord, write_record
from tools_utilities.errors import DataError, MachineError
from tools_utilities.prepared_types import prepared
from tools_utilities.private_files import write_private

MOST_LISTED = 64 << 20
"""Bytes of a checkpoint's list of files."""
MOST_BROKEN_BYTES = 64 << 20
FULL_BYTES = 1 << 20
"""A disk with less room than this counts as full."""
LOST = "its processes are gone and left no word: ended from outside, or the machine started anew"


@prepared
class _Answer(msgspec.Struct, frozen=True):
    """What the helper says of a run."""

    metrics: Annotated[int, msgspec.Meta(ge=0)]
    log: Annotated[int, msgspec.Meta(ge=0)]
    state: str
    code: int | None = None
    free_bytes: int | None = None
    checkpoints: tuple[tuple[str, str], ...] = ()


class RunMirror:
    """One run's folder here, and what it is filled from."""

    def __init__(self, run_dir: Path, record: RemoteRecord, *, keep: int = 3) -> None:
        """`keep`: checkpoints that stay here, as there."""
        self.run_dir = run_dir
        self.record = record
        self._keep = keep
        self._checkpoints: list[tuple[str, str]] = []
        self._fetch: _Fetch | None = None
        self._hopeless: set[str] = set()
        """Checkpoints that went away there while they came."""

    def read(self, host: RemoteHost) -> RunStatus:
        """Ask once how the run stands, and append what it has written since."""
        answer: dict[str, Any] = {"metrics": 1}
        while answer["metrics"] or answer["log"]:
            answer, data = host.ask(
                "read",
                run=self.record.run,
                metrics=self._length(METRICS_FILE) - self.record.metrics_base,
                log=self._length(LOG_FILE) - self.record.log_base,
                most=PIECE_BYTES,
            )
            answer = self._checked(answer)
            self._append(METRICS_FILE, data[: answer["metrics"]])
            self._append(LOG_FILE, data[answer["metrics"] :])
            self._checkpoints = list(answer["checkpoints"])
            if answer["state"] not in ("ended", "lost"):
                break  # what comes meanwhile is for the next look
        return self._status(answer)

    def bring_piece(self, host: RemoteHost, *, all_of_them: bool) -> bool:
        """Bring a piece of a checkpoint that is not here yet; returns whether there was one.

        `all_of_them`: older ones too, not the newest alone.
        """
        fetch = self._fetch or self._next_fetch(all_of_them=all_of_them)
        self._fetch = fetch
        if fetch is None:
            return False
        try:
            if fetch.bring_piece(host):
                self._publish(fetch)
                self._fetch = None
        except DataError:
            # The run has removed or replaced it; the next look tells what there is.
            self._hopeless.add(fetch.told)
            fetch.discard()
            self._fetch = None
        return True

    def bring_best(self, host: RemoteHost) -> None:
        """Note which checkpoint had the best validation loss, if it is here."""
        there = f"{self.record.run}/{CHECKPOINTS_FOLDER}/{checkpoint_files.BEST_FILE}"
        _, data = host.ask("file", path=there, offset=0, most=PIECE_BYTES)
        name = data.decode("ascii", "replace").strip()
        folder = self.run_dir / CHECKPOINTS_FOLDER
        if checkpoint_files.step_of(name) is not None and (folder / name).is_dir():
            checkpoint_files.mark_best(folder, name)

    def bring_broken(self, host: RemoteHost) -> None:
        """Bring what a step that had no finite loss was made of, if there was one."""
        data = b""
        while len(data) < MOST_BROKEN_BYTES:
            there = f"{self.record.run}/{BROKEN_FILE}"
            _, piece = host.ask("file", path=there, offset=len(data), most=PIECE_BYTES)
            data += piece
            if len(piece) < PIECE_BYTES:
                break
        if data:
            write_private(self.run_dir / BROKEN_FILE, data)

    def note(self, status: RunStatus, *, collected: bool = False) -> None:
        """Keep what is known, for commands that do not ask."""
        self.record = write_record(
            self.run_dir,
            msgspec.structs.replace(
                self.record, state=status.state, exit_code=status.exit_code, collected=collected
            ),
        )

    def _checked(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return an answer as plain data of the right kinds; the machine may be anybody's.

        Raises:
            MachineError: it is not what the helper says.
        """
        try:
            told = msgspec.convert(answer, _Answer)
        except msgspec.ValidationError as error:
            raise MachineError(
                f"{self.record.remote.where}: an answer that makes no sense: {error}",
                where=self.record.remote.where, phase="read",
            ) from error  # fmt: skip
        named = [one for one in told.checkpoints if checkpoint_files.step_of(one[0]) is not None]
        return {**msgspec.structs.asdict(told), "checkpoints": named}

    def _status(self, answer: dict[str, Any]) -> RunStatus:
        state, code = str(answer["state"]), answer["code"]
        why, free = "", answer.get("free_bytes")
        if state == "none":
            state, why = "lost", f"there is no {self.record.run} over there any more"
        elif free is not None and free < FULL_BYTES and code != 0:
            why = f"the disk there is full: {free:,} bytes free"
        elif state == "lost":
            why = LOST
        return RunStatus(state=state, exit_code=code, why=why)

    def _length(self, name: str) -> int:
        path = self.run_dir / name
        return path.stat().st_size if path.exists() else 0

    def _append(self, name: str, data: bytes) -> None:
        if data:
            with (self.run_dir / name).open("ab") as file:
                file.write(data)

    def _next_fetch(self, *, all_of_them: bool) -> "_Fetch | None":
        folder = self.run_dir / CHECKPOINTS_FOLDER
        wanted = self._checkpoints if all_of_them else self._checkpoints[:1]
        for name, told in wanted:
            if told not in self._hopeless and not _is_here(folder / name, told):
                return _Fetch(folder, self.record.run, name, told)
        return None

    def _publish(self, fetch: "_Fetch") -> None:
        folder = self.run_dir / CHECKPOINTS_FOLDER
        checkpoint_files.check(fetch.hidden)
        shutil.rmtree(folder / fetch.name, ignore_errors=True)  # the same step of another time
        fetch.hidden.rename(folder / fetch.name)
        if fetch.name == self._checkpoints[0][0]:
            checkpoint_files.point_to(folder, fetch.name)
            checkpoint_files.keep_newest(folder, self._keep)


class _Fetch:
    """A checkpoint on its way."""

    def __init__(self, folder: Path, run: str, name: str, told: str) -> None:
        self.name, self.told = name, told
        self._there = f"{run}/{CHECKPOINTS_FOLDER}/{name}"
        step = checkpoint_files.step_of(name)
        if step is None:
            raise DataError(f"{name} is no name of a checkpoint")
        self.hidden = checkpoint_files.begin(folder, step)
        self._waiting: list[str] = [COMPLETE_FILE]
        self._sizes = {COMPLETE_FILE: MOST_LISTED}
        """Of each file, what it may have."""

    def bring_piece(self, host: RemoteHost) -> bool:
        """Bring the next piece; returns whether all are here."""
        name = self._waiting[0]
        path = self.hidden / name
        offset = path.stat().st_size if path.exists() else 0
        _, data = host.ask("file", path=f"{self._there}/{name}", offset=offset, most=PIECE_BYTES)
        if offset + len(data) > self._sizes[name]:
            raise DataError(f"{self.name}: {name} is larger than it says")
        with path.open("ab") as file:
            file.write(data)
        if len(data) < PIECE_BYTES:
            self._waiting.pop(0)
            if name == COMPLETE_FILE:
                # Its names are checked: nothing lands outside the folder.
                listed = checkpoint_files.read_complete(self.hidden).files
                self._sizes = {each: record.size_bytes for each, record in listed.items()}
                self._waiting += listed
        return not self._waiting

    def discard(self) -> None:
        """Remove what has come."""
        shutil.rmtree(self.hidden, ignore_errors=True)


def _is_here(folder: Path, told: str) -> bool:
    path = folder / COMPLETE_FILE
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == told
